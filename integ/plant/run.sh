#!/usr/bin/env bash
# Plants the bugs of bugs.toml, and requires that a test fails with each: `plant.py` explains.
#
#   run.sh              plants all of them (an hour); run.sh NAME … plants these
#   run.sh --check      checks that the list fits the sources; builds nothing
#   run.sh --list       lists them
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
command -v python3 >/dev/null || { echo "make: python3 (3.11 or later) is needed to plant bugs" >&2; exit 1; }
exec python3 "$here/plant.py" "$@"
