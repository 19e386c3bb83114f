#!/usr/bin/env bash
# Runs every check and test, and prints what failed, what was unstable, and how long each part took.
#
#   test.sh         what has to pass before a change lands
#   test.sh --all   with the tests that take minutes, too
#
#   CARGO_TARGET_DIR   cargo's folder; binary.sh says which files are in it
#   MAKE, CARGO
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

here=$PWD/integ/run
target=${CARGO_TARGET_DIR:?is not set}
run=$target/run
make=${MAKE:-make}
cargo=${CARGO:-cargo}

# entry NAME: prints the line of a test binary.
entry() { awk -F'\t' -v name="$1" '$2 == name && ($1 == "test" || name == "integ")' "$run/binaries.txt"; }

# beside units | builds: runs one of two parts that run beside one another, and keeps its time.
beside() {
  local status=0
  case $1 in
  units) "$here/unit.sh" || status=$? ;;
  builds)
    "$make" --no-print-directory next agent >"$run/builds.txt" 2>&1 || status=$?
    if [ "$status" != 0 ]; then
      cat "$run/builds.txt"
      printf 'builds\t%s\n' "the output is in $run/builds.txt" >>"$run/failed"
    fi
    ;;
  esac
  processors "$run/$1.times.txt"
  printf '%s\t%s\t  %s\n' "$SECONDS" "$used" "$1" >>"$run/times.txt"
  exit "$status"
}

# binary NAME: runs a test binary.
binary() {
  local name=$1 arguments=() kind folder path
  # Tests that take minutes. Elsewhere, ignored tests are programs that other tests start.
  case ${BRUPOP_ALL_TESTS:-}:$name in 1:scenarios | 1:manifests | 1:controller | 1:drains) arguments=(--include-ignored) ;; esac
  # An hour, whose figures are those of its process alone: make test-soak.
  if [ "$name" = controller ]; then arguments+=(--skip soak::memory); fi
  IFS=$'\t' read -r kind _ folder path < <(entry "$name")
  echo "$name: started ($kind)"
  cd "$folder"
  CARGO_MANIFEST_DIR=$folder exec "$here/binary.sh" "$name" "$path" "${arguments[@]}"
}

# shellcheck source=integ/run/processors.sh
. "$here/processors.sh"
used=0
case ${1:-} in
--binary) binary "$2" ;;
--beside) beside "$2" ;;
esac

# step NAME COMMAND...: runs a part and keeps its time.
step() {
  part=$1
  local began=$SECONDS before=$used status=0
  shift
  "$@" || status=$?
  processors "$run/processors.txt"
  printf '%s\t%s\t%s\n' $((SECONDS - began)) $((used - before)) "$part" >>"$run/times.txt"
  return "$status"
}

summary() {
  local status=$?
  printf '\nSeconds of each part, and how many its processes used of the processors:\n'
  awk -F'\t' '{ printf "%7d s %7d s  %s\n", $1, $2, $3 }' "$run/times.txt"
  if [ -s "$BRUPOP_DURATIONS" ]; then
    printf '\nThe ten slowest end-to-end tests:\n'
    sort -rn "$BRUPOP_DURATIONS" | sed -n 1,10p
  fi
  printf '\nunstable: %s\n' "$(cat "$run/unstable" 2>/dev/null | wc -l)"
  [ ! -e "$run/unstable" ] || awk -F'\t' '{ printf "  %s: %s: %s\n", $1, $2, $3 }' "$run/unstable"
  [ ! -e "$run/unstable" ] || echo "  Their outputs are in $target/unstable"
  if [ "$status" != 0 ]; then
    [ ! -e "$run/failed" ] || printf '\nfailed:\n'
    [ ! -e "$run/failed" ] || awk -F'\t' '{ printf "  %s: %s\n", $1, $2 }' "$run/failed"
    printf '\nmake: failed after %d s: %s\n' "$SECONDS" "$part"
  fi
  exit "$status"
}

rm -rf "$run" "$target/unstable" "$target/failed"
mkdir -p "$run"
export BRUPOP_DURATIONS=$run/durations.txt BRUPOP_AGENT_BIN=$target/shipped/brupop-agent
unset BRUPOP_ALL_TESTS
[ "${1:-}" != --all ] || export BRUPOP_ALL_TESTS=1
# A machine that builds once writes half as much.
[ -z "${CI:-}" ] || export CARGO_INCREMENTAL=0
trap summary EXIT

step "format, words, scripts" "$here/lint.sh" --early
step "compiling" "$here/compile.sh"
step "generated files, dependencies" "$here/lint.sh" --late
step "documentation" "$make" --no-print-directory docs
step "control plane, Helm, other servers" "$make" --no-print-directory control-plane helm definitions prometheus moto
# Unit tests, of which the longest use one processor, and what only end-to-end tests need: programs of a next version, and the agent as
# it ships.
step "unit tests, and builds beside them" xargs -n 1 -P 2 "$here/test.sh" --beside <<<$'units\nbuilds'
step "tests in documentation" "$cargo" test --workspace --locked --quiet --doc

# Two binaries at a time, so that one computes while the other waits; the longest ones first.
first="scenarios controller manifests install update drains images integ kubelet demo refusals"
for name in $first; do
  [ -n "$(entry "$name")" ] || { echo "make: there is no test binary $name" >&2; exit 1; }
done
others=$(awk -F'\t' -v first=" $first vm beside " '$1 == "test" && !index(first, " " $2 " ") { print $2 }' "$run/binaries.txt")
part="end-to-end tests"
# shellcheck disable=SC2086 # several names
printf '%s\n' $first $others | xargs -n 1 -P 2 "$here/test.sh" --binary
