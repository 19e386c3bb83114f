#!/usr/bin/env bash
# Checks that tools are there, with one clear error for the first that is missing, before anything else is tried.
#
#   tools.sh rust | lint | go | npm | deny | mutants | disk ...
#
#   CARGO_TARGET_DIR   cargo's folder, for disk
set -euo pipefail

cargo=${CARGO:-cargo}
die() { printf 'make: %s\n' "$*" >&2; exit 1; }
# What cargo writes for all programs and tests in GB, with its incremental builds.
disk=12
there() { command -v "$1" >/dev/null; }

for tool in "$@"; do
  case $tool in
  rust)
    there "$cargo" || die "Rust is needed: install it with rustup (https://rustup.rs)"
    there cc || die "a C compiler is needed for the TLS library: install gcc or clang (Debian: apt-get install build-essential)"
    ;;
  lint)
    for part in fmt clippy; do
      "$cargo" $part --version >/dev/null 2>&1 || die "cargo $part is needed: rustup component add rustfmt clippy"
    done
    python3 -c 'import sys, tomllib, venv' 2>/dev/null \
      || die "Python 3.11 or later with venv is needed (Debian: apt-get install python3-venv)"
    ;;
  go)
    [ -n "${KUBEBUILDER_ASSETS:-}" ] || there go || die "Go 1.26 or later is needed to build the control plane (https://go.dev/dl), or set KUBEBUILDER_ASSETS to a folder with etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kubectl"
    ;;
  npm) there npm || die "Node.js 20 or later with npm is needed for the browser test (https://nodejs.org)" ;;
  deny) there cargo-deny || die "cargo-deny is needed: cargo install --locked cargo-deny" ;;
  mutants) there cargo-mutants || die "cargo-mutants is needed: cargo install --locked cargo-mutants" ;;
  disk)
    target=${CARGO_TARGET_DIR:-target}
    mkdir -p "$target"
    free=$(($(df -Pk "$target" | awk 'NR == 2 { print $4 }') + $(du -sk "$target" | cut -f1)))
    [ "$free" -ge $((disk * 1000000)) ] \
      || die "$disk GB of disk are needed for $target, and $((free / 1000000)) GB are free: delete the build folders of other checkouts (cargo clean)"
    ;;
  *) die "tools.sh knows no tool '$tool'" ;;
  esac
done
