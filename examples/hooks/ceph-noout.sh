#!/bin/sh
# Keeps Ceph from moving data while a node reboots: sets `noout` for its OSDs. Rook names the hosts of its CRUSH map after the
# nodes, with a dash for each dot.
set -eu
host=$(echo "$2" | tr . -)

# A node without OSDs is none of Ceph's.
tree=$(ceph osd tree)
echo "$tree" | awk -v host="$host" '{ for (i = 1; i < NF; i++) if ($i == "host" && $(i + 1) == host) found = 1 } END { exit !found }' ||
    exit 0

case $1 in
    prepare)
        # An error needs an administrator: the attempt ends, and does not keep its slot until the timeout.
        health=$(ceph health)
        case $health in HEALTH_ERR*) echo "Ceph has an error: $health" && exit 2 ;; esac
        # Not while the data on these OSDs has no other copy: data may be moving yet after the node before.
        osds=$(ceph osd ls-tree "$host")
        # shellcheck disable=SC2086 # One argument for each OSD.
        ceph osd ok-to-stop $osds >/dev/null || exit 1
        ceph osd set-group noout "$host"
        ;;
    finish)
        ceph osd unset-group noout "$host"
        # The next node waits until all data is in place again; a scrub moves none.
        ceph pg stat | grep -Eq '^[0-9]+ pgs: [0-9]+ active\+clean[a-z+]*(, [0-9]+ active\+clean[a-z+]*)*;' || exit 1
        ;;
esac
