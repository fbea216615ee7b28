#!/usr/bin/env bash
# Packs the wheel, installs it into a new virtual environment beside this build's torch, and uses all that it brings.
set -uo pipefail
home=$(getent passwd "$(id -u)" | cut -d: -f6)
libtorch=$(cat ../libtorch/python_path)
package=()
for file in python/lockstep/*; do package+=("$file"); done
python3 python/wheel/make_wheel.py "$TEST_TMPDIR" driver/package/lockstep.tar "${package[@]}" >/dev/null || exit 1
mkdir "$TEST_TMPDIR/again"
python3 python/wheel/make_wheel.py "$TEST_TMPDIR/again" driver/package/lockstep.tar "${package[@]}" >/dev/null || exit 1
cd "$TEST_TMPDIR" || exit 1
failed=0
# expect NAME TEXT OUTPUT: the output must hold the text.
expect() {
  [[ $3 == *"$2"* ]] && return
  printf '%s: expected "%s" in:\n%s\n' "$1" "$2" "$3"
  failed=1
}

wheel=(lockstep-*.whl)
cmp "${wheel[0]}" again/*.whl || { echo "the same files give two wheels"; failed=1; }
expect "the name has the oldest glibc that docs/install.md promises" -py3-none-manylinux_2_35_x86_64.whl "${wheel[0]}"

# The environment sees nothing of this build: its torch and what that imports come by a .pth file, as if installed.
python3 -I -m venv environment || exit 1
run() {
  env -i PATH="$PWD/environment/bin:/usr/bin:/bin" HOME="$TEST_TMPDIR" OMP_NUM_THREADS=1 PYTHONWARNINGS=ignore "$@" 2>&1
}
expect "pip" "Successfully installed lockstep" "$(run pip install --disable-pip-version-check --no-index "./${wheel[0]}")"
printf '%s\n' 'local torch = require "lockstep.torch"' \
  'print("sum", torch.ones({ 3 }):sum():item(), require("lockstep.distributed").world_size())' >script.lua

# Without torch.
plan='import lockstep; print(lockstep.batching.plan([4, 3, 2, 1], ranks=2, seq_len=5))'
expect "a plan" "micro_steps=1" "$(run python -I -c "$plan")"
expect "a topology" "1 of 2" "$(run python -I -c 'import lockstep
topology = lockstep.mimo.topology(2, [{"name": "language", "dp": 2}])
print("%d of %d" % topology.dp_info(1))')"
expect "--list" "scripts/digits_mlp.lua " "$(run lockstep --list)"
expect "--help" "  lockstep [OPTION]... SCRIPT" "$(run lockstep --help)"
expect "--version" "lockstep $(run python -I -c 'import lockstep; print(lockstep.__version__)')" "$(run lockstep --version)"
expect "no torch" "has no torch: install torch==" "$(run lockstep script.lua)"
expect "a module that needs torch" "lockstep.nn needs torch" "$(run python -I -c 'import lockstep; lockstep.nn')"

# With torch. An install that nobody may write: a run leaves all in its own folders.
site=$(run python -I -c 'import site; print(site.getsitepackages()[0])')
printf '%s\n' "$libtorch" "${LOCKSTEP_CACHE:-$home/.cache/lockstep}/data/torch_python" >"$site/torch.pth"
chmod -R a-w environment
find environment | sort >before
expect "two ranks" "sum	3	2" "$(run lockstep --nproc 2 script.lua)"
torchrun=(python -I -m torch.distributed.run --standalone --nproc-per-node 2 --no-python)
expect "torchrun" "sum	3	2" "$(run "${torchrun[@]}" lockstep script.lua)"
expect "a script by its name" "the script has no such key (known: batch_size" \
  "$(run lockstep --nproc 1 scripts/digits_mlp.lua --set nothing=1)"
mkdir scripts
echo 'print("own script")' >scripts/digits_mlp.lua
expect "a script here comes first" "own script" "$(run lockstep --nproc 1 scripts/digits_mlp.lua)"
mkdir -p other/lib
touch other/lib/libtorch_cpu.so
for minor in 11 12; do
  echo "__version__ = '2.$minor.0+cpu'" >other/version.py
  [[ ${wheel[0]} == *+torch2.$minor-* ]] || expect "the wheel for another torch is named" \
    "; take the wheel ${wheel[0]%+torch*}+torch2.$minor-*.whl, install torch==" "$(run env LIBTORCH=other lockstep script.lua)"
done
expect "the torch of LIBTORCH" "LIBTORCH=/nowhere holds neither" "$(run env LIBTORCH=/nowhere lockstep script.lua)"
expect "to_wandb" "metrics.jsonl" "$(run lockstep-to-wandb nowhere)"
find environment -name __pycache__ -prune -o -print | sort >after
diff <(grep -v __pycache__ before) after || { echo "a run wrote into the install"; failed=1; }
chmod -R u+w environment
exit $failed
