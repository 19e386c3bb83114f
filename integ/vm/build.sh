#!/usr/bin/env bash
# Builds a guest of `make test-vm` into a cache folder: real nodes (kernel, systemd, containerd, kubelet) in QEMU, with
# two root sets like Bottlerocket's. From Go modules and Debian packages; once, about ten minutes. As root.
#
#   build.sh           build what is missing, then print the folder of the images
#   build.sh --where   only print that folder
#   build.sh --check   only check that it can be built and run here
#
# In the folder:
#   vmlinuz, initrd   kernel and initramfs; initramfs.sh adds the guest's program
#   1.20.0.img        the root set that a node runs at first: ext4 without journal
#   releases.img      ext4 with the images that updates write: 1.20.5.img, alike but for /usr/lib/os-release, and
#                     1.20.6.img, which has no init: the kernel panics and the machine restarts
#   data.img          an empty data disk (ext4, /var) with the images of pause and kube-network-policies; data.sh makes others
#                     from var.tar and images.tar
# The folder's name is a digest of all that goes into it. Interrupted? Run it again.
#
# A guest, as init, root/ and run.sh make it. Disks are known by their serials, in the guest /run/disks/SERIAL:
#   /                  root-a or root-b, read-only, as /bin/brupop-guest boot --flags DISK prints A or B
#   /etc               the root set's, with the tar on `seed` over it, in memory: changes are gone after a reboot
#   /var               `data`
#   /run/brupop-guest  the guest's program; units: host-api.service (serve), mark-successful-boot.service
#   /run/repository    `releases`, read-only; an image is offered once /var/lib/releases has a link to it
#
#   BRUPOP_CACHE   where to keep everything   (default: $XDG_CACHE_HOME/brupop or ~/.cache/brupop)
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
first=1.20.0
updated=1.20.5
broken=1.20.6
variant=aws-k8s-1.37

cache=${BRUPOP_CACHE:-${XDG_CACHE_HOME:-${HOME:?HOME is not set; set BRUPOP_CACHE}/.cache}/brupop}
key=$(cd "$here" && { ./programs.sh --where | sed 's#.*/##'; ./debian.sh --where | sed 's#.*/##'
  tar --sort=name --mtime=@0 --owner=0 --group=0 --mode=a-w,a+rX -cf - build.sh data.sh init root selinux.cil; } | sha256sum | cut -c1-16)
images=$cache/vm/$key
if [ "${1:-}" = --where ]; then echo "$images"; exit 0; fi

[ "$(id -u)" = 0 ] || { echo "vm: a guest is built and run as root (mmdebstrap, network namespaces): docs/testing.md has the command" >&2; exit 1; }
[ "$(uname -m)" = x86_64 ] || { echo "vm: a guest is built and run on x86_64, and this is $(uname -m)" >&2; exit 1; }
missing=
need() { [ -n "$2" ] || missing="$missing $1"; }
have() { command -v "$1" || true; }
need qemu-system-x86 "$(have qemu-system-x86_64)"
need mmdebstrap "$(have mmdebstrap)"
need debian-archive-keyring "$(ls /usr/share/keyrings/debian-archive-keyring.gpg 2>/dev/null)"
need gcc "$(have gcc)"
need pkg-config "$(have pkg-config)"
need libseccomp-dev "$(ls /usr/include/seccomp.h 2>/dev/null)"
need cpio "$(have cpio)"
need e2fsprogs "$(have mkfs.ext4)"
need iproute2 "$(have ip)"
need util-linux "$(have unshare)"
need secilc "$(have secilc)"
[ -z "$missing" ] || { echo "vm: a guest needs more packages: apt-get install --no-install-recommends$missing" >&2; exit 1; }
"$here/programs.sh" --check
if [ "${1:-}" = --check ]; then exit 0; fi
if [ -e "$images/done" ]; then echo "$images"; exit 0; fi

bin=$("$here/programs.sh")
debian=$("$here/debian.sh")
mkdir -p "$images"
exec 9>"$images/.lock"; flock 9
started=$SECONDS
part=$images/.part
rm -rf "$part"; mkdir -p "$part/root"
root=$part/root

tar -xf "$debian/userland.tar" -C "$root" --exclude='./dev/*'
rm -rf "$root"/var/lib/{apt,dpkg} "$root"/var/cache/* "$root"/usr/bin/perl* "$root"/usr/lib/x86_64-linux-gnu/perl-base

# The kernel with the modules that a node needs, and what these need.
dpkg-deb -x "$debian/kernel.deb" "$part/kernel"
cp "$part"/kernel/boot/vmlinuz-* "$part/vmlinuz"
release=$(ls "$part/kernel/lib/modules")
for folder in net lib crypto arch drivers/virtio drivers/block drivers/net/veth.ko drivers/net/virtio_net.ko \
  drivers/net/net_failover.ko drivers/char/hw_random fs/overlayfs; do
  mkdir -p "$root/usr/lib/modules/$release/kernel/$(dirname "$folder")"
  cp -a "$part/kernel/lib/modules/$release/kernel/$folder" "$root/usr/lib/modules/$release/kernel/$(dirname "$folder")/"
done
cp "$part/kernel/lib/modules/$release"/modules.{builtin,builtin.modinfo,order} "$root/usr/lib/modules/$release/"
chroot "$root" depmod "$release"

mkdir -p "$root/opt/bin" "$root/opt/cni/bin"
cp "$bin"/kubernetes/* "$bin"/containerd/containerd* "$bin"/runc/* "$root/opt/bin/"
cp "$bin"/cni/* "$root/opt/cni/bin/"
cp -r --preserve=mode "$here/root/." "$root/"
echo api:x:274: >>"$root/etc/group"
: >"$root/etc/resolv.conf"
: >"$root/etc/machine-id"
{ # A range is of categories that are declared, one by one.
  printf '(category c%s)\n' $(seq 0 1023)
  printf '(categoryorder (%s))\n(sensitivitycategory s0 (range c0 c1023))\n' "$(seq -f c%g -s ' ' 0 1023)"
} >"$part/categories.cil"
mkdir -p "$root"/etc/selinux/guest/{policy,contexts/files}
secilc -c 33 -o "$root/etc/selinux/guest/policy/policy.33" -f "$root/etc/selinux/guest/contexts/files/file_contexts" \
  "$here/selinux.cil" "$part/categories.cil"
unit() { ln -sf /dev/null "$root/etc/systemd/system/$1"; }
# Each of these costs a second or more of an emulated boot, and a node has no use for it.
for masked in modprobe@{configfs,dm_mod,drm,efi_pstore,fuse,loop}.service kmod-static-nodes.service getty.target \
  ldconfig.service systemd-{sysusers,modules-load,random-seed,tmpfiles-setup-dev,user-sessions,firstboot}.service \
  systemd-{remount-fs,update-utmp,update-utmp-runlevel,pstore,hwdb-update,journal-catalog-update}.service \
  e2scrub_reap.service {apt-daily,apt-daily-upgrade,dpkg-db-backup,e2scrub_all,fstrim}.timer; do
  unit "$masked"
done
chroot "$root" systemctl --quiet set-default multi-user.target
chroot "$root" systemctl --quiet enable network containerd kubelet kube-proxy host-api mark-successful-boot shell

# The initramfs: busybox, the modules that lead to the disks and to the network, and init.
initrd=$part/initrd.d
mkdir -p "$initrd"/{bin,dev,modules,new,proc,run,sys}
cp "$root/bin/busybox" "$initrd/bin/"
for applet in $(chroot "$root" /bin/busybox --list); do [ "$applet" = busybox ] || ln -s busybox "$initrd/bin/$applet"; done
cp "$here/init" "$initrd/"
for module in virtio_pci virtio_blk virtio_net virtio_rng overlay br_netfilter; do
  chroot "$root" modprobe --set-version "$release" --show-depends "$module" | sed -n 's/^insmod \([^ ]*\).*/\1/p'
done | awk '!seen[$0]++' | while read -r module; do
  cp "$root$module" "$initrd/modules/"
  basename "$module" >>"$initrd/modules/order"
done
(cd "$initrd" && find . | LC_ALL=C sort | cpio --quiet -o -H newc -R 0:0 | gzip -1) >"$part/initrd"
truncate -s %4 "$part/initrd" # where the kernel looks for the archive that follows

# /var, with the images of pods that are not the operator's: an OCI layout as data.sh takes it.
tar -C "$root/var" -cf "$part/var.tar" .
rm -rf "$root/var"; mkdir "$root/var"
layout=$part/layout
oci=application/vnd.oci.image
manifests=
mkdir -p "$layout/blobs/sha256"
blob() { # FILE: keeps it under its digest and prints the fields of a descriptor
  local digest
  digest=$(sha256sum <"$1" | cut -d' ' -f1)
  printf '"digest":"sha256:%s","size":%s' "$digest" "$(stat -c %s "$1")"
  mv "$1" "$layout/blobs/sha256/$digest"
}
container() { # PROGRAM USER NAME…: adds an image with nothing but this program, under each name
  local user=$2 diff layer config manifest program
  program=$(basename "$1")
  tar --mtime=@0 --owner=0 --group=0 -C "$(dirname "$1")" -cf "$part/layer" "$program"
  diff=$(sha256sum <"$part/layer" | cut -d' ' -f1)
  layer=$(blob "$part/layer")
  printf '{"architecture":"amd64","os":"linux","config":{"Entrypoint":["/%s"],"User":"%s"},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
    "$program" "$user" "$diff" >"$part/config"
  config=$(blob "$part/config")
  printf '{"schemaVersion":2,"mediaType":"%s.manifest.v1+json","config":{"mediaType":"%s.config.v1+json",%s},"layers":[{"mediaType":"%s.layer.v1.tar",%s}]}' \
    $oci $oci "$config" $oci "$layer" >"$part/manifest"
  manifest=$(blob "$part/manifest")
  shift 2
  for name; do
    manifests=${manifests:+$manifests,}$(printf '{"mediaType":"%s.manifest.v1+json",%s,"annotations":{"io.containerd.image.name":"%s","org.opencontainers.image.ref.name":"%s"}}' \
      $oci "$manifest" "$name" "${name##*:}")
  done
}
# pause: once as the sandbox of pods, and once as the only container of the tests' workloads.
container "$bin/pause" 65535:65535 guest.invalid/pause:3.10.2 example.invalid/app:1
container "$bin/kube-network-policies/cmd" 0:0 guest.invalid/kube-network-policies:v0.8.0
printf '{"schemaVersion":2,"manifests":[%s]}' "$manifests" >"$layout/index.json"
printf '{"imageLayoutVersion":"1.0.0"}' >"$layout/oci-layout"
tar -C "$layout" -cf "$part/images.tar" oci-layout index.json blobs
BRUPOP_VM_IMAGES=$part "$here/data.sh" "$part/data.img"

# The root sets. An image is as small as its files allow: an update writes all of it.
image() { # VERSION FOLDER
  printf 'NAME=Bottlerocket\nID=bottlerocket\nVERSION="%s (%s)"\nPRETTY_NAME="Bottlerocket OS %s (%s)"\nVARIANT_ID=%s\nVERSION_ID=%s\nBUILD_ID=abcdef01\n' \
    "$1" $variant "$1" $variant $variant "$1" >"$2/usr/lib/os-release"
  mkfs.ext4 -q -b 4096 -m 0 -N "$(($(find "$2" | wc -l) + 64))" -O ^has_journal,^resize_inode -d "$2" \
    "$part/$1.img" "$(($(du -sk "$2" | cut -f1) * 102 / 100 + 4096))k" >/dev/null
}
image $first "$root"
image $updated "$root"
# Nothing but its name, so that the initramfs finds no init and the kernel panics.
mkdir -p "$part/broken"/{dev,etc,proc,run,sys,tmp,usr/lib,var}
image $broken "$part/broken"
mkdir "$part/releases"
mv "$part/$updated.img" "$part/$broken.img" "$part/releases/"
mkfs.ext4 -q -m 0 -O ^has_journal,^resize_inode -d "$part/releases" "$part/releases.img" \
  "$(($(du -sm --apparent-size "$part/releases" | cut -f1) + 32))M" >/dev/null

for file in vmlinuz initrd $first.img releases.img data.img var.tar images.tar; do mv "$part/$file" "$images/"; done
rm -rf "$part"
touch "$images/done"
echo "vm: the guest is ready after $((SECONDS - started)) s: $images" >&2
echo "$images"
