#!/usr/bin/env bash
# Measures servers of OpenAI's API with PyPI's llama-benchy, one after the other, at 1, 4 and 16 streams; by hand:
#   llama_benchy.sh TOKENIZER_FOLDER http://127.0.0.1:8080/v1 http://127.0.0.1:8081/v1 ...
# TOKENIZER_FOLDER has the tokenizer.json of the model that all of them serve, under the name MODEL (moex-demo). Prompts
# are cut from this project's own pages, 256 tokens each, and answers are 64 tokens long. RUNS (3) sets how often each is
# measured. It counts pieces of text, so that every token has to be text: a model of `moex synth` answers with words, which it
# repeats; --no-guesses, then, for a repeated text is guessed, and a piece has several tokens.
# Exit code 3: there is no Python, or pip could not fetch the package.
set -euo pipefail
package=llama-benchy==0.4.0
here=$(cd "$(dirname "$0")" && pwd)
venv=${CARGO_TARGET_DIR:-$here/../../target}/clients/llama-benchy
tokenizer=$(realpath "$1")

skip() { echo "SKIPPED llama_benchy: $1" >&2; exit 3; }
command -v python3 >/dev/null || skip "there is no python3"
[ -x "$venv/bin/python" ] || python3 -m venv "$venv" >/dev/null 2>&1 || skip "python3 makes no venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$package" >/dev/null 2>&1 ||
    skip "pip cannot fetch $package"

# It reads its text by http.
book=$(mktemp -d)
trap 'kill "$library" 2>/dev/null; rm -r "$book"' EXIT
cat "$here"/../../{README,ARCHITECTURE}.md >"$book/book.txt"
port=$("$venv/bin/python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
"$venv/bin/python" -m http.server --bind 127.0.0.1 --directory "$book" "$port" >/dev/null 2>&1 &
library=$!
sleep 1

export HF_HUB_OFFLINE=1 HOME=$book
for url in "${@:2}"; do
    "$venv/bin/llama-benchy" --base-url "$url" --served-model-name "${MODEL:-moex-demo}" --model "${MODEL:-moex-demo}" --tokenizer "$tokenizer" \
        --book-url "http://127.0.0.1:$port/book.txt" --pp 256 --tg 64 --exact-tg --no-cache --skip-coherence \
        --concurrency 1 4 16 --runs "${RUNS:-3}"
done
