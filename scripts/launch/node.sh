#!/usr/bin/env bash
# node.sh LOCKSTEP SCRIPT [ARGUMENT]...: starts this machine's ranks of a run over several machines, where the cluster
# starts one process for each machine. srun and torchrun start every rank, and do not need this.
#
#   NODES, RANKS              machines; ranks of each machine, one for each GPU
#   NODE                      the number of this machine, from 0; default: JOB_COMPLETION_INDEX of Kubernetes
#   MASTER_ADDR, MASTER_PORT  the name of machine 0, and a port that is free there
#
# Passes SIGTERM on to all ranks, so that the run saves its state. A rank that fails ends the others, too. Exits with
# the code of the first rank that failed, or 0.
set -uo pipefail
: "${NODES:?}" "${RANKS:?}" "${NODE:=${JOB_COMPLETION_INDEX:?is not set, and NODE is not either}}" "${MASTER_ADDR:?}" "${MASTER_PORT:?}"

pids=()
trap 'kill -TERM "${pids[@]}" 2>/dev/null' TERM
for ((local_rank = 0; local_rank < RANKS; local_rank++)); do
  RANK=$((NODE * RANKS + local_rank)) WORLD_SIZE=$((NODES * RANKS)) LOCAL_RANK=$local_rank LOCAL_WORLD_SIZE=$RANKS \
    MASTER_ADDR=$MASTER_ADDR MASTER_PORT=$MASTER_PORT "$@" &
  pids+=($!)
done

code=0
while true; do
  ended=0
  wait -n -p pid || ended=$?
  if [[ -n ${pid-} ]]; then
    ((code)) || code=$ended
  elif ((ended == 127)); then  # no rank is left
    exit "$code"
  fi
done
