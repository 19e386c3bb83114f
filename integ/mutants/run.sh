#!/usr/bin/env bash
# Changes the planner's rules one by one, and lists the changes that no test notices: src/main.rs explains.
#
#   run.sh              tries all changes; run.sh --help lists the options
#   run.sh --check      checks the format and the lock file of the tool; compiles nothing
#
#   CARGO_TARGET_DIR   cargo's folder
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cargo=${CARGO:-cargo}
manifest=$here/Cargo.toml
if [ "${1:-}" = --check ]; then
  "$cargo" fmt --manifest-path "$manifest" --check
  "$cargo" tree --manifest-path "$manifest" --locked >/dev/null || { echo "make: integ/mutants/Cargo.lock is stale: run cargo update --workspace in integ/mutants" >&2; exit 1; }
  exit
fi
# The tool tries itself on a small package first, which takes seconds.
"$cargo" test --quiet --locked --manifest-path "$manifest" >/dev/null
exec "$cargo" run --quiet --locked --manifest-path "$manifest" -- "$@"
