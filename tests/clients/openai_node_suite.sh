#!/usr/bin/env bash
# Runs the official Node package `openai` against a hub: openai_suite.mjs, one line a check.
#   openai_node_suite.sh http://127.0.0.1:8080/v1 MODEL
# Exit code 3: there is no Node, or npm could not fetch the package.
set -euo pipefail
package=openai@7.57.0
here=$(cd "$(dirname "$0")" && pwd)
folder=${CARGO_TARGET_DIR:-$here/../../target}/clients/node

skip() { echo "SKIPPED openai_node_suite: $1" >&2; exit 3; }
command -v node >/dev/null && command -v npm >/dev/null || skip "there is no node or no npm"
mkdir -p "$folder"
npm install --prefix "$folder" --no-save --no-audit --no-fund --silent "$package" >/dev/null 2>&1 ||
    skip "npm cannot fetch $package"
# A module finds packages in its own folder.
cp "$here/openai_suite.mjs" "$folder/"
exec node "$folder/openai_suite.mjs" "$1" "$2"
