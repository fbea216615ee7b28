#!/usr/bin/env bash
# try_wheel.sh WHEEL REQUIREMENT...: installs a wheel of ./package and, from the index of pip, torch into a new virtual
# environment, and tries both. It downloads 2.5 GB.
#
#   python/wheel/try_wheel.sh dist/lockstep-*.whl torch==2.11.0
#
# PYTHON is the Python of the environment: python3 unless set.
set -euo pipefail
(($# >= 2)) || { sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2; }
wheel=$(realpath "$1")
staging=$(mktemp -d)
trap 'rm -rf "$staging"' EXIT
cd "$staging"
"${PYTHON:-python3}" -I -m venv environment
environment/bin/pip install --quiet --disable-pip-version-check "$wheel" "${@:2}"
PATH=$PWD/environment/bin:$PATH
step() { printf '\n== %s\n' "$*"; "$@"; }
step python -I -c 'import lockstep, torch
print("lockstep", lockstep.__version__, "torch", torch.__version__)
print(lockstep.batching.plan(torch.tensor([4, 3, 2, 1]), ranks=2, seq_len=5))'
step lockstep --nproc 2 scripts/digits_mlp.lua --set steps=20
step torchrun --standalone --nproc-per-node 2 --no-python lockstep scripts/digits_mlp.lua --set steps=20
printf '\ntry_wheel: all of it works\n'
