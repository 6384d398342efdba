#!/usr/bin/env bash
# Sends a hub requests that its /openapi.json allows, and others, with schemathesis: no 500, and only documented
# answers.
#   schemathesis.sh http://127.0.0.1:8080/v1 MODEL [EXAMPLES]
# EXAMPLES for each operation, the same for the same number: 10 give about 2,000 cases, 250 more than 5,000. All checks
# are on; schemathesis_hooks.py replaces `positive_data_acceptance`, and lists the rules that a schema cannot express.
# Exit code 3: there is no Python, or pip could not fetch the package.
set -euo pipefail
package=schemathesis==4.32.5
here=$(cd "$(dirname "$0")" && pwd)
folder=${CARGO_TARGET_DIR:-$here/../../target}/clients/schemathesis

skip() { echo "SKIPPED schemathesis: $1" >&2; exit 3; }
command -v python3 >/dev/null || skip "there is no python3"
[ -x "$folder/bin/python" ] || python3 -m venv "$folder" >/dev/null 2>&1 || skip "python3 makes no venv"
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check "$package" >/dev/null 2>&1 ||
    skip "pip cannot fetch $package"
cd "$folder" # where it stores its files
export PYTHONPATH=$here PYTHONDONTWRITEBYTECODE=1 SCHEMATHESIS_HOOKS=schemathesis_hooks
exec bin/schemathesis run "${1%/v1}/openapi.json" --seed 1 --max-examples "${3:-10}" --phases coverage,fuzzing --checks all \
    --exclude-checks positive_data_acceptance --continue-on-failure --request-timeout 120 --workers 1 --no-color
