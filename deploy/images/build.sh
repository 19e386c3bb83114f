#!/usr/bin/env bash
# Builds programs as they ship: static, small, and with no path of this machine in them.
#
#   build.sh FOLDER PROGRAM...    the programs, such as brupop-agent, are written to FOLDER
#
#   ARCH    their architecture, amd64 or arm64   (default: that of this machine)
set -euo pipefail

die() { printf 'make: %s\n' "$*" >&2; exit 1; }
absolute() { case $1 in /*) printf '%s' "$1" ;; *) printf '%s' "$PWD/$1" ;; esac; }

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
folder=$(absolute "${1:?usage: build.sh FOLDER PROGRAM...}")
shift
# Set for cargo too: its configuration can name another folder, and relative ones would depend on the working directory.
CARGO_TARGET_DIR=$(absolute "${CARGO_TARGET_DIR:-$root/target}")
CARGO_HOME=$(absolute "${CARGO_HOME:-$HOME/.cargo}")
# Incremental programs have other bytes.
export CARGO_TARGET_DIR CARGO_HOME CARGO_INCREMENTAL=0
# A check of the sources is not for what ships.
unset RUSTC_WORKSPACE_WRAPPER
cd "$root"
cargo=${CARGO:-cargo}
rustc=${RUSTC:-rustc}
host=$("$rustc" -vV | sed -n 's/^host: //p')

# Named even where it is the host: the flags are then not those of build scripts and macros, which cannot be static.
case ${ARCH:-$host} in
  amd64 | x86_64) triple=x86_64-unknown-linux-gnu ;;
  arm64 | aarch64) triple=aarch64-unknown-linux-gnu ;;
  "$host") triple=${host/musl/gnu} ;;
  *) die "ARCH is amd64 or arm64, and not '$ARCH'" ;;
esac
cc=cc
if [ "${triple%%-*}" != "${host%%-*}" ]; then
  cc=${triple%%-*}-linux-gnu-gcc
  command -v "$cc" >/dev/null || die "$cc is needed: install it with its static C library (Debian, for arm64: gcc-aarch64-linux-gnu and libc6-dev-arm64-cross)"
fi
# Asked of the compiler: getconf reports on this machine, which may have another C library than the programs.
glibc=$(printf '#include <features.h>\nglibc __GLIBC__.__GLIBC_MINOR__\n' | "$cc" -E -P - 2>/dev/null | sed -nE 's/^glibc ([0-9]+) *[.] *([0-9]+)$/\1.\2/p') || true
[ -n "$glibc" ] || die "the programs are linked with glibc, and $cc has another C library or no headers: build on Debian 12, Ubuntu 24.04 or later with libc6-dev, or on Fedora with glibc-static"
[ "$(printf '%s\n' "$glibc" 2.36 | sort -V | head -n 1)" = 2.36 ] || die "static programs need glibc 2.36 or later (Debian 12, Ubuntu 24.04), and this is $glibc"
[ -f "$("$cc" -print-file-name=libc.a)" ] || die "the static C library is needed: install it (Debian: libc6-dev, Fedora: glibc-static)"
"$cc" -fuse-ld=bfd -Wl,--version >/dev/null 2>&1 || die "GNU's linker ld.bfd is needed: install binutils"
[ -d "$("$rustc" --print target-libdir --target "$triple")" ] || die "the Rust standard library for $triple is needed: rustup target add $triple"

flags=(
  -C target-feature=+crt-static
  -C "linker=$cc"
  # GNU's linker: LLVM's can only drop all unwind tables.
  -C link-arg=-fuse-ld=bfd
  -C link-arg=-Wl,-T,deploy/images/discard.ld
)
# A fraction of the size of ordinary relocations, which keep the addresses of a static program random. glibc reads them since 2.36.
if "$cc" -fuse-ld=bfd -Wl,--help | grep pack-relative-relocs >/dev/null; then
  flags+=(-C link-arg=-Wl,-z,pack-relative-relocs)
elif [ "${triple%%-*}" = x86_64 ]; then
  die "GNU's linker of binutils 2.38 or later is needed, and this is $("$cc" -fuse-ld=bfd -Wl,--version 2>/dev/null | head -n 1)"
fi
# The sources of the standard library are there if the component rust-src is. Without it, the paths are as here.
std=$("$rustc" --print sysroot)/lib/rustlib/src/rust
names=(
  "$CARGO_HOME"$'\t'/cargo "$root"$'\t'/brupop "$CARGO_TARGET_DIR"$'\t'/target
  "$(readlink "$std" || echo "$std")"$'\t'"/rustc/$("$rustc" -vV | sed -n 's/^commit-hash: //p')"
)
# Sorted, so that a folder follows the folder that it is in: rustc takes the last name that fits.
while IFS=$'\t' read -r path name; do flags+=("--remap-path-prefix=$path=$name"); done < <(printf '%s\n' "${names[@]}" | LC_ALL=C sort)
CARGO_ENCODED_RUSTFLAGS=$(IFS=$'\x1f'; printf '%s' "${flags[*]}")
export CARGO_ENCODED_RUSTFLAGS

mkdir -p "$folder"
for program in "$@"; do
  # Each by itself: built together, one would be compiled with the features that another asks of a shared crate, and grow.
  package=${program#brupop-}
  "$cargo" build --release --locked --target "$triple" -p "${package/kubectl-brupop/cli}" --bin "$program"
  cp -f "$CARGO_TARGET_DIR/$triple/release/$program" "$folder/"
done
