#!/usr/bin/env bash
# Prints the folder with `prometheus` and `promtool`, for the tests of deploy/monitoring: those on the PATH, or Debian's, unpacked into
# the cache without being installed.
#
#   BRUPOP_CACHE  where to keep them   (default: $XDG_CACHE_HOME/brupop or ~/.cache/brupop)
set -euo pipefail

die() { printf 'prometheus: %s\n' "$*" >&2; exit 1; }

if found=$(command -v promtool) && [ -x "${found%/*}/prometheus" ]; then echo "${found%/*}"; exit 0; fi

cache=${BRUPOP_CACHE:-${XDG_CACHE_HOME:-${HOME:?HOME is not set; set BRUPOP_CACHE}/.cache}/brupop}/prometheus
bin=$cache/usr/bin
if [ -x "$bin/prometheus" ] && [ -x "$bin/promtool" ]; then echo "$bin"; exit 0; fi

needed="prometheus and promtool 2.40 or later are needed: install the package 'prometheus' of your distribution, or put both on the PATH"
for tool in apt-get dpkg-deb flock; do command -v "$tool" >/dev/null || die "$needed ('$tool', by which they could be unpacked, is missing)"; done
mkdir -p "$cache"
# Several tests at once wait for each other.
exec 9>"$cache/.lock"; flock 9
if [ -x "$bin/prometheus" ] && [ -x "$bin/promtool" ]; then echo "$bin"; exit 0; fi
part=$(mktemp -d "$cache/.part.XXXXXX")
trap 'rm -rf "$part"' EXIT
chmod 755 "$part"
(cd "$part" && apt-get download prometheus >log 2>&1) || die "$needed (apt-get download prometheus failed: $(tail -n 1 "$part/log"); perhaps run apt-get update first)"
dpkg-deb -x "$part"/*.deb "$part/root"
mkdir -p "$bin"
mv "$part/root/usr/bin/prometheus" "$part/root/usr/bin/promtool" "$bin/"
echo "$bin"
