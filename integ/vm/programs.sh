#!/usr/bin/env bash
# Builds the programs of a guest's node from Go modules into a cache folder: kubelet, kube-proxy, containerd (with its
# shim and ctr), runc, the CNI plugins, kube-network-policies, and Kubernetes' pause; and CoreDNS, which runs beside the guests.
# build.sh calls it.
#
#   programs.sh           build what is missing, then print the folder that holds the programs
#   programs.sh --where   only print that folder
#   programs.sh --check   only check that they can be built
#
# The folder's name is a digest of the module files, of this script and of go.sh. Interrupted? Run it again.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../control-plane/go.sh"
containerd_version=2.4.2
pause_version=3.10.2

die() { printf 'vm: %s\n' "$*" >&2; exit 1; }
say() { printf 'vm: %s\n' "$*" >&2; }

cache=${BRUPOP_CACHE:-${XDG_CACHE_HOME:-${HOME:?HOME is not set; set BRUPOP_CACHE}/.cache}/brupop}
key=$(cat "$here"/{kubernetes,containerd,runc,cni,kube-network-policies,coredns}/go.{mod,sum} "$here/coredns/main.go" "$here/../control-plane/go.sh" "${BASH_SOURCE[0]}" | sha256sum | cut -c1-16)
bin=$cache/vm-programs/$key
if [ "${1:-}" = --where ]; then echo "$bin"; exit 0; fi
if [ -e "$bin/done" ]; then [ "${1:-}" = --check ] || echo "$bin"; exit 0; fi

have=$(go env GOVERSION 2>/dev/null | sed 's/^go//')
[ "$(printf '1.26.6\n%s\n' "$have" | sort -V | head -n 1)" = 1.26.6 ] ||
  die "Go 1.26.6 or later is needed to build a node's programs (once, some minutes); this is '${have:-no Go}'. Install it from your distribution or go.dev/dl."
if [ "${1:-}" = --check ]; then exit 0; fi

mkdir -p "$bin"
exec 9>"$bin/.lock"; flock 9
part=$bin/.part
rm -rf "$part"; mkdir -p "$part"

# build MODULE GO-BUILD-ARGUMENTS...: one `go build` of a module's tools. What is whole stays when a later one fails.
build() {
  local module=$1 started=$SECONDS
  shift
  [ ! -e "$bin/$module" ] || return 0
  cd "$here/$module"
  mkdir "$part/$module"
  say "$module: compiling (cached packages are skipped)"
  go build -trimpath -o "$part/$module/" "$@"
  mv "$part/$module" "$bin/$module"
  say "$module: built in $((SECONDS - started)) s"
}

build kubernetes "${kubernetes_flags[@]}" tool
build cni -ldflags "-s -w" tool
build kube-network-policies -ldflags "-s -w" tool
build coredns -ldflags "-s -w" .
CGO_ENABLED=1 build runc -tags=seccomp,netgo,osusergo -ldflags "-s -w -extldflags -static" tool
build containerd -tags=no_btrfs,no_devmapper,no_zfs,no_aufs,no_tracing,urfave_cli_no_docs,static_build \
  -ldflags "-s -w -X github.com/containerd/containerd/v2/version.Version=$containerd_version" tool
source=$(cd "$here/kubernetes" && go list -m -f '{{.Dir}}' k8s.io/kubernetes)/build/pause/linux/pause.c
gcc -Os -static -s -DVERSION="$pause_version" -o "$bin/pause" "$source"
rm -rf "$part"
touch "$bin/done"
echo "$bin"
