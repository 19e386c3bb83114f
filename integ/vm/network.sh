#!/usr/bin/env bash
# Runs a command in a network of its own, with a bridge and a tap device for each node. As root.
#
#   network.sh NODES COMMAND…   e.g. network.sh 2 cargo test -p integ --test vm
#
# Inside, this machine is 10.99.0.1 and node N (1 …) is 10.99.0.(10+N), its tap device is tapN and its pods are
# 10.244.N.0/24; 10.200.0.0/16 is for pods of nodes without a machine. Nothing leads out of this network, and it disturbs
# no other. When the command or this script ends, everything that it started ends (control plane and QEMU too), and the
# network is gone.
set -euo pipefail

if [ "${1:-}" != --inside ]; then
  # unshare itself ignores SIGTERM; with it everything inside is killed.
  unshare --net --mount --pid --fork --kill-child --mount-proc -- "${BASH_SOURCE[0]}" --inside "$@" <&0 &
  # All processes in it first; a test bed's reaper, which ignores that, removes its files.
  end() {
    pkill -TERM --nslist pid --ns "$(pgrep -P $!)" || true
    for _ in $(seq 100); do kill -0 $! 2>/dev/null || exit 130; sleep 0.1; done
    kill -KILL $!
  }
  trap end HUP INT TERM
  wait $!
  exit
fi
nodes=${2:?usage: network.sh NODES COMMAND…}
shift 2
ip link set lo up
ip link add br0 type bridge
ip address add 10.99.0.1/24 dev br0
ip link set br0 up
ip route add local 10.200.0.0/16 dev lo
for n in $(seq "$nodes"); do
  ip tuntap add dev "tap$n" mode tap
  ip link set "tap$n" master br0 up
  ip route add "10.244.$n.0/24" via "10.99.0.$((10 + n))"
done
# Not by exec: the first process of a PID namespace has to outlive orphans, and its end kills them.
status=0
"$@" || status=$?
others() { for process in /proc/[0-9]*; do [ "$process" = /proc/$$ ] || return 0; done; return 1; }
for _ in $(seq 100); do others || break; sleep 0.1; done
exit $status
