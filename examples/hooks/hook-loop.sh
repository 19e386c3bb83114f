#!/bin/sh
# Answers the requests of the update operator to one hook (docs/hooks.md):
#
#   hook-loop.sh NAME COMMAND
#
# `COMMAND prepare NODE` is run before a node is drained, `COMMAND finish NODE` once it is back, or once its attempt has ended
# for any other reason. Both may be run again at any time. Exit status 0: done. 2: the node must not be drained; what was
# printed is the reason. Any other: not yet; it is run again.
#
# All state is in the annotation with the answer, so that the loop may be killed at any moment: it is written before anything
# is prepared, and removed when all is taken back.
set -u
name=$1
command=$2
pause=${HOOK_PAUSE:-5}
annotation=hook.brupop.bottlerocket.aws/$name

answer() {
    kubectl annotate node "$1" --overwrite "$annotation=$2" </dev/null >/dev/null
}

# Prepares a node for its drain and answers its request.
prepare() {
    node=$1 request=$2
    answer "$node" "$request Preparing" || return
    text=$("$command" prepare "$node" </dev/null 2>&1)
    status=$?
    [ -z "$text" ] || echo "$node: $text"
    case $status in
        0) answer "$node" "$request" && echo "$node: prepared ($request)" ;;
        2) answer "$node" "$request Refused: $(echo "$text" | tr '\n' ' ' | cut -c1-200)" ;;
    esac
}

# Takes back what was prepared on a node.
finish() {
    "$command" finish "$1" </dev/null && echo "$1: finished"
}

step() {
    node=$1 request=$2 given=$3
    case $request in
        BeforeDrain/*)
            case $given in
                "$request" | "$request Refused: "*) ;;
                *) prepare "$node" "$request" ;;
            esac
            ;;
        AfterUpdate/*)
            [ "$given" = "$request" ] || { finish "$node" && answer "$node" "$request"; }
            ;;
        "")
            # The attempt has ended, whatever came of it.
            [ -z "$given" ] || { finish "$node" && kubectl annotate node "$node" "$annotation-" </dev/null >/dev/null; }
            ;;
    esac
}

# One line for each node: its name, the request and the answer of this hook.
template='{{range .items}}{{.metadata.name}}|{{with .metadata.annotations}}{{with index . "brupop.bottlerocket.aws/hooks"}}{{.}}{{end}}|{{with index . "'$annotation'"}}{{.}}{{end}}{{else}}|{{end}}{{"\n"}}{{end}}'

while sleep "$pause"; do
    kubectl get nodes -o go-template="$template" | while IFS='|' read -r node request given; do
        step "$node" "$request" "$given"
    done
done
