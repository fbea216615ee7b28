#!/usr/bin/env bash
# Runs the files of this folder as a cluster does, with ranks on 127.0.0.1: lockstep.sbatch under an srun that starts
# processes here, and the command of jobset.yaml's pods, all at once.
set -uo pipefail
launch=$PWD/scripts/launch
mkdir -p "$TEST_TMPDIR"/{bin,runs,lockstep/bin}
ln -sf "$PWD/driver/lockstep" "$TEST_TMPDIR/lockstep/bin/lockstep"
cd "$TEST_TMPDIR" || exit 1
export OMP_NUM_THREADS=1 PATH=$TEST_TMPDIR/bin:$TEST_TMPDIR/lockstep/bin:$PATH LOCKSTEP=$TEST_TMPDIR/lockstep RUNS=$TEST_TMPDIR/runs
failed=0

# expect NAME ACTUAL EXPECTED
expect() {
  [[ $2 == "$3" ]] && return
  printf '%s: expected "%s", got "%s"\n' "$1" "$3" "$2"
  failed=1
}

# --- The form of the files -------------------------------------------------------------------------------------------
for file in lockstep.sbatch elastic.sbatch node.sh; do
  bash -n "$launch/$file" || failed=1
  ! command -v shellcheck >/dev/null || shellcheck "$launch/$file" || failed=1
done

# A port that this test holds while the ranks use it: c10d's store sets SO_REUSEADDR, too.
coproc port_holder { python3 -I -c 'import socket, sys
held = socket.socket()
held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
held.bind(("127.0.0.1", 0))
print(held.getsockname()[1], flush=True)
sys.stdin.read()'; }
read -r -u "${port_holder[0]}" MASTER_PORT
export MASTER_PORT

# The first run steps on until SIGTERM comes, as before a time limit: srun sends it to the ranks, Kubernetes to the
# pod's first process, which is their parent. The next run takes four more steps.
cat >train.lua <<'LUA'
local dist, nn, optim = require "lockstep.distributed", require "lockstep.nn", require "lockstep.optim"
local run, sharding, torch = require "lockstep.run", require "lockstep.sharding", require "lockstep.torch"
local ffi = require "ffi"
ffi.cdef "int getpid(void); int getppid(void); int kill(int, int);"
torch.manual_seed(1)
local model = sharding.data_parallel(nn.Linear(4, 1))
local optimizer = optim.SGD(model:parameters(), { lr = 0.1 })
run:state { model = model, optimizer = optimizer }
local from = run:resume()
for step in run:steps(function() return true end, from and from + 4 or 1e6) do
  model(torch.ones { 2, 4 }):sum():backward()
  optimizer:step()
  optimizer:zero_grad()
  if step == 3 and not from and dist.rank() == 1 then
    local receiver = os.getenv "IN_POD" and ffi.C.getppid() or ffi.C.getpid()
    assert(receiver > 1)
    ffi.C.kill(receiver, 15)
  end
end
print(("rank %d of %d has resumed: %s"):format(dist.rank(), dist.world_size(), tostring(from ~= nil)))
LUA

# --- Slurm -----------------------------------------------------------------------------------------------------------
# srun starts the tasks of a job of one machine, and exits with the highest code of them.
cat >bin/srun <<'SRUN'
#!/usr/bin/env bash
pids=()
export BATCH=$PPID
while [[ $1 == --* ]]; do shift; done
trap 'told=1' TERM
for ((task = 0; task < SLURM_NTASKS; task++)); do
  SLURM_STEP_ID=0 SLURM_PROCID=$task SLURM_LOCALID=$task "$@" &
  pids+=($!)
done
trap 'told=1; kill -TERM "${pids[@]}"' TERM
[[ -z ${told-} ]] || kill -TERM "${pids[@]}"
highest=0
for pid in "${pids[@]}"; do
  code=0
  wait "$pid" || code=$?
  if [[ -n ${told-} ]] && ((code == 143)); then # the trap has ended the wait, or the signal the task
    last=0
    wait "$pid" || last=$?
    ((last == 127)) || code=$last # 127: the task had ended
  fi
  ((code <= highest)) || highest=$code
done
exit "$highest"
SRUN
printf '#!/bin/sh\necho "scontrol $*"\n' >bin/scontrol
chmod +x bin/srun bin/scontrol

batch() {
  SLURM_JOB_ID=4711 SLURM_NTASKS=2 SLURM_TASKS_PER_NODE=2 SLURM_JOB_NODELIST=127.0.0.1 \
    bash "$launch/lockstep.sbatch" "$@" 2>err
}
out=$(batch train.lua)
expect "sbatch: the code after SIGTERM" $? 143
expect "sbatch: a job that SIGTERM ended is requeued" "${out##*$'\n'}" "scontrol requeue 4711"
out=$(batch train.lua | grep ^rank | sort)
expect "sbatch: the same job goes on" "$out" $'rank 0 of 2 has resumed: true\nrank 1 of 2 has resumed: true'
out=$(batch missing.lua)
expect "sbatch: the code of a wrong command line" $? 2
expect "sbatch: nothing is requeued then" "$out" ""

# torchrun prints its arguments. The agent of the first machine then ends, or gives the shell SIGTERM and waits for its
# own: when the shells above sleep in `wait`, since bash loses a signal that comes just before.
cat >bin/torchrun <<'TORCHRUN'
#!/usr/bin/env python3
import os, pathlib, re, signal, sys

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
second = pathlib.Path("second")  # that it blocks the signal, too
if os.environ["SLURM_PROCID"] == "1":
    second.touch()
else:
    while not second.exists():
        pass
    second.unlink()
    print(*sys.argv[1:], flush=True)
    if "TOLD" in os.environ:
        for pid in os.environ["BATCH"], os.getppid():
            while True:
                status = pathlib.Path(f"/proc/{pid}/status").read_text()
                catches = int(re.search(r"SigCgt:\s*(\w+)", status)[1], 16) >> signal.SIGTERM - 1 & 1
                if catches and "State:\tS" in status:
                    break
        os.kill(int(os.environ["BATCH"]), signal.SIGTERM)
        signal.sigwait({signal.SIGTERM})
sys.exit(int(os.environ["CODE"]))
TORCHRUN
chmod +x bin/torchrun
elastic() {
  SLURM_JOB_ID=4712 SLURM_NTASKS=2 SLURM_JOB_NUM_NODES=5 SLURMD_NODENAME=node0 PORT=29500 \
    bash "$launch/elastic.sbatch" train.lua --set lr=1 2>err
}
out=$(CODE=0 elastic)
expect "elastic: the code of a run that ends well" $? 0
expect "elastic: what torchrun gets" "$out" "--no-python --nnodes 4:5 --nproc-per-node 8 --max-restarts 10 \
--rdzv-backend c10d --rdzv-endpoint node0:29500 --rdzv-id 4712 $LOCKSTEP/bin/lockstep --run-dir $RUNS/4712 train.lua --set lr=1"
out=$(CODE=1 elastic)
expect "elastic: the code of a failed run" $? 1
expect "elastic: a failed run is not requeued" "${out##*$'\n'}" "$(CODE=0 elastic)"
out=$(CODE=1 TOLD=1 elastic)
expect "elastic: the code after SIGTERM" $? 1
expect "elastic: a job that SIGTERM ended is requeued" "${out##*$'\n'}" "scontrol requeue 4712"
out=$(CODE=0 TOLD=1 elastic)
expect "elastic: the code of a run that ends well after SIGTERM" $? 0
expect "elastic: it is not requeued" "${out##*$'\n'}" "$(CODE=0 elastic)"

# --- Kubernetes ------------------------------------------------------------------------------------------------------
# Prints the variables and the command of a pod, with fewer ranks, and with paths and names of this machine.
python3 -I - "$launch/jobset.yaml" >pod.sh <<'PYTHON' || failed=1
import shlex, sys, yaml

job = yaml.safe_load(open(sys.argv[1]))
replicated = job["spec"]["replicatedJobs"][0]
spec = replicated["template"]["spec"]
container = spec["template"]["spec"]["containers"][0]
variables = {variable["name"]: variable["value"] for variable in container["env"]}
name = job["metadata"]["name"]
assert variables["MASTER_ADDR"] == f"{name}-{replicated['name']}-0-0.{name}", variables
assert int(variables["NODES"]) == spec["completions"] == spec["parallelism"], spec
assert int(variables["RANKS"]) == container["resources"]["limits"]["nvidia.com/gpu"], container
for key, value in {**variables, "RANKS": "2", "MASTER_ADDR": "127.0.0.1"}.items():
    if key != "MASTER_PORT":
        print(f"export {key}={shlex.quote(value)}")
command = shlex.join(container["command"] + container["args"])
for there, here in (("/opt/lockstep/scripts/launch", "$launch"), ("/shared/runs", "$RUNS"), ("/shared/", "")):
    assert there in command, (there, command)
    command = command.replace(there, here)
print("exec", command)
PYTHON
export launch

# pods: runs both pods, prints their output, and exits with the highest code.
pods() {
  export IN_POD=1
  JOB_COMPLETION_INDEX=0 bash pod.sh >pod0 2>err0 &
  local first=$! codes=(0 0)
  JOB_COMPLETION_INDEX=1 bash pod.sh >pod1 2>err1 || codes[1]=$?
  wait "$first" || codes[0]=$?
  sort pod0 pod1
  return $((codes[0] > codes[1] ? codes[0] : codes[1]))
}
cp train.lua my_script.lua
pods >/dev/null
expect "pods: the code after SIGTERM" $? 143
out=$(pods)
expect "pods: the code of a run that ends well" $? 0
expect "pods: the same command goes on" "$(grep ^rank <<<"$out")" "$(printf 'rank %d of 4 has resumed: true\n' 0 1 2 3)"

echo 'error("only here")' >my_script.lua
pods >/dev/null
expect "pods: the code of an error" $? 1
expect "pods: a missing variable has a message" \
  "$(env -u NODES -u JOB_COMPLETION_INDEX RANKS=1 bash "$launch/node.sh" true 2>&1 | grep -c 'NODES')" 1

((failed == 0)) || tail -n 20 err err0 err1
exit "$failed"
