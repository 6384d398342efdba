#!/usr/bin/env bash
# Scans a hub with compatcanary, a client that tests servers of OpenAI's API, and prints its report as JSON.
#   compatcanary.sh http://127.0.0.1:8080/v1 MODEL
# Exit code 3: npm could not fetch it.
set -euo pipefail
package=compatcanary@0.2.2

command -v npx >/dev/null || { echo "SKIPPED compatcanary: there is no npx" >&2; exit 3; }
npx --yes "$package" --version >/dev/null 2>&1 || { echo "SKIPPED compatcanary: npm cannot fetch $package" >&2; exit 3; }
exec npx --yes "$package" scan --profile modern --format json --fail-on never --timeout 120 --base-url "$1" --model "$2"
