#!/usr/bin/env bash
# Builds the agent, the web API and the controller of a stand-in for the next version, for the tests that mix two
# versions: the sources as they are, changed by next.patch (`git apply` explains where it no longer fits).
#
#   build.sh FOLDER    the programs are written to FOLDER, and those of the present version stay where they are
#
#   CARGO_TARGET_DIR   the folder of the other builds, whose dependencies are used
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
folder=${1:?usage: build.sh FOLDER}
programs="brupop-agent brupop-apiserver brupop-controller"
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)

fresh=$(mktemp -d "$folder/.fresh.XXXXXX")
trap 'rm -rf "$fresh"' EXIT
cd "$root"
tar -cf - Cargo.toml Cargo.lock models watches ports planner agent apiserver aws controller cli deploy integ | tar -xf - -C "$fresh"
git init -q "$fresh" # `git apply` changes nothing in a folder that another repository ignores.
git -C "$fresh" apply "$here/next.patch" || {
  echo "make: integ/next/next.patch does not fit the sources any more: mend it (docs/testing.md, Two versions at a time)" >&2
  exit 1
}
rm -rf "$fresh/.git"
# Another version is another package to cargo: its outputs stand beside those of the present one. No plan of these programs is large.
sed -i -e 's/^version = ".*"$/version = "0.2.0"/' -e 's/^models = { opt-level = 0 }$/&\nplanner = { opt-level = 0 }/' "$fresh/Cargo.toml"
# Packages that are no part of the programs stay, and are empty: without them, others would be built with fewer features, once more.
for package in aws cli deploy deploy/images integ integ/guest; do
  [ ! -e "$fresh/$package/src/lib.rs" ] || echo '//! Empty.' >"$fresh/$package/src/lib.rs"
  [ ! -e "$fresh/$package/src/main.rs" ] || printf '//! Empty.\nfn main() {}\n' >"$fresh/$package/src/main.rs"
done
${CARGO:-cargo} update --workspace --offline --quiet --manifest-path "$fresh/Cargo.toml"

# A file that is the same keeps its time, so that only the changed ones are compiled.
source=$folder/source
mkdir -p "$source"
(cd "$source" && find . -type f) | while read -r file; do [ -e "$fresh/$file" ] || rm -f "$source/$file"; done
(cd "$fresh" && find . -type f) | while read -r file; do
  cmp -s "$fresh/$file" "$source/$file" || { mkdir -p "$source/$(dirname "$file")"; cp "$fresh/$file" "$source/$file"; }
done

# Intermediate files are in the folder of the other builds, and programs in one of their own.
CARGO_BUILD_BUILD_DIR=${CARGO_TARGET_DIR:-$root/target} CARGO_TARGET_DIR=$folder/out \
  ${CARGO:-cargo} build --workspace --locked --bins --manifest-path "$source/Cargo.toml"
for program in $programs; do cp -f "$folder/out/debug/$program" "$folder/"; done
