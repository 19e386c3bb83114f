#!/usr/bin/env bash
# Builds the fuzzer and runs each target for FUZZ_SECONDS. An input that fails is saved in fuzz/crashes/<target> afterwards, where
# `make test` finds it too, until what it shows is mended.
set -euo pipefail
cd "$(dirname "$0")"

seconds=${FUZZ_SECONDS:-20}
cargo=${CARGO:-cargo}
work=${CARGO_TARGET_DIR:-$PWD/../target}/fuzz
host=$(rustc -vV | sed -n 's/^host: //p')

# The counters that libFuzzer reads. With a target named, build scripts and macros are built without them.
flags=(-Cpasses=sancov-module -Cdebug-assertions --cfg fuzzing)
for option in coverage-level=4 coverage-inline-8bit-counters coverage-pc-table coverage-trace-compares; do
    flags+=("-Cllvm-args=-sanitizer-$option")
done
RUSTFLAGS="${flags[*]}" CARGO_TARGET_DIR="$work" "$cargo" build --locked --target "$host"

failed=()
for seeds in seeds/*/*/; do
    target=$(basename "$seeds")
    [[ ${FUZZ_TARGETS:-$target} == *"$target"* ]] || continue
    mkdir -p "$work/corpus/$target" "crashes/$target"
    echo "fuzz: $target for $seconds s"
    if ! BRUPOP_FUZZ=$target "$work/$host/debug/fuzz" -max_total_time="$seconds" -timeout=10 -max_len=8192 \
        -artifact_prefix="$PWD/crashes/$target/" -print_final_stats=1 "$work/corpus/$target" "$seeds" \
        >"$work/$target.log" 2>&1; then
        failed+=("$target")
        grep -E "panicked|ERROR|Test unit written" -A2 "$work/$target.log" >&2 || tail -n 20 "$work/$target.log" >&2
    fi
    grep -E "stat::(number_of_executed_units|new_units_added)" "$work/$target.log" || true
    rmdir --ignore-fail-on-non-empty "crashes/$target"
done
rmdir --ignore-fail-on-non-empty crashes
if ((${#failed[@]})); then
    echo "fuzz: failed: ${failed[*]}; the inputs are in fuzz/crashes" >&2
    exit 1
fi
