# shellcheck shell=bash
# Sourced by other scripts.

# processors FILE: sets `used` to the seconds of processors that ended children have used. FILE is written. It cannot be a command
# substitution: in a subshell, `times` knows of no children.
processors() {
  times >"$1"
  # shellcheck disable=SC2034 # the caller reads it
  used=$(awk -F'[ms ]+' 'NR == 2 { printf "%d", $1 * 60 + $2 + $3 * 60 + $4 }' "$1")
}
