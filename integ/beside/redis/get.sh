#!/usr/bin/env bash
# Prints the path of `redis-server`, which Argo CD needs: that on the PATH, or a script that runs Debian's, which is unpacked into the
# cache without being installed.
#
#   BRUPOP_CACHE  where to keep it   (default: $XDG_CACHE_HOME/brupop or ~/.cache/brupop)
set -euo pipefail

die() { printf 'redis: %s\n' "$*" >&2; exit 1; }

if command -v redis-server; then exit 0; fi

cache=${BRUPOP_CACHE:-${XDG_CACHE_HOME:-${HOME:?HOME is not set; set BRUPOP_CACHE}/.cache}/brupop}/redis
program=$cache/redis-server
if [ -x "$program" ]; then echo "$program"; exit 0; fi

needed="redis-server 6.2 or later is needed: install the package 'redis-server' of your distribution"
for tool in apt-get dpkg-deb flock; do command -v "$tool" >/dev/null || die "$needed ('$tool', by which it could be unpacked, is missing)"; done
mkdir -p "$cache"
# Several tests at once wait for each other.
exec 9>"$cache/.lock"; flock 9
if [ -x "$program" ]; then echo "$program"; exit 0; fi
part=$(mktemp -d "$cache/.part.XXXXXX")
trap 'rm -rf "$part"' EXIT
chmod 755 "$part"
packages="redis-server redis-tools liblzf1 libjemalloc2 liblua5.1-0 lua-bitop lua-cjson"
# shellcheck disable=SC2086 # several packages
(cd "$part" && apt-get download $packages >log 2>&1) || die "$needed (apt-get download failed: $(tail -n 1 "$part/log"); perhaps run apt-get update first)"
for package in "$part"/*.deb; do dpkg-deb -x "$package" "$part/root"; done
rm -rf "$cache/root"
mv "$part/root" "$cache/root"
libraries=$(echo "$cache"/root/usr/lib/*-linux-gnu)
cat >"$part/redis-server" <<END
#!/bin/sh
LD_LIBRARY_PATH='$libraries' exec '$cache/root/usr/bin/redis-server' "\$@"
END
chmod 755 "$part/redis-server"
mv "$part/redis-server" "$program"
echo "$program"
