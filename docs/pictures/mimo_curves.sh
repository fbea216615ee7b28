#!/usr/bin/env bash
# Draws docs/pictures/mimo_curves.svg and mimo_difference.svg: scripts/finetune.lua on a tiny Qwen3-VL, on one rank and
# on every grid of 1, 2 or 3 ranks for vision and 1, 2 or 4 for language.
#
#     bazel build -c opt //driver:lockstep && docs/pictures/mimo_curves.sh FOLDER
#
# FOLDER gets the model and the runs. It takes 10 to 15 minutes on 2 cores.
set -euo pipefail
cd "$(dirname "$0")/../.."
lockstep=${LOCKSTEP:-bazel-bin/driver/lockstep}
folder=${1:?give a folder for the model and the runs}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
export OMP_NUM_THREADS=1

"$lockstep" --nproc 1 --run-dir "$folder/made" tests/scripts/tiny_vision_model.lua driver/text/testdata/qwen2.json \
  "$PWD/driver/images/testdata" "$folder"

train() { # RUN VISION_RANKS RANKS
  "$lockstep" --nproc "$3" --run-dir "$folder/$1" scripts/finetune.lua --set model="$folder/model" \
    --set data="$folder/pictures.jsonl" --set vision_ranks="$2" --set steps=60 --set samples_per_step=24 \
    --set lora.r=0 --set lr=0.003 --set held_out=0
}

train alone 0 1
for vision in 1 2 3; do
  for language in 1 2 4; do train "$vision-$language" "$vision" $((vision + language)); done
done
"$lockstep" --nproc 1 --run-dir "$folder/drawn" docs/pictures/mimo_curves.lua "$folder" docs/pictures
