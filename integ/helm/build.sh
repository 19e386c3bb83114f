#!/usr/bin/env bash
# Builds Helm, with which the tests check the charts, from its Go module into a cache folder.
#
#   build.sh           build what is missing, then print the path of helm
#   build.sh --where   only print that path
#
# The folder's name is a digest of the module files, of this script and of go.sh, so a changed version never meets an old binary.
#
#   BRUPOP_CACHE   where to keep the binary   (default: $XDG_CACHE_HOME/brupop or ~/.cache/brupop)
#   BRUPOP_HELM    another helm; it is used as it is and nothing is built
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../control-plane/go.sh"

die() { printf 'helm: %s\n' "$*" >&2; exit 1; }
say() { printf 'helm: %s\n' "$*" >&2; }

if [ -n "${BRUPOP_HELM:-}" ]; then
  [ -x "$BRUPOP_HELM" ] || die "BRUPOP_HELM=$BRUPOP_HELM is no program. Unset the variable to have helm built."
  echo "$BRUPOP_HELM"
  exit 0
fi

cache=${BRUPOP_CACHE:-${XDG_CACHE_HOME:-${HOME:?HOME is not set; set BRUPOP_CACHE}/.cache}/brupop}
key=$(cat "$here/go.mod" "$here/go.sum" "$here/../control-plane/go.sh" "${BASH_SOURCE[0]}" | sha256sum | cut -c1-16)
bin=$cache/helm/$key
if [ "${1:-}" = --where ] || [ -x "$bin/helm" ]; then echo "$bin/helm"; exit 0; fi

have=$(go env GOVERSION 2>/dev/null | sed 's/^go//')
[ "$(printf '1.26\n%s\n' "$have" | sort -V | head -n 1)" = 1.26 ] ||
  die "Go 1.26 or later is needed to build helm (once, some minutes); this is '${have:-no Go}'. Install it from your distribution or go.dev/dl, or set BRUPOP_HELM to the path of a helm."

mkdir -p "$bin"
if command -v flock >/dev/null; then exec 9>"$bin/.lock"; flock 9; fi
if [ ! -x "$bin/helm" ]; then
  started=$SECONDS part=$bin/.part.$$
  trap 'rm -rf "$part"' EXIT
  mkdir -p "$part"
  cd "$here"
  version=$(go list -m -f '{{.Version}}' helm.sh/helm/v4)
  say "Helm $version: compiling (cached packages are skipped)"
  # With -mod=readonly the sums of the modules are verified; the version is what `helm version` shows.
  go build -trimpath -ldflags "-s -w -X helm.sh/helm/v4/internal/version.version=$version" -o "$part/" tool
  mv "$part/helm" "$bin/helm"
  say "ready in $((SECONDS - started)) s: $bin/helm"
fi
echo "$bin/helm"
