#!/usr/bin/env bash
# Runs lm-eval's `local-completions` and `local-chat-completions` against a hub that serves the demo model, on the tasks in
# lm_eval/, and prints its results as one JSON object: task to metric to number.
#   lm_eval.sh http://127.0.0.1:8080/v1 MODEL
# Exit code 3: there is no Python, or pip could not fetch the packages.
set -euo pipefail
packages=("lm-eval[api]==0.4.13" "transformers==5.23.0")
here=$(cd "$(dirname "$0")" && pwd)
venv=${CARGO_TARGET_DIR:-$here/../../target}/clients/lm-eval

skip() { echo "SKIPPED lm_eval: $1" >&2; exit 3; }
command -v python3 >/dev/null || skip "there is no python3"
[ -x "$venv/bin/python" ] || python3 -m venv "$venv" >/dev/null 2>&1 || skip "python3 makes no venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check "${packages[@]}" >/dev/null 2>&1 ||
    skip "pip cannot fetch ${packages[*]}"

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
export OPENAI_API_KEY=none HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false PYTHONDONTWRITEBYTECODE=1
evaluate() { # MODEL_TYPE PATH TASKS FLAGS...
    local args="model=$MODEL,base_url=$URL/$2,tokenizer=$here/../../hub/model/demo-model"
    "$venv/bin/lm_eval" run --model "$1" --model_args "$args,num_concurrent=4,max_length=2048,eos_string=<|im_end|>" \
        --tasks "$3" --include_path "$here/lm_eval" --output_path "$out/$3" "${@:4}" >&2
}
URL=$1 MODEL=$2
evaluate local-completions completions moex_completions,moex_loglikelihood --batch_size 8
# One after another: lm-eval 0.4.13 treats requests as equal that differ only inside `chat_template_kwargs`.
evaluate local-chat-completions chat/completions moex_chat --apply_chat_template
evaluate local-chat-completions chat/completions moex_chat_thinking --apply_chat_template
"$venv/bin/python" - "$out" <<'PYTHON'
import json, pathlib, sys
results = {}
for file in pathlib.Path(sys.argv[1]).rglob("results_*.json"):
    report = json.loads(file.read_text())
    for task, metrics in report["results"].items():
        results[task] = {key.split(",")[0]: value for key, value in metrics.items() if key.endswith(",none")}
        results[task]["n"] = report["n-samples"][task]["effective"]
print(json.dumps(results))
PYTHON
