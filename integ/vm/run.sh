#!/usr/bin/env bash
# Runs one guest in the foreground, inside network.sh. To end this process is to pull its power cord; a guest that
# restarts stays in the same process.
#
#   run.sh N FOLDER [QEMU-ARGUMENT…]   node N of network.sh, with its disks in FOLDER
#
# FOLDER holds one file for each disk, named as its serial. The caller writes:
#   initrd   the output of initramfs.sh (no disk)
#   flags    the output of `brupop-guest init --flags FILE --version 1.20.0`
#   seed     a tar that is unpacked to /etc at each boot (its size stays the same while the guest runs):
#            node.env: NODE, its name; ADDRESS; GATEWAY; LABELS, of the Node; ROUTES to other nodes' pods,
#              "10.244.2.0/24=10.99.0.12 …"; SEED, the place in the waves (optional)
#            kubernetes/{ca.crt,kubelet.kubeconfig,kube-proxy.kubeconfig}
#            cni/net.d/10-bridge.conflist: a bridge that is the gateway, without masquerade, with host-local addresses
# and run.sh makes what is missing of:
#   root-a   the system that runs at first, 1.20.0
#   root-b   room for another system
#   data     /var: made from data.img, or by data.sh with images in it
# The disk `releases` is shared by all guests: the images that updates write.
#
# In FOLDER the guest leaves console.log (all boots, one after the other) and monitor (QEMU's, a socket).
#
#   BRUPOP_VM_MEMORY  MiB of a guest (default: 1024)
#   BRUPOP_VM_KVM=1   use KVM instead of emulation. Not by default: in a virtual machine, KVM can be there and not work
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
n=${1:?usage: run.sh N FOLDER [QEMU-ARGUMENT…]} folder=${2:?usage: run.sh N FOLDER [QEMU-ARGUMENT…]}
shift 2
images=$("$here/build.sh")
cd "$folder"
[ -e root-a ] || { cp --sparse=always "$images/1.20.0.img" .root-a; truncate -s 512M .root-a; mv .root-a root-a; }
[ -e root-b ] || truncate -s 512M root-b
[ -e data ] || { cp --sparse=always "$images/data.img" .data; mv .data data; }

accelerator="-accel tcg,thread=multi,tb-size=256 -cpu Westmere"
[ "${BRUPOP_VM_KVM:-0}" = 0 ] || accelerator="-accel kvm -cpu host"
disks=()
disk() { # SERIAL FILE [OPTION]
  disks+=(-drive "id=$1,if=none,format=raw,cache=unsafe,file=$2${3:+,$3}" -device "virtio-blk-pci,drive=$1,serial=$1")
}
disk root-a root-a
disk root-b root-b
disk data data
disk flags flags
disk seed seed readonly=on
disk releases "$images/releases.img" readonly=on

: >>console.log
# shellcheck disable=SC2086 # the accelerator is several arguments
exec qemu-system-x86_64 -machine q35,hpet=off $accelerator -smp 2 -m "${BRUPOP_VM_MEMORY:-1024}" \
  -nodefaults -no-user-config -display none -chardev file,id=console,path=console.log,append=on -serial chardev:console \
  -monitor unix:monitor,server,nowait -kernel "$images/vmlinuz" -initrd initrd \
  -append "console=ttyS0 quiet loglevel=4 panic=-1 net.ifnames=0 systemd.show_status=0 systemd.unified_cgroup_hierarchy=1 mitigations=off security=selinux selinux=1" \
  "${disks[@]}" -device virtio-rng-pci -netdev "tap,id=net,ifname=tap$n,script=no,downscript=no" \
  -device "virtio-net-pci,netdev=net,mac=52:54:00:00:00:$(printf %02x "$n")" "$@"
