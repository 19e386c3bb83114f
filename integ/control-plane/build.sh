#!/usr/bin/env bash
# Builds the control plane that the tests and the demo run on, from Go modules and nothing else, into a cache folder:
# etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kubectl.
#
#   build.sh           build what is missing, then print the folder that holds the binaries
#   build.sh --where   only print that folder
#
# The folder's name is a digest of the module files, of this script and of go.sh, so a changed version never meets an old binary.
# Interrupted? Run it again: Go keeps every package that was compiled, and a binary appears only when it is whole.
#
#   BRUPOP_CACHE        where to keep the binaries   (default: $XDG_CACHE_HOME/brupop or ~/.cache/brupop)
#   KUBEBUILDER_ASSETS  a folder that has the binaries already; it is used as it is and nothing is built
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/go.sh"
needed="etcd kube-apiserver kube-controller-manager kube-scheduler kubectl"

die() { printf 'control-plane: %s\n' "$*" >&2; exit 1; }
say() { printf 'control-plane: %s\n' "$*" >&2; }

if [ -n "${KUBEBUILDER_ASSETS:-}" ]; then
  missing=""
  for b in $needed; do [ -x "$KUBEBUILDER_ASSETS/$b" ] || missing="$missing $b"; done
  [ -z "$missing" ] || die "KUBEBUILDER_ASSETS=$KUBEBUILDER_ASSETS lacks:$missing. Put them there, or unset the variable to have them built."
  echo "$KUBEBUILDER_ASSETS"
  exit 0
fi

cache=${BRUPOP_CACHE:-${XDG_CACHE_HOME:-${HOME:?HOME is not set; set BRUPOP_CACHE}/.cache}/brupop}
key=$(cat "$here"/kubernetes/go.mod "$here"/kubernetes/go.sum "$here"/etcd/go.mod "$here"/etcd/go.sum \
  "$here/go.sh" "${BASH_SOURCE[0]}" | sha256sum | cut -c1-16)
bin=$cache/control-plane/$key
if [ "${1:-}" = --where ]; then echo "$bin"; exit 0; fi

missing=""
for b in $needed; do [ -x "$bin/$b" ] || missing="$missing $b"; done
if [ -z "$missing" ]; then echo "$bin"; exit 0; fi

command -v go >/dev/null || die "Go 1.26 or later is needed to build the control plane (once, under 6 minutes): install it from your distribution or go.dev/dl, or set KUBEBUILDER_ASSETS to a folder with:$missing"
have=$(go env GOVERSION | sed 's/^go//')
case "$(printf '1.26\n%s\n' "$have" | sort -V | head -n 1)" in
  1.26) ;;
  *) die "Go 1.26 or later is needed to build the control plane; 'go version' says $have. Install a newer one, or set KUBEBUILDER_ASSETS to a folder with:$missing" ;;
esac

mkdir -p "$bin"
# Two runs at once (tests and demo, say) wait for each other here instead of compiling everything twice.
if command -v flock >/dev/null; then exec 9>"$bin/.lock"; flock 9; fi
part=$bin/.part.$$
trap 'rm -rf "$part"' EXIT
mkdir -p "$part"

# build MODULE "WHAT" GO-BUILD-ARGUMENTS...: one `go build`, its progress shown as packages compiled so far.
build() {
  local module=$1 what=$2 total
  shift 2
  cd "$here/$module"
  say "$what: fetching modules"
  total=$(go list -deps tool | wc -l)
  say "$what: compiling up to $total packages (cached ones are skipped)"
  go build -v -trimpath -o "$part/" "$@" 2>&1 | awk -v what="$what" -v total="$total" '
    /^[a-z0-9.-]+(\/[A-Za-z0-9._~-]+)*$/ { n++; if (n % 250 == 0) { printf "control-plane: %s: %d of at most %d packages\n", what, n, total; fflush() } next }
    /^go: downloading/ { next }
    { print; fflush() }' >&2
}

all_there() { for b in "$@"; do [ -x "$bin/$b" ] || return 1; done; }

started=$SECONDS
if ! all_there etcd; then
  # Most of the modules come while etcd is compiled. What fails here fails again, and is told, when it is needed.
  (cd "$here/kubernetes" && go list -deps tool >/dev/null 2>&1) 9>&- &
  build etcd etcd -ldflags "-s -w" go.etcd.io/etcd/server/v3
  mv "$part/server" "$bin/etcd"
fi
if ! all_there kube-apiserver kube-controller-manager kube-scheduler kubectl; then
  build kubernetes "Kubernetes $kubernetes_version" "${kubernetes_flags[@]}" tool
  for b in kube-apiserver kube-controller-manager kube-scheduler kubectl; do mv "$part/$b" "$bin/$b"; done
fi
say "ready in $((SECONDS - started)) s: $bin"
echo "$bin"
