#!/usr/bin/env bash
# Compiles all programs, tests, examples and benchmarks, has clippy check them on the way, so that nothing is compiled for a check
# alone, and lists the test binaries. A warning is an error, after all is compiled.
#
#   CARGO_TARGET_DIR   cargo's folder
#
#   run/binaries.txt   a line for each test binary: lib, bin or test; its name; the folder of its package; its path
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

cargo=${CARGO:-cargo}
run=${CARGO_TARGET_DIR:?is not set}/run
export RUSTC_WORKSPACE_WRAPPER=clippy-driver
mkdir -p "$run"

{ "$cargo" build --workspace --all-targets --locked --message-format=json-render-diagnostics 2>&1 >"$run/build.json"; } | tee "$run/build.txt" >&2
! grep -E '^warning: .* generated [0-9]+ warning' "$run/build.txt" >/dev/null || { echo "make: a warning is an error: see above" >&2; exit 1; }
sed -nE 's|^\{"reason":"compiler-artifact",.*"manifest_path":"([^"]+)/Cargo\.toml","target":\{"kind":\["(lib\|bin\|test)"\],.*"name":"([^"]+)","src_path".*"profile":\{[^}]*"test":true\}.*"executable":"([^"]+)".*|\2\t\3\t\1\t\4|p' \
  "$run/build.json" | sort >"$run/binaries.txt"
grep -q $'^test\tscenarios\t' "$run/binaries.txt" || { echo "make: cargo's list of binaries cannot be read: $run/build.json" >&2; exit 1; }
