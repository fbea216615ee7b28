#!/usr/bin/env bash
# Ranks 0 and 1 on one host, rank 2 on another: two network namespaces with two links between them. As Debian's installer
# writes it, each host's own name maps to 127.0.1.1 there.
set -euo pipefail
program=$TEST_SRCDIR/lockstep/driver/lockstep
PATH=$PATH:/usr/sbin:/sbin  # ip; Bazel's PATH lacks them

if [[ ${1-} != inside ]]; then
  probe='ip link add p0 type veth peer name p1 && mount --bind /etc/hostname /etc/hosts'
  if ! unshare --user --map-root-user --net --mount --uts bash -c "$probe" 2>"$TEST_TMPDIR/why"; then
    echo "NOT TRIED: two hosts, as this machine lets a test make none: $(tail -n 1 "$TEST_TMPDIR/why")" |
      tee "${TEST_WARNINGS_OUTPUT_FILE:-/dev/null}"
    exit 0
  fi
  # Whatever is left ends with this.
  exec unshare --user --map-root-user --net --mount --uts --pid --mount-proc --fork --kill-child bash "$0" inside
fi

# --- The hosts -------------------------------------------------------------------------------------------------------
# become_host NUMBER: names this namespace, and writes its /etc/hosts.
become_host() {
  local other=$((1 - $1))
  printf '127.0.0.1 localhost\n127.0.1.1 node%d\n10.77.0.%d node%d\nfd77::%d node%d-v6\n' \
    "$1" $((other + 1)) "$other" $((other + 1)) "$other" >"$TEST_TMPDIR/hosts$1"
  mount --bind "$TEST_TMPDIR/hosts$1" /etc/hosts
  hostname "node$1"
}
# add_links NUMBER: gives the namespace's ends of both links their addresses.
add_links() {
  ip link set lo up
  for link in 0 1; do
    ip address add "10.7$((7 + link)).0.$(($1 + 1))/24" dev "link$link"
    ip address add "fd7$((7 + link))::$(($1 + 1))/64" dev "link$link" nodad
    ip link set "link$link" up
  done
}

mkfifo "$TEST_TMPDIR/ready"
export -f become_host add_links
unshare --net --mount --uts bash -c 'become_host 1; echo >"$TEST_TMPDIR/ready"; exec sleep infinity' &
node1=$!
read -r <"$TEST_TMPDIR/ready"
for link in 0 1; do ip link add "link$link" type veth peer name "link$link" netns "$node1"; done
become_host 0
add_links 0
on_node1() { nsenter --target "$node1" --net --mount --uts "$@"; }
on_node1 bash -c 'add_links 1'

# --- The runs --------------------------------------------------------------------------------------------------------
cat >"$TEST_TMPDIR/meet.lua" <<'LUA'
local dist, torch = require "lockstep.distributed", require "lockstep.torch"
local sum = dist.all_reduce(torch.tensor { dist.rank() }):item()
for _ in require("lockstep.sharding").lockstep(function() end) do end
print(("rank %d of %d: %d"):format(dist.rank(), dist.world_size(), sum))
LUA
export program port=29000  # in namespaces of our own every port is free
failed=0

# rank NUMBER MASTER [VARIABLE=VALUE]...
rank() {
  env RANK="$1" LOCAL_RANK=$(($1 % 2)) WORLD_SIZE=3 MASTER_ADDR="$2" MASTER_PORT="$port" OMP_NUM_THREADS=1 "${@:3}" \
    "$program" --timeout 20 --run-dir "$TEST_TMPDIR/run" "$TEST_TMPDIR/meet.lua" 2>&1
}
export -f rank

# meet WHAT MASTER [VARIABLE=VALUE]...: the three ranks must meet.
meet() {
  local pids=()
  port=$((port + 1))
  (rank 0 "${@:2}") >"$TEST_TMPDIR/out0" & pids+=($!)
  (rank 1 "${@:2}") >"$TEST_TMPDIR/out1" & pids+=($!)
  (on_node1 bash -c 'rank 2 "$@"' - "${@:2}") >"$TEST_TMPDIR/out2" & pids+=($!)
  wait "${pids[@]}" || true
  local out
  out=$(cat "$TEST_TMPDIR"/out?)
  [[ $out == $'rank 0 of 3: 3\nrank 1 of 3: 3\nrank 2 of 3: 3' ]] || failed=1
  printf '== %s\n%s\n' "$1" "$out"
}

meet "names that map to loopback on their own host" node0
meet "IPv4 in numbers" 10.77.0.1
meet "IPv6 in numbers" fd77::1
meet "two interfaces" node0 GLOO_SOCKET_IFNAME=link0,link1
meet "an interface that is not the way to the master" node0 GLOO_SOCKET_IFNAME=link1
exit "$failed"
