#!/usr/bin/env bash
# Changes the planner's rules one by one, and lists the changes that no test notices: src/main.rs explains.
#
#   run.sh              tries all changes; run.sh --help lists the options
#
#   CARGO_TARGET_DIR   cargo's folder
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cargo=${CARGO:-cargo}
target=${CARGO_TARGET_DIR:-$here/../../target}
mkdir -p "$target/mutants"
tool=$target/mutants/tool
# The tool tries itself on a small package first, which takes seconds.
CARGO_TARGET_DIR=$tool "$cargo" test --quiet --locked --manifest-path "$here/Cargo.toml" >"$target/mutants/sample.log" 2>&1 ||
  { cat "$target/mutants/sample.log" >&2; exit 1; }
CARGO_TARGET_DIR=$target exec "$tool/debug/mutants" "$@"
