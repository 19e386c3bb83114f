#!/usr/bin/env bash
# Runs the unit tests that compile.sh has compiled, one binary after the other.
#
#   unit.sh           all but those of the test bed, which need a control plane; with BRUPOP_ALL_TESTS the planner's that take minutes, too
#   unit.sh --quick   those of the test bed without the ones that need a control plane, and the other quick tests, too; of the
#                     simulations with seeds every seventh
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
binaries=${CARGO_TARGET_DIR:?is not set}/run/binaries.txt
[ "${1:-}" != --quick ] || export BRUPOP_SIMULATE_EVERY=${BRUPOP_SIMULATE_EVERY:-7}
result=0
while IFS=$'\t' read -r kind name folder path <&8; do
  arguments=()
  case ${1:-}:$kind:$name in
  --quick:lib:integ) arguments=(--skip control_plane --skip oracle::tests::) ;;
  :lib:planner) [ -z "${BRUPOP_ALL_TESTS:-}" ] || arguments=(--include-ignored) ;;
  --quick:test:host_golden | --quick:test:layers | --quick:test:docs) ;;
  *:test:* | *:lib:integ) continue ;;
  esac
  (cd "$folder" && CARGO_MANIFEST_DIR=$folder "$here/binary.sh" --unit "unit-$name" "$path" "${arguments[@]}") || result=1
done 8<"$binaries"
exit "$result"
