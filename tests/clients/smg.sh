#!/usr/bin/env bash
# Runs the gateway smg in front of hubs, with cache-aware routing, until it is stopped:
#   smg.sh PORT METRICS_PORT http://127.0.0.1:8081 http://127.0.0.1:8082 ...
# Exit code 3: there is no Python, or pip could not fetch the package.
set -euo pipefail
package=smg==1.13.0
here=$(cd "$(dirname "$0")" && pwd)
venv=${CARGO_TARGET_DIR:-$here/../../target}/clients/smg

skip() { echo "SKIPPED smg: $1" >&2; exit 3; }
command -v python3 >/dev/null || skip "there is no python3"
[ -x "$venv/bin/python" ] || python3 -m venv "$venv" >/dev/null 2>&1 || skip "python3 makes no venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$package" >/dev/null 2>&1 ||
    skip "pip cannot fetch $package"
exec "$venv/bin/smg" launch --host 127.0.0.1 --port "$1" --prometheus-port "$2" --worker-urls "${@:3}" \
    --policy cache_aware --disable-tokenizer-autoload --log-level warn
