#!/usr/bin/env bash
# Builds the programs of other projects that `make test-beside` runs beside the operator, from their Go modules, into a cache folder.
#
#   build.sh [PROGRAM...]      build what is missing of these, or of all
#   build.sh --where PROGRAM   only print the folder of one
#
# Each program has a folder here: `go.mod` and `go.sum` of a module that requires it, with the replaces of its own module; if it has
# definitions, `definitions.txt`, a line for each place (module, pattern of files), which are copied into the folder `definitions` beside the
# program; and, if something has to be done before it can be compiled, `prepare.sh`, which is sourced in a copy of the folder.
# The folder in the cache is named by a digest of all that, of this script and of go.sh, so a changed version never meets an old program.
#
# Interrupted? Run it again: Go keeps every package that was compiled, and a program appears only when it is whole.
#
#   BRUPOP_CACHE   where to keep the programs   (default: $XDG_CACHE_HOME/brupop or ~/.cache/brupop)
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../control-plane/go.sh"
cache=${BRUPOP_CACHE:-${XDG_CACHE_HOME:-${HOME:?HOME is not set; set BRUPOP_CACHE}/.cache}/brupop}/beside

die() { printf 'beside: %s\n' "$*" >&2; exit 1; }
say() { printf 'beside: %s\n' "$*" >&2; }

# folder PROGRAM: where it is, built or not.
folder() {
  [ -f "$here/$1/go.mod" ] || die "no program is named '$1': each has a folder in $here"
  echo "$cache/$1-$(cat "$here/$1"/* "$here/../control-plane/go.sh" "$here/build.sh" | sha256sum | cut -c1-16)"
}

# definitions PROGRAM FOLDER: copies its definitions there.
definitions() {
  local module pattern file
  mkdir -p "$2"
  while read -r module pattern; do
    for file in $(go list -m -f '{{.Dir}}' "$module")/$pattern; do
      [ -f "$file" ] || die "$1: $module has no $pattern"
      install -m 644 "$file" "$2/"
    done
  done <"$here/$1/definitions.txt"
}

# build PROGRAM: compiles it, where it is missing.
build() {
  local program=$1 folder part started=$SECONDS
  folder=$(folder "$program")
  [ ! -x "$folder/$program" ] || return 0
  part=$cache/.part.$program
  rm -rf "$part"
  mkdir -p "$part/complete"
  cp -r "$here/$program" "$part/source"
  cd "$part/source"
  say "$program: fetching modules and compiling (minutes; cached packages are skipped)"
  [ ! -f prepare.sh ] || . ./prepare.sh
  go build -trimpath -ldflags "-s -w" -o "$part/complete/$program" tool
  [ ! -f definitions.txt ] || definitions "$program" "$part/complete/definitions"
  rm -rf "$folder"
  mv "$part/complete" "$folder"
  rm -rf "$part"
  say "$program: ready in $((SECONDS - started)) s: $folder"
}

if [ "${1:-}" = --where ]; then folder "${2:?usage: build.sh --where PROGRAM}"; exit; fi

for tool in go flock; do
  command -v "$tool" >/dev/null || die "Go 1.26.8 or later and flock are needed to build these programs ('$tool' is missing)"
done
[ "$(printf '1.26.8\n%s\n' "$(go env GOVERSION | sed 's/^go//')" | sort -V | head -n 1)" = 1.26.8 ] \
  || die "Go 1.26.8 or later is needed to build these programs; 'go version' says $(go env GOVERSION): see https://go.dev/dl"
mkdir -p "$cache"
# Two runs at once wait for each other here instead of compiling everything twice.
exec 9>"$cache/.lock"
flock 9
if [ $# = 0 ]; then
  for module in "$here"/*/go.mod; do
    program=${module%/go.mod}
    set -- "$@" "${program##*/}"
  done
fi
for program in "$@"; do build "$program"; done
