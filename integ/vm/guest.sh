#!/usr/bin/env bash
# Builds the program that runs in the virtual machines of the tests, static: target/vm/brupop-guest
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
exec "$root/deploy/images/build.sh" "${CARGO_TARGET_DIR:-$root/target}/vm" brupop-guest
