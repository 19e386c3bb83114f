#!/bin/sh
# Silences the alerts about a node while it is updated. ALERTMANAGER_URL is the address of the Alertmanager, NODE_LABEL the label
# of its alerts that names the node.
set -eu
matcher="${NODE_LABEL:-node}=$2"

silences() {
    amtool --alertmanager.url="$ALERTMANAGER_URL" silence "$@"
}

found=$(silences query --quiet --created-by=brupop-hook "$matcher")
case $1 in
    prepare)
        # It ends by itself if everything else fails.
        [ -n "$found" ] ||
            silences add --duration=2h --author=brupop-hook --comment="the node $2 is updated" "$matcher" >/dev/null
        ;;
    finish)
        for id in $found; do
            silences expire "$id"
        done
        ;;
esac
