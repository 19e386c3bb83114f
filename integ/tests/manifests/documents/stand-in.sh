#!/bin/bash
# The programs that commands of the documentation start, in the test of these commands (documents.rs): each is a link to this
# file. Nothing is changed: kubectl and helm write by dry runs, and the plugin reads its command line and finds no kubeconfig.
set -euo pipefail
name=${0##*/}

refuse() { printf '%s: %s\n' "$name" "$*" >&2; exit 97; }

case $name in
kubectl)
  [ "${1-}" != brupop ] || { shift; exec kubectl-brupop "$@"; }
  # For the check of the fields that it reads.
  call=$(printf '%s\x1f' "$@")
  printf '%s\x1e' "$call" >>"$CALLS"
  arguments=()
  for argument; do case $argument in --watch | -w) ;; *) arguments+=("$argument") ;; esac; done
  case "${1-} $*" in
    *" --help") "$KUBECTL" "${arguments[@]}" ;;
    annotate\ * | apply\ * | cordon\ * | create\ * | delete\ * | label\ * | patch\ * | scale\ * | uncordon\ *)
      "$KUBECTL" "${arguments[@]}" --dry-run=server ;;
    # No controller of Deployments: the end of a rollout never comes.
    rollout\ rollout\ status\ *) "$KUBECTL" "${arguments[@]}" --watch=false ;;
    kustomize\ *) "$KUBECTL" "${arguments[@]}" ;;
    auth\ *)
      # The exit code is 1 for "no" too.
      answer=$("$KUBECTL" "${arguments[@]}" 2>&1) || [ "$answer" = no ] || refuse "$answer" ;;
    describe\ * | get\ * | wait\ *) "$KUBECTL" "${arguments[@]}" ;;
    edit\ *) KUBE_EDITOR=true "$KUBECTL" "${arguments[@]}" ;;
    logs\ *)
      # No kubelet: what can be seen is that kubectl and the API server understand the command.
      answer=$("$KUBECTL" "${arguments[@]}" 2>&1) || [[ $answer == *"(BadRequest)"* || $answer == *"(NotFound)"* ]] || refuse "$answer" ;;
    *) refuse "the test does not know how to try this: $*" ;;
  esac ;;
kubectl-brupop)
  # In a folder without files: it reads its command line, and a simulation takes minutes in this build.
  code=0
  (cd "$HOME/.local" && KUBECONFIG=/nonexistent "$PLUGIN" "$@") || code=$?
  # The command line is not understood (docs/plugin.md, Exit codes).
  [ "$code" != 2 ] || exit 2 ;;
helm)
  case "${1-} $*" in
    *" --help") "$HELM" "$@" ;;
    install\ * | upgrade\ *) "$HELM" "$@" --dry-run=server ;;
    uninstall\ *) "$HELM" "$@" --dry-run ;;
    *) refuse "the test does not know how to try this: $*" ;;
  esac ;;
make)
  makefile=$(<"$ROOT/Makefile")
  for argument; do
    case $argument in
      *=*) [[ $makefile == *"${argument%%=*}"* ]] || refuse "there is no variable ${argument%%=*}" ;;
      *) [[ $makefile == *$'\n'"$argument:"* ]] || refuse "there is no target $argument" ;;
    esac
  done ;;
cargo)
  case "$*" in
    "run -p deploy -- "*) shift 4; "$DEPLOY" "$@" ;;
    *) refuse "the test does not know how to try this: $*" ;;
  esac ;;
grep)
  code=0
  "$REAL_GREP" "$@" || code=$?
  # Nothing is found where nothing runs.
  [ "$code" -le 1 ] ;;
*)
  # A program that is not tried: it reads its input, and that is all.
  [ -t 0 ] || while read -r; do :; done ;;
esac
