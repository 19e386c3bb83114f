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

[ -f "$(cc -print-file-name=libc.a)" ] || { echo "make: the static C library is needed: install it (Debian: libc6-dev, Fedora: glibc-static)" >&2; exit 1; }
glibc=$(getconf GNU_LIBC_VERSION)
[ "$(printf '%s\n' "$glibc" "glibc 2.36" | sort -V | head -n 1)" = "glibc 2.36" ] || {
  echo "make: static programs need glibc 2.36 or later (Debian 12, Ubuntu 24.04), and this is $glibc" >&2
  exit 1
}

flags=(
  -C target-feature=+crt-static
  # GNU's linker: LLVM's can only drop all unwind tables.
  -C link-arg=-fuse-ld=bfd
  -C link-arg=-Wl,-T,deploy/images/discard.ld
  # A fraction of the size of ordinary relocations, which keep the addresses of a static program random. glibc reads them since 2.36.
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
