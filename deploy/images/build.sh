#!/usr/bin/env bash
# Builds programs as they ship: static, small, and with no path of this machine in them.
#
#   build.sh FOLDER PROGRAM...    the programs, such as brupop-agent, are written to FOLDER
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
folder=${1:?usage: build.sh FOLDER PROGRAM...}
shift
cargo=${CARGO:-cargo}
target=${CARGO_TARGET_DIR:-$root/target}
# Named even where it is the host: the flags are then not those of build scripts and macros, which cannot be static.
triple=$("$cargo" -vV | sed -n 's/^host: //p')

flags=(
  -C target-feature=+crt-static
  # GNU's linker: LLVM's can only drop all unwind tables.
  -C link-arg=-fuse-ld=bfd
  -C link-arg=-Wl,-T,deploy/images/discard.ld
  # A tenth of the size of ordinary relocations. Static programs stay relocatable, so addresses are random.
  -C link-arg=-Wl,-z,pack-relative-relocs
  "--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo"
  "--remap-path-prefix=$root=/brupop"
  "--remap-path-prefix=$target=/target"
)
CARGO_ENCODED_RUSTFLAGS=$(IFS=$'\x1f'; printf '%s' "${flags[*]}")
export CARGO_ENCODED_RUSTFLAGS

mkdir -p "$folder"
cd "$root"
for program in "$@"; do
  # Each by itself: built together, one would be compiled with the features that another asks of a shared crate, and grow.
  package=${program#brupop-}
  "$cargo" build --release --locked --target "$triple" -p "${package/kubectl-brupop/cli}" --bin "$program"
  cp -f "$target/$triple/release/$program" "$folder/"
done
