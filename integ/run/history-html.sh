#!/usr/bin/env bash
# Tests the page of `kubectl brupop history --html` in a headless browser, and writes its screenshots to docs/images. The browser and
# its driver are packages of npm, which are installed once, into cargo's folder.
#
#   CARGO_TARGET_DIR   cargo's folder, with the plugin
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

target=${CARGO_TARGET_DIR:?is not set}
folder=$target/history-html
wanted=integ/browser/package.json
mkdir -p "$folder"
if ! cmp -s "$wanted" "$folder/installed.json"; then
  cp "$wanted" "$folder/package.json"
  npm install --prefix "$folder" --no-audit --no-fund --loglevel=error >&2 \
    || { echo "make: the headless browser cannot be installed from the npm registry: see the error above" >&2; exit 1; }
  cp "$wanted" "$folder/installed.json"
fi
node integ/browser/page.test.mjs "$target/debug/kubectl-brupop" "$folder" docs/images
