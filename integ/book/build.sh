#!/usr/bin/env bash
# Builds the documentation as a site for browsers: FOLDER/docs, and beside it the files of the repository that pages link to.
# mdBook is installed from its crate into the cache, once.
#
#   build.sh FOLDER    build the site in FOLDER, which is replaced
#
#   BRUPOP_CACHE       where to keep mdBook   (default: $XDG_CACHE_HOME/brupop or ~/.cache/brupop)
#   BRUPOP_MDBOOK      an mdBook to use instead; nothing is installed then
set -euo pipefail

version=0.5.4
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
site=$1
die() { printf 'docs: %s\n' "$*" >&2; exit 1; }
say() { printf 'docs: %s\n' "$*" >&2; }

cache=${BRUPOP_CACHE:-${XDG_CACHE_HOME:-${HOME:?HOME is not set; set BRUPOP_CACHE}/.cache}/brupop}
mdbook=${BRUPOP_MDBOOK:-$cache/mdbook/$version/bin/mdbook}
if ! [ -x "$mdbook" ]; then
  [ -z "${BRUPOP_MDBOOK:-}" ] || die "BRUPOP_MDBOOK=$BRUPOP_MDBOOK is no program"
  mkdir -p "$cache/mdbook"
  # Two runs at once wait for each other here instead of compiling everything twice.
  if command -v flock >/dev/null; then exec 9>"$cache/mdbook/.lock"; flock 9; fi
fi
if ! [ -x "$mdbook" ]; then
  say "installing mdBook $version (once, one or two minutes)"
  # A folder of its own, without what the present build has set, by the toolchain of the repository. Search is the only feature
  # that a site without a server needs. A small book is built in seconds without optimization, which would take longer.
  build=$(mktemp -d "$cache/mdbook/.build.XXXXXX")
  trap 'rm -rf "$build"' EXIT
  (cd "$root" && env -u CARGO_TARGET_DIR -u RUSTFLAGS -u RUSTC_WORKSPACE_WRAPPER "${CARGO:-cargo}" install mdbook --version "$version" --locked --debug --no-default-features \
    --features search --root "$build/root" --target-dir "$build/target" --quiet) || die "mdBook $version cannot be installed: see the error above"
  mkdir -p "$cache/mdbook/$version/bin"
  mv "$build/root/bin/mdbook" "$mdbook"
fi

rm -rf "$site"
mkdir -p "$site/deploy"
"$mdbook" build "$root/docs" --dest-dir "$site/docs" 2>"$site/mdbook.log" || die "the book cannot be built: $(cat "$site/mdbook.log")"
! grep -E 'WARN|ERROR' "$site/mdbook.log" >&2 || die "mdBook warns: see above"
cp -R "$root/deploy/manifests" "$site/deploy/manifests"
cp -R "$root/examples" "$site/examples"
