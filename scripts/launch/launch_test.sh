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

# A port that this test holds while the ranks use it: c10d's store sets SO_REUSEADDR, too. And one that answers.
coproc port_holder { python3 -I -c 'import socket, sys
held = socket.socket()
held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
held.bind(("127.0.0.1", 0))
answers = socket.create_server(("127.0.0.1", 0))
print(held.getsockname()[1], answers.getsockname()[1], flush=True)
sys.stdin.read()'; }
read -r -u "${port_holder[0]}" MASTER_PORT answers
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
cat >bin/scontrol <<'SCONTROL'
#!/bin/sh
case "$1 $2" in
  "show config") echo "SlurmdPort              = $PORT_OF_SLURMD" ;;
  "show hostnames") echo "$3" | tr ' ' '\n' ;;
  *) echo "scontrol $*" ;;
esac
SCONTROL
printf '#!/bin/sh\necho "$NODES_OF_JOB"\n' >bin/squeue
chmod +x bin/srun bin/scontrol bin/squeue

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

# Counts the starts, and ends with the code of each.
mkdir -p counts/bin
cat >counts/bin/lockstep <<'COUNTS'
#!/bin/sh
[ "$SLURM_PROCID" = 0 ] || exit 0
echo start
set -- $CODES
shift "$(wc -l <starts)"
echo >>starts
exit "$1"
COUNTS
chmod +x counts/bin/lockstep
# starts_of NAME CODES STARTS: each code is that of one start; the last one is the job's.
starts_of() {
  : >starts
  out=$(CODES=$2 LOCKSTEP=$TEST_TMPDIR/counts RESTARTS=2 batch train.lua)
  expect "sbatch: the code $1" $? "${2##* }"
  expect "sbatch: the starts $1" "$(grep -c start <<<"$out")" "$3"
}
starts_of "after a failure" "137 0" 2
starts_of "after too many failures" "1 3 137" 3
starts_of "after a slow rank" "75" 1
starts_of "after a failure and a wrong setting" "1 2" 2

# The agent of the first machine prints its options. Each starts one rank, and once more if it fails. If the step is
# TOLD to end, its shell and the agent get SIGTERM.
cat >bin/torchrun <<'TORCHRUN'
#!/usr/bin/env bash
options=()
while [[ $1 != bash ]]; do options+=("$1"); shift; done
((SLURM_PROCID)) || echo "${options[@]}"
if [[ -n ${TOLD-} ]]; then
  kill -TERM "$PPID"
  exit "$TOLD"
fi
trap 'exit 1' TERM
for start in 1 2; do
  ((SLURM_PROCID)) || echo "start $start"
  "$@" && exit
done
exit 1
TORCHRUN
mkdir -p stub/bin
cat >stub/bin/lockstep <<'STUB'
#!/bin/sh
[ "$SLURM_PROCID" = 0 ] || exit "${CODE_OF_OTHERS-$CODE}"
echo "lockstep $*"
exit "$CODE"
STUB
chmod +x bin/torchrun stub/bin/lockstep
elastic() {
  SLURM_JOB_ID=4712 SLURM_NTASKS=2 SLURM_JOB_NUM_NODES=5 SLURMD_NODENAME=127.0.0.1 PORT=29500 LOCKSTEP=$TEST_TMPDIR/stub \
    PORT_OF_SLURMD=${PORT_OF_SLURMD-$answers} NODES_OF_JOB=${NODES_OF_JOB-127.0.0.1 node1} bash "$launch/elastic.sbatch" train.lua --set lr=1 2>err
}
out=$(CODE=0 elastic)
expect "elastic: the code of a run that ends well" $? 0
expect "elastic: what torchrun and the ranks get" "$out" "--no-python --nnodes 4:5 --nproc-per-node 8 --max-restarts 10 \
--rdzv-backend c10d --rdzv-endpoint 127.0.0.1:29500 --rdzv-id 4712
start 1
lockstep --run-dir $RUNS/4712 train.lua --set lr=1"
starts() { grep -E '^(start|scontrol)'; }
out=$(CODE=1 elastic)
expect "elastic: the code of a failed run" $? 1
expect "elastic: it is not requeued" "$(starts <<<"$out")" $'start 1\nstart 2'
for code in 2 75; do
  out=$(CODE=$code elastic)
  expect "elastic: a code that is final" $? "$code"
  expect "elastic: ranks are not started again after $code" "$(starts <<<"$out")" "start 1"
done
out=$(CODE=0 CODE_OF_OTHERS=75 elastic)
expect "elastic: the code of a run that went on without a slow machine" $? 0
for lost in "PORT_OF_SLURMD=$MASTER_PORT" NODES_OF_JOB=node1; do
  out=$(export CODE=1 "${lost?}"; elastic)
  expect "elastic: the first machine is lost, $lost: the other one requeues the job" "$(starts <<<"$out" | sort)" \
    $'scontrol requeue 4712\nstart 1\nstart 2'
done
out=$(TOLD=1 elastic)
expect "elastic: the code after SIGTERM" $? 143
expect "elastic: a job that SIGTERM ended is requeued" "${out##*$'\n'}" "scontrol requeue 4712"
out=$(TOLD=0 elastic)
expect "elastic: the code of a run that ends well after SIGTERM" $? 0
expect "elastic: it is not requeued" "$(starts <<<"$out")" ""

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
