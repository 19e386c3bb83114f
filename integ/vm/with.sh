#!/usr/bin/env bash
# Builds what virtual machines of the tests need, and runs a command in a network for so many of them. As root.
#
#   with.sh TARGET NODES COMMAND…   TARGET is cargo's folder
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
export CARGO_TARGET_DIR=${1:?usage: with.sh TARGET NODES COMMAND…}
target=$CARGO_TARGET_DIR nodes=${2:?usage: with.sh TARGET NODES COMMAND…}
shift 2
cargo=${CARGO:-cargo}
folder=$target/vm

built=$("$here/build.sh")
mkdir -p "$folder"
"$here/guest.sh"
"$here/initramfs.sh" "$folder/brupop-guest" "$folder/initrd"

# The images that nodes have: those of the programs as they ship, once more as those of a next version, and the workload's.
programs=(brupop-agent brupop-apiserver brupop-controller)
"$root/deploy/images/build.sh" "$target/shipped" "${programs[@]}"
for tag in '' next; do
  (cd "$root" && TAG=$tag REGISTRY= "$cargo" run --quiet --locked -p images -- --output "$folder/images$tag" \
    "${programs[@]/#/$target/shipped/}") >/dev/null
done
"$here/data.sh" "$folder/data" "$built/images.tar" "$folder"/images*/*.tar

export BRUPOP_GUEST=$folder/brupop-guest BRUPOP_COREDNS=$("$here/programs.sh")/coredns/coredns
export BRUPOP_VM_INITRD=$folder/initrd BRUPOP_VM_DATA=$folder/data BRUPOP_VM_MEMORY=${BRUPOP_VM_MEMORY:-1536}
exec "$here/network.sh" "$nodes" "$@"
