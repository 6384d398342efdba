#!/usr/bin/env bash
# Runs the tests of llama.cpp's server, from the source package of PyPI's llama-cpp-python, against hubs of this binary;
# by hand:
#   llama_cpp_server.sh target/debug/moex [PYTEST_ARGS...]
# llama_cpp_server.py starts the hubs; llama_cpp_server.txt lists the tests that do not apply, and why. Prints how many
# pass.
# Exit code 3: there is no Python, or pip could not fetch the packages.
set -euo pipefail
source=llama-cpp-python==0.3.36
packages=("pytest==8.3.5" "filelock==3.16.1" "requests==2.32.5" "openai==2.14.0" "wget==3.2" "aiohttp" "numpy" "prometheus-client")
here=$(cd "$(dirname "$0")" && pwd)
MOEX=$(realpath "$1")
export MOEX
folder=${CARGO_TARGET_DIR:-$here/../../target}/clients/llama-cpp-server

skip() { echo "SKIPPED llama_cpp_server: $1" >&2; exit 3; }
command -v python3 >/dev/null || skip "there is no python3"
mkdir -p "$folder"
[ -x "$folder/venv/bin/python" ] || python3 -m venv "$folder/venv" >/dev/null 2>&1 || skip "python3 makes no venv"
pip() { "$folder/venv/bin/python" -m pip --quiet --disable-pip-version-check "$@" >/dev/null 2>&1; }
pip install "${packages[@]}" || skip "pip cannot fetch ${packages[*]}"
if ! [ -d "$folder/tests/unit" ]; then
    pip download --no-deps --no-binary llama-cpp-python --dest "$folder" "$source" || skip "pip cannot fetch $source"
    mkdir -p "$folder/tests"
    tar xzf "$folder"/llama_cpp_python-*.tar.gz -C "$folder/tests" --strip-components 6 \
        --wildcards '*/vendor/llama.cpp/tools/server/tests/*'
    rm "$folder"/llama_cpp_python-*.tar.gz
fi
cd "$folder/tests"
export PYTHONPATH=$here:$folder/tests PYTHONDONTWRITEBYTECODE=1
exec "$folder/venv/bin/python" -m pytest -p llama_cpp_server -q -p no:cacheprovider "${@:2}"
