#!/usr/bin/env bash
# Builds what the scenarios on real nodes need, and runs them in a network of their own. `make test-vm` calls it, as root.
#
#   test.sh TARGET [TEST]   TARGET is cargo's folder; TEST: only the tests of that name
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$here/../..
target=${1:?usage: test.sh TARGET [TEST]}
cargo=${CARGO:-cargo}
folder=$target/vm

built=$("$here/build.sh")
mkdir -p "$folder"
CARGO_TARGET_DIR=$target "$here/guest.sh"
"$here/initramfs.sh" "$folder/brupop-guest" "$folder/initrd"

# The images that nodes have: those of the programs as they ship, once more as those of a next version, and the workload's.
programs="brupop-agent brupop-apiserver brupop-controller"
"$root/deploy/images/build.sh" "$target/shipped" $programs
cd "$root"
for tag in '' next; do
  "$cargo" run --quiet --locked -p images -- --output "$folder/images$tag" ${tag:+--tag "$tag"} \
    $(printf "$target/shipped/%s " $programs) >/dev/null
done
"$here/data.sh" "$folder/data" "$built/images.tar" "$folder"/images*/*.tar

tests=$("$cargo" test --locked -p integ --test vm --no-run --message-format=json | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1)
export BRUPOP_GUEST=$folder/brupop-guest BRUPOP_COREDNS=$("$here/programs.sh")/coredns/coredns BRUPOP_VM_INITRD=$folder/initrd BRUPOP_VM_DATA=$folder/data
BRUPOP_VM_MEMORY=${BRUPOP_VM_MEMORY:-1536} exec "$here/network.sh" 2 "$tests" --ignored --nocapture --test-threads=1 ${2:+"$2"}
