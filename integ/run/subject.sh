#!/usr/bin/env bash
# Runs the tests of one subject, each by name. A word that no test has is an error, so that subjects.txt does not become stale.
#
#   subject.sh NAME     one of subjects.txt
#   subject.sh --list   prints the names
#   subject.sh --help   prints them with what they are about, for `make help`
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

subjects=integ/run/subjects.txt
case ${1:?usage: subject.sh NAME} in
--list) exec sed -nE 's/^([a-z-]+): .*/\1/p' "$subjects" ;;
--help) exec sed -nE 's/^([a-z-]+): (.*)/test-\1\tRun the tests of one subject: \2/p' "$subjects" ;;
esac

# tests BINARY [WORD...]: runs those of its tests that have one of the words.
tests() {
  local binary=$1 which names word
  shift
  case $binary in
  units) which="--lib --bins" ;;
  brupop-* | kubectl-brupop) which="--bin $binary" ;;
  *) which="--test $binary" ;;
  esac
  # shellcheck disable=SC2206 # several arguments
  local test=("${CARGO:-cargo}" test --workspace --locked --no-fail-fast $which)
  names=$("${test[@]}" --quiet -- --list)
  for word in "$@"; do
    [[ $word == --* ]] || grep -qF -- "$word" <<<"$names" \
      || { echo "make: no test of $binary has '$word' in its name: mend $subjects" >&2; exit 1; }
  done
  "${test[@]}" -- "$@"
}

mapfile -t lines < <(awk -v title="$1:" '/^[a-z]/ { on = $1 == title; next } on && NF && !/^ *#/' "$subjects")
[ "${#lines[@]}" != 0 ] || { echo "make: $subjects has no subject '$1'" >&2; exit 1; }
for line in "${lines[@]}"; do
  # shellcheck disable=SC2086 # a binary and several words
  tests $line
done
