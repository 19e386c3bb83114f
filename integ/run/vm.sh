#!/usr/bin/env bash
# Runs the scenarios on virtual machines, as root.
#
#   vm.sh [NAME]   all but the recording, or those with that name
#
#   CARGO_TARGET_DIR   cargo's folder
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

name=${1:-}
test=("${CARGO:-cargo}" test --locked -p integ --test vm)
"${test[@]}" --no-run
# shellcheck disable=SC2086 # no name is no argument
"${test[@]}" -- --ignored --list $name | grep ': test$' >/dev/null || { echo "make: no scenario is named $name: see integ/tests/vm" >&2; exit 1; }
# shellcheck disable=SC2086 # two arguments
exec integ/vm/with.sh "${CARGO_TARGET_DIR:?is not set}" 2 "${test[@]}" -- --ignored --nocapture --test-threads=1 ${name:---skip recording}
