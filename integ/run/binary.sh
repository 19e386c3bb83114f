#!/usr/bin/env bash
# Runs one test binary and keeps its output. Each test that fails is run once more, alone: if it passes then, it is listed as unstable
# and the run goes on; if it fails again, the run fails. A binary that ends without a complete list of its failed tests fails the run.
#
#   binary.sh [--unit] NAME COMMAND [ARGUMENT...]   COMMAND accepts libtest's arguments after its own
#
#   --unit   a failed test fails the run at once, and tests that pass are not printed
#
#   CARGO_TARGET_DIR   where the files are written   (default: target)
#
#   run/NAME.txt              the output
#   run/times.txt             a line for each binary: seconds, seconds of processors, name
#   run/{unstable,failed}     a line for each such test: binary, test, cause
#   unstable/TEST.{1,2}.txt   both outputs of an unstable test, in whose name each :: is a dot
#   failed/TEST.{1,2}.txt     the same of a test that failed twice
set -euo pipefail
# shellcheck source=integ/run/processors.sh
. "$(dirname "${BASH_SOURCE[0]}")/processors.sh"

# More failures than these have one cause that is no chance.
most=10

unit=
if [ "${1:-}" = --unit ]; then unit=1; shift; fi
name=${1:?usage: binary.sh [--unit] NAME COMMAND [ARGUMENT...]}
shift
target=${CARGO_TARGET_DIR:-target}
run=$target/run
log=$run/$name.txt
mkdir -p "$run"

# failed_tests FILE: prints the failed tests, or fails if the file is not the complete output of a binary with failed tests. The last
# list counts, as the output of a test may have one too. Text after the summary is another failure, such as the oracle's verdict.
failed_tests() {
  awk '
    /^failures:$/ { names = ""; count = 0; listed = 1; next }
    listed && /^    [^ ]/ { names = names substr($0, 5) "\n"; count++ }
    /^test result: / { failed = /^test result: FAILED\. / && match($0, /[0-9]+ failed;/) ? substr($0, RSTART) + 0 : 0; more = ""; next }
    { more = more $0 }
    END { if (!failed || failed != count || more ~ /[^ \t]/) exit 1; printf "%s", names }' "$1"
}

# passed FILE [TESTS]: tells if the last summary is one of success, of so many tests.
passed() { grep -a '^test result: ' "$1" | tail -n 1 | grep -qE "^test result: ok\. ${2:-[0-9]+} passed;"; }

# output_of TEST FILE: the part of a binary's output that is that test's, without its title.
output_of() {
  awk -v test="$1" '
    /^---- .* ----$/ { on = $0 == "---- " test " stdout ----" || $0 == "---- " test " ----"; next }
    /^failures:$/ { on = 0 }
    on' "$2"
}

# cause TEST FILE: one line.
cause() {
  output_of "$1" "$2" | awk '
    /^Error: / && !error { error = substr($0, 8) }
    after && !panic { panic = $0 }
    { after = /panicked at .*:$/ }
    /[^ \t]/ && !/^BRUPOP_SEED=/ && !first { first = $0 }
    END { print error ? error : panic ? panic : first ? first : "no output" }'
}

# run_to FILE COMMAND...: runs it with its output in the file, and returns its status. The lock is not inherited by what it starts.
run_to() {
  local file=$1
  shift
  "$@" >"$file" 2>&1 9>&- </dev/null
}

# fail LINE FILE: the first line has the cause.
fail() {
  printf '%s\t%s\n' "$name" "$1" >>"$run/failed"
  printf 'FAILED %s: %s\n' "$name" "$1"
  sed 's/^/    /' "$2"
}

# Tests that are run alone wait for the other binaries, and those wait for them.
exec 9>"$run/alone.lock"
flock --shared 9
: >"$log"
[ -n "$unit" ] || tail -n +1 -s 0.2 -f --pid=$$ "$log" 2>/dev/null 9>&- | grep -a --line-buffered '^test .* \.\.\. ok' 9>&- &

began=$SECONDS status=0
run_to "$log" "$@" || status=$?
took=$((SECONDS - began))
if [ -z "$unit" ]; then
  processors "$run/$name.times.txt"
  printf '%s\t%s\t%s\n' "$took" "$used" "$name" >>"$run/times.txt"
fi

if [ "$status" = 0 ] && passed "$log"; then
  echo "$name: $(grep -a '^test result: ' "$log" | tail -n 1 | sed -E 's/^test result: ok\. ([0-9]+ passed);.*/\1/') in $took s"
  exit 0
fi

if [ "$status" = 0 ]; then
  tail -n 20 "$log" >"$run/$name.end.txt"
  fail "it ended before its summary, with status 0" "$run/$name.end.txt"
  exit 1
elif [ "$status" -gt 128 ] || ! failed_tests "$log" >"$run/$name.failed.txt"; then
  tail -n 20 "$log" >"$run/$name.end.txt"
  last=$(grep -a '[^[:space:]]' "$log" | tail -n 1 || true)
  if [ "$status" -gt 128 ]; then
    fail "signal $(kill -l $((status - 128)) || echo $((status - 128))) ended it: $last" "$run/$name.end.txt"
  else
    fail "it ended with status $status, and the failed tests are not all that is wrong: $last" "$run/$name.end.txt"
  fi
  exit 1
fi

mapfile -t failed <"$run/$name.failed.txt"
if [ -n "$unit" ] || [ "${#failed[@]}" -gt "$most" ]; then
  for test in "${failed[@]}"; do
    output_of "$test" "$log" >"$run/$name.end.txt"
    fail "$test: $(cause "$test" "$log")" "$run/$name.end.txt"
  done
  [ -n "$unit" ] || echo "$name: ${#failed[@]} tests failed, and more than $most are not run once more"
  exit 1
fi

for test in "${failed[@]}"; do echo "$name: $test failed and is run once more, alone: $(cause "$test" "$log")"; done
flock --unlock 9
flock --exclusive 9
result=0
for test in "${failed[@]}"; do
  file=${test//::/.}
  file=${file//\//.}
  mkdir -p "$target/failed" "$target/unstable"
  first=$target/failed/$file.1.txt second=$target/failed/$file.2.txt
  output_of "$test" "$log" >"$first"
  status=0
  run_to "$second" "$@" "$test" --exact --test-threads=1 || status=$?
  if [ "$status" = 0 ] && passed "$second" 1; then
    mv "$first" "$second" "$target/unstable/"
    printf '%s\t%s\t%s\n' "$name" "$test" "$(cause "$test" "$log")" >>"$run/unstable"
    echo "unstable: $name: $test passed when it ran alone; both outputs are in $target/unstable/$file.{1,2}.txt"
  elif [ "$(failed_tests "$second" || true)" = "$test" ]; then
    fail "$test failed twice: $(cause "$test" "$second")" "$second"
    result=1
  else
    fail "$test failed, and alone it ended with status $status without its result: $(cause "$test" "$log")" "$second"
    result=1
  fi
done
exit "$result"
