#!/usr/bin/env bash
# Writes programs as OCI images, and tests them.
#
#   images.sh PROGRAM...          builds the programs as they ship, and writes their images to images/ in cargo's folder
#   images.sh --test PROGRAM...   checks those images, starts each program in nothing but its image, and updates nodes with them
#   images.sh --foreign           prints the architecture if this machine does not run it, and nothing otherwise
#
#   ARCH                    amd64 or arm64           (default: that of this machine)
#   REGISTRY TAG REVISION   of the images, if set
#   CARGO_TARGET_DIR        cargo's folder
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

cargo=${CARGO:-cargo}
foreign=$(sed 's/x86_64/amd64/; s/aarch64/arm64/' <<<"${ARCH:-}")
[ "$foreign" != "$(uname -m | sed 's/x86_64/amd64/; s/aarch64/arm64/')" ] || foreign=
[ "${1:-}" != --foreign ] || { echo "$foreign"; exit 0; }

target=${CARGO_TARGET_DIR:?is not set}
# Programs of another architecture have a folder of their own.
packed=$target/shipped${foreign:+-$foreign}

case ${1:-} in
--test)
  shift
  BRUPOP_IMAGES=$target/images "$cargo" test --locked -p images
  [ -z "$foreign" ] || { echo "make: no node was updated: this machine does not run programs for $ARCH"; exit 0; }
  # The variables by which the demo runs the packed programs.
  programs=()
  for program in "$@"; do
    [[ $program != brupop-* ]] || programs+=("$(tr a-z- A-Z_ <<<"$program")_BIN=$packed/$program")
  done
  [ "${#programs[@]}" != 0 ] || { echo "make: no node was updated: the plugin updates none"; exit 0; }
  env "${programs[@]}" "$target/debug/brupop-demo"
  ;;
*)
  pack=("$cargo" run --quiet --locked -p images --)
  "${pack[@]}" --check
  deploy/images/build.sh "$packed" "$@"
  "${pack[@]}" --output "$target/images" "${@/#/$packed/}"
  ;;
esac
