#!/usr/bin/env bash
# Runs the official Python package `openai` against a hub: openai_suite.py, one line a check.
#   openai_suite.sh http://127.0.0.1:8080/v1 MODEL
# Exit code 3: there is no Python, or pip could not fetch the package.
set -euo pipefail
package=openai==3.51.0
here=$(cd "$(dirname "$0")" && pwd)
venv=${CARGO_TARGET_DIR:-$here/../../target}/clients/python

skip() { echo "SKIPPED openai_suite: $1" >&2; exit 3; }
command -v python3 >/dev/null || skip "there is no python3"
[ -x "$venv/bin/python" ] || python3 -m venv "$venv" >/dev/null 2>&1 || skip "python3 makes no venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$package" >/dev/null 2>&1 ||
    skip "pip cannot fetch $package"
exec "$venv/bin/python" "$here/openai_suite.py" "$1" "$2"
