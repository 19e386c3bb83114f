#!/usr/bin/env bash
# Tests binary.sh with a stand-in for a test binary. `make lint` runs it.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export CARGO_TARGET_DIR=$work/target

# A test binary with the tests rollout::works and rollout::waits. WAITS says how the second one ends at each run.
cat >"$work/stand-in" <<'STAND_IN'
#!/usr/bin/env bash
wanted=${1:-}
echo "$*" >>"$CALLS"
calls=$(wc -l <"$CALLS")
outcome=$(cut -d' ' -f"$calls" <<<"$WAITS")
echo; echo "running ${wanted:+1 of }2 tests"
[ -n "$wanted" ] || echo "test rollout::works ... ok"
case $outcome in
ok)
  [ "$wanted" != rollout::works ] || exit 9
  echo "test rollout::waits ... ok"
  echo; echo "test result: ok. $((${#wanted} ? 1 : 2)) passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s"; echo
  ;;
none) echo; echo "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 2 filtered out; finished in 0.00s"; echo ;;
silent) exit 0 ;;
abort) echo "thread has overflowed its stack"; kill -ABRT $$ ;;
error) echo "no runtime"; exit 1 ;;
*)
  echo "test rollout::waits ... FAILED"
  echo; echo "failures:"; echo
  echo "---- rollout::waits stdout ----"
  echo "BRUPOP_SEED=7 repeats the choices of this run"
  # What a test prints can look like a list.
  echo "failures:"; echo "    rollout::printed"
  echo "---- rollout::waits stdout ----"
  case $outcome in
  panic) printf '\nthread %s panicked at rollout.rs:7:5:\nassertion failed in run %s\nnote: more\n' "'rollout::waits'" "$calls" ;;
  *) echo "Error: the pod is not Ready in run $calls" ;;
  esac
  echo; echo; echo "failures:"; echo "    rollout::waits"
  [ "$outcome" != many ] || for n in {1..11}; do echo "    rollout::other_$n"; done
  echo; echo "test result: FAILED. 1 passed; $([ "$outcome" = many ] && echo 12 || { [ "$outcome" = unlisted ] && echo 2 || echo 1; }) failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s"; echo
  [ "$outcome" != verdict ] || echo "the oracle, over the history of all cases: S1"
  exit 101
  ;;
esac
STAND_IN
chmod +x "$work/stand-in"

failures=0
# expect STATUS RUNS OUTCOMES TEXT [OPTION]: runs the stand-in and compares status and number of runs; the output has the text.
expect() {
  local status=0 output runs
  rm -rf "$CARGO_TARGET_DIR"; : >"$work/calls"
  # shellcheck disable=SC2086 # no option is no argument
  output=$(CALLS=$work/calls WAITS=$3 "$here/binary.sh" ${5:-} bed "$work/stand-in" 2>&1) || status=$?
  runs=$(wc -l <"$work/calls")
  if [ "$status" != "$1" ] || [ "$runs" != "$2" ] || ! grep -qF "$4" <<<"$output"; then
    failures=$((failures + 1))
    printf 'binary_test: %s: status %s and not %s, %s runs and not %s, or the output is without "%s":\n%s\n' "$3" "$status" "$1" "$runs" "$2" "$4" "$output" >&2
  fi
}
# holds WHAT COMMAND...: the command succeeds after the last run.
holds() {
  local what=$1
  shift
  "$@" || { failures=$((failures + 1)); echo "binary_test: $what" >&2; }
}

expect 0 1 "ok" "bed: 2 passed in"
holds "a binary that passes leaves no list" test ! -e "$CARGO_TARGET_DIR/run/unstable"

expect 0 2 "failed ok" "rollout::waits failed and is run once more, alone: the pod is not Ready in run 1"
holds "the first output of an unstable test is kept" grep -q "not Ready in run 1" "$CARGO_TARGET_DIR/unstable/rollout.waits.1.txt"
holds "the second output of an unstable test is kept" grep -q "ok. 1 passed" "$CARGO_TARGET_DIR/unstable/rollout.waits.2.txt"
holds "an unstable test is listed" grep -q $'^bed\trollout::waits\tthe pod is not Ready in run 1$' "$CARGO_TARGET_DIR/run/unstable"
holds "an unstable test is not listed as failed" test ! -e "$CARGO_TARGET_DIR/run/failed"
holds "a test is run once more by its exact name, alone" grep -qx "rollout::waits --exact --test-threads=1" "$work/calls"

expect 1 2 "failed failed" "FAILED bed: rollout::waits failed twice: the pod is not Ready in run 2"
expect 1 2 "panic panic" "FAILED bed: rollout::waits failed twice: assertion failed in run 2"
holds "both outputs of a failed test are kept" grep -q "in run 1" "$CARGO_TARGET_DIR/failed/rollout.waits.1.txt"
holds "a failed test is not listed as unstable" test ! -e "$CARGO_TARGET_DIR/run/unstable"
expect 1 2 "failed none" "FAILED bed: rollout::waits failed, and alone it ended with status 0 without its result"
expect 1 2 "failed abort" "FAILED bed: rollout::waits failed, and alone it ended with status 134"

expect 1 1 "abort ok" "FAILED bed: signal ABRT ended it: thread has overflowed its stack"
expect 1 1 "error ok" "FAILED bed: it ended with status 1, and the failed tests are not all that is wrong: no runtime"
expect 1 1 "silent ok" "FAILED bed: it ended before its summary, with status 0"
expect 1 1 "verdict ok" "FAILED bed: it ended with status 101, and the failed tests are not all that is wrong: the oracle"
expect 1 1 "unlisted ok" "FAILED bed: it ended with status 101"
expect 1 1 "many ok" "12 tests failed, and more than 10 are not run once more"
expect 1 1 "failed ok" "FAILED bed: rollout::waits: the pod is not Ready in run 1" --unit

[ "$failures" = 0 ] || exit 1
