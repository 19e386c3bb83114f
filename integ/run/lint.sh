#!/usr/bin/env bash
# Checks format, words, lints, generated files and dependencies.
#
#   lint.sh           everything
#   lint.sh --early   what needs nothing compiled
#   lint.sh --late    the rest; it compiles what is not
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

here=$PWD/integ/run
cargo=${CARGO:-cargo}
die() { printf 'make: %s\n' "$*" >&2; exit 1; }
tree() { "$cargo" tree --locked --prefix none "$@"; }

early() {
  "$cargo" fmt --all --check
  "$cargo" fmt --manifest-path integ/mutants/Cargo.toml --check
  "$here/words.sh"
  "$here/binary_test.sh"
  if command -v shellcheck >/dev/null; then
    shopt -s nullglob
    shellcheck -x "$here"/*.sh integ/mutants/*.sh integ/plant/*.sh .ci/run
  else
    echo "make: shellcheck is not installed: the scripts are not checked"
  fi
  [ ! -e integ/plant/run.sh ] || integ/plant/run.sh --check
  # A tag of an action can be moved; and what a checkout leaves behind, every later step can read.
  ! grep -rnE 'uses: [^.]' .github | grep -vE '@[0-9a-f]{40} #' || die "workflows name each action by its commit"
  ! grep -rhA1 'uses: actions/checkout@' .github | grep -vE '^--$|actions/checkout@|persist-credentials: false' \
    || die "each checkout of the workflows has persist-credentials: false in the line after it"
  git apply --check integ/next/next.patch || die "integ/next/next.patch does not fit the sources any more: mend it (docs/testing.md)"
}

# Features that tests alone switch on.
features() { tree --workspace -e "$1" -f '{p} {f}' | sed 's/ (\*)//' | sort -u; }

late() {
  "$here/compile.sh"
  "$CARGO_TARGET_DIR/debug/brupop-deploy" --check
  local workspace planner programs tests
  for workspace in fuzz integ/mutants; do
    tree --manifest-path $workspace/Cargo.toml >/dev/null || die "$workspace/Cargo.lock is stale: run cargo update --workspace in $workspace"
  done
  planner=$(tree -p planner -e normal)
  ! grep -E '^(tokio|hyper|reqwest|actix-web|prometheus|tracing) ' <<<"$planner" \
    || die "the planner depends on no client, HTTP, log or metrics crate (docs/architecture.md)"
  programs=$(features normal,build)
  tests=$(features normal,build,dev)
  ! comm -23 <(echo "$programs") <(echo "$tests") | grep . \
    || die "tests switch on features of these, which would be built twice: have integ/Cargo.toml switch them on, too"
  if command -v go >/dev/null; then
    go run github.com/rhysd/actionlint/cmd/actionlint@v1.7.8
  else
    echo "make: Go is not installed: the workflows are not checked"
  fi
  if command -v cargo-deny >/dev/null; then
    "$cargo" deny --locked --log-level error check bans licenses sources
  else
    echo "make: cargo-deny is not installed: versions, licenses and sources of dependencies are not checked (make deny)"
  fi
}

case ${1:-} in
--early) early ;;
--late) late ;;
*) early; late ;;
esac
