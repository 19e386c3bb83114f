#!/usr/bin/env bash
# Makes a guest's data disk (ext4, /var) with container images in it, pause among them. As root. The images are imported here, by a
# containerd on this machine: in a guest it would take a minute for each.
#
#   data.sh OUT [ARCHIVE…]   OUT is a sparse file of 4 GiB; an ARCHIVE is an OCI layout in a tar, whose index names the
#                            image by the annotation io.containerd.image.name
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${1:?usage: data.sh OUT [ARCHIVE…]}
shift
bin=$("$here/programs.sh" --where)/containerd
images=${BRUPOP_VM_IMAGES:-$("$here/build.sh")}
folder=$(mktemp -d)
containerd=
cleanup() {
  [ -z "$containerd" ] || { kill "$containerd" 2>/dev/null || true; wait "$containerd" 2>/dev/null || true; }
  rm -rf "$folder"
}
trap cleanup EXIT

mkdir "$folder/var"
tar -xf "$images/var.tar" -C "$folder/var"
cat >"$folder/config.toml" <<EOF
version = 3
root = "$folder/var/lib/containerd"
state = "$folder/state"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime"]
[grpc]
  address = "$folder/containerd.sock"
EOF
"$bin/containerd" --config "$folder/config.toml" >"$folder/log" 2>&1 &
containerd=$!
for _ in $(seq 100); do [ ! -S "$folder/containerd.sock" ] || break; sleep 0.1; done
for archive in "$images/images.tar" "$@"; do
  "$bin/ctr" --address "$folder/containerd.sock" -n k8s.io images import --local "$archive" >>"$folder/log" 2>&1 ||
    { tail -n 20 "$folder/log" >&2; echo "vm: $archive cannot be imported" >&2; exit 1; }
done
kill "$containerd"; wait "$containerd" || true
containerd=
rm -f "$out.part"
mkfs.ext4 -q -m 0 -J size=8 -d "$folder/var" "$out.part" 4G >/dev/null
mv "$out.part" "$out"
