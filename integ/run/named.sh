#!/usr/bin/env bash
# Runs the tests that have these words in their names, also ignored ones of the end-to-end tests: one that is named is wanted.
# A word that no test has is an error.
#
#   named.sh WORD...
#
#   CARGO
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

output=$(mktemp)
trap 'rm -f "$output"' EXIT
test=("${CARGO:-cargo}" test --workspace --locked --no-fail-fast)
status=0
"${test[@]}" -- "$@" 2>&1 | tee "$output" || status=1
"${test[@]}" --test scenarios --test manifests --test controller --test drains -- --ignored "$@" 2>&1 | tee -a "$output" || status=1
grep -qE '^running [1-9]' "$output" || { echo "make: no test has $* in its name" >&2; exit 1; }
exit "$status"
