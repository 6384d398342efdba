#!/usr/bin/env bash
# Prints the path of axe-core's script, which finds accessibility violations of a page.
#   axe.sh
# Exit code 3: npm could not fetch it.
set -euo pipefail
version=4.14.1
here=$(cd "$(dirname "$0")" && pwd)
folder=${CARGO_TARGET_DIR:-$here/../../target}/clients/axe-core-$version

skip() { echo "SKIPPED axe-core: $1" >&2; exit 3; }
if [ ! -f "$folder/package/axe.min.js" ]; then
    command -v npm >/dev/null || skip "there is no npm"
    mkdir -p "$folder"
    cd "$folder"
    npm pack --silent "axe-core@$version" >/dev/null 2>&1 || skip "npm cannot fetch axe-core@$version"
    tar -xzf "axe-core-$version.tgz" package/axe.min.js
fi
echo "$folder/package/axe.min.js"
