#!/usr/bin/env bash
# Puts a build of the guest's program behind the cached initramfs. It is quick, so that the program can change often.
#
#   initramfs.sh PROGRAM OUT   PROGRAM, a static executable, becomes /bin/brupop-guest in OUT; give it to run.sh
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
program=${1:?usage: initramfs.sh PROGRAM OUT} out=${2:?usage: initramfs.sh PROGRAM OUT}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
install -D -m 755 "$program" "$folder/bin/brupop-guest"
# The kernel unpacks archives that follow one another, each compressed or not.
(cat "$("$here/build.sh")/initrd"; cd "$folder"; printf 'bin/brupop-guest\n' | cpio --quiet -o -H newc) >"$out.part"
mv "$out.part" "$out"
