#!/usr/bin/env bash
# Fetches a guest's Debian part into a cache folder: userland.tar (with systemd, without packages that a node does not
# need) and kernel.deb. build.sh calls it, as root.
#
#   debian.sh           fetch what is missing, then print the folder
#   debian.sh --where   only print that folder
#
# The folder's name is a digest of this script: what was fetched once stays, although Debian's archive moves on.
set -euo pipefail

suite=bookworm
kernel=linux-image-cloud-amd64
packages=busybox-static,dbus,iproute2,kmod,nftables,procps,systemd,systemd-sysv,usr-is-merged

cache=${BRUPOP_CACHE:-${XDG_CACHE_HOME:-${HOME:?HOME is not set; set BRUPOP_CACHE}/.cache}/brupop}
folder=$cache/vm-debian/$(sha256sum <"${BASH_SOURCE[0]}" | cut -c1-16)
if [ "${1:-}" = --where ] || [ -e "$folder/done" ]; then echo "$folder"; exit 0; fi

mkdir -p "$folder"
exec 9>"$folder/.lock"; flock 9
part=$folder/.part
rm -rf "$part"; mkdir -p "$part"
started=$SECONDS
# The kernel's package depends on tools that a guest does without, so it is fetched and not installed.
cat >"$part/fetch-kernel" <<EOF
#!/bin/sh
set -e
export APT_CONFIG="\$MMDEBSTRAP_APT_CONFIG"
cd "$part"
package=\$(apt-cache depends $kernel | sed -n 's/^ *Depends: //p' | head -n 1)
apt-get -qq -o APT::Sandbox::User=root download "\$package"
mv "\$package"_*.deb kernel.deb
EOF
chmod +x "$part/fetch-kernel"
echo "vm: fetching Debian $suite's userland and kernel" >&2
mmdebstrap --mode=root --variant=essential --include="$packages" \
  --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr \
  --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
  --dpkgopt='path-exclude=/usr/share/info/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
  --dpkgopt='path-exclude=/usr/share/zoneinfo/*' \
  --customize-hook="$part/fetch-kernel" "$suite" "$part/userland.tar" >"$folder/log" 2>&1 ||
  { tail -n 20 "$folder/log" >&2; echo "vm: mmdebstrap failed; its log: $folder/log" >&2; exit 1; }
mv "$part/kernel.deb" "$part/userland.tar" "$folder/"
rm -rf "$part"
touch "$folder/done"
echo "vm: Debian's part is there after $((SECONDS - started)) s" >&2
echo "$folder"
