#!/usr/bin/env bash
# Prints the path of `moto_server`, which speaks the API of AWS, for the scenarios of aws::. It is installed from PyPI into
# the cache once.
#
#   BRUPOP_CACHE  where to keep it   (default: $XDG_CACHE_HOME/brupop or ~/.cache/brupop)
set -euo pipefail

die() { printf 'moto: %s\n' "$*" >&2; exit 1; }

wanted=$(dirname "${BASH_SOURCE[0]}")/requirements.txt
cache=${BRUPOP_CACHE:-${XDG_CACHE_HOME:-${HOME:?HOME is not set; set BRUPOP_CACHE}/.cache}/brupop}/moto
server=$cache/venv/bin/moto_server
installed() { [ -x "$server" ] && cmp -s "$wanted" "$cache/installed.txt"; }

if installed; then echo "$server"; exit 0; fi
needed="Python 3.10 or later with venv is needed for moto (Debian: apt-get install python3-venv)"
for tool in python3 flock; do command -v "$tool" >/dev/null || die "$needed ('$tool' is missing)"; done
python3 -c 'import sys, venv; sys.exit(sys.version_info < (3, 10))' || die "$needed"
mkdir -p "$cache"
# Several tests at once wait for each other.
exec 9>"$cache/.lock"; flock 9
if installed; then echo "$server"; exit 0; fi
rm -rf "$cache/venv" "$cache/installed.txt"
python3 -m venv "$cache/venv" >"$cache/log" 2>&1 || die "$needed (python3 -m venv failed: $(tail -n 1 "$cache/log"))"
"$cache/venv/bin/pip" install --quiet --disable-pip-version-check --no-input -r "$wanted" >"$cache/log" 2>&1 \
  || die "pip install -r integ/moto/requirements.txt failed: $(tail -n 1 "$cache/log")"
cp "$wanted" "$cache/installed.txt"
echo "$server"
