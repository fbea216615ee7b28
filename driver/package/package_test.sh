#!/usr/bin/env bash
# Unpacks the archive elsewhere and starts it, with an environment that holds nothing of the build.
set -uo pipefail
tar --extract --file=driver/package/lockstep.tar --directory="$TEST_TMPDIR"
libtorch=$(ldd driver/lockstep | awk '/libtorch_cpu/ {print $3}')
libtorch=${libtorch%/lib/libtorch_cpu.so}
parquet=$PWD/driver/data/parquet/testdata/types.parquet
cd "$TEST_TMPDIR" || exit 1
printf '%s\n' 'local torch = require "lockstep.torch"' \
  'print("sum", torch.ones({ 3 }):sum():item(), require("lockstep.distributed").world_size())' >script.lua
failed=0
built_for=$(sed -n "s/^__version__ = '\([0-9.]*\).*/\1/p" "$libtorch/version.py")
series=${built_for%.*}
newest=$(sed -n 's/^newest=//p' lockstep/bin/lockstep)

# lockstep VARIABLE=VALUE... -- ARGUMENT...: the packed program's output, errors too.
lockstep() {
  local variables=()
  while [[ $1 != -- ]]; do variables+=("$1"); shift; done
  shift
  env -i PATH=/usr/bin:/bin HOME="$TEST_TMPDIR" "${variables[@]}" lockstep/bin/lockstep "$@" 2>&1
}

# expect NAME TEXT OUTPUT: the output must hold the text.
expect() {
  [[ $3 == *"$2"* ]] && return
  printf '%s: expected "%s" in:\n%s\n' "$1" "$2" "$3"
  failed=1
}

expect "the folder of torch" "sum	3	1" "$(lockstep LIBTORCH="$libtorch" -- --nproc 1 script.lua)"
expect "a site-packages" "sum	3	1" "$(lockstep LIBTORCH="${libtorch%/torch}" -- --nproc 1 script.lua)"
expect "two ranks" "sum	3	2" "$(lockstep LIBTORCH="$libtorch" -- --nproc 2 script.lua)"
expect "the check of ranks" "2 ranks are well" \
  "$(lockstep LIBTORCH="$libtorch" -- --nproc 2 check --set seconds=0 --set slower=1e9 --set megabytes=1)"
expect "a script of the archive is there" "digits" "$(lockstep LIBTORCH="$libtorch" -- --list lockstep/scripts)"

# A Python that would import this torch, and one that would import another version.
mkdir -p old/torch/lib
touch old/torch/lib/libtorch_cpu.so
echo "__version__ = '2.10.0'" >old/torch/version.py
for torch in "$libtorch" "$TEST_TMPDIR/old/torch" ""; do
  printf '#!/bin/sh\necho "%s"\n' "$torch" >"python-${#torch}"
  chmod +x "python-${#torch}"
done
old=$TEST_TMPDIR/old/torch
expect "a Python's torch" "sum	3	1" "$(lockstep PYTHON="./python-${#libtorch}" -- --nproc 1 script.lua)"
this="and this program was built for $series;"
install="install torch==$built_for, or set LIBTORCH to the folder of a libtorch $series"
expect "a version that has no archive" \
  "is torch 2.10.0, $this there is no lockstep for torch 2.10, only for 2.11 to ${newest:?}: $install" \
  "$(lockstep PYTHON="./python-${#old}" -- --nproc 1 script.lua)"
for version in 2.11.1 "$newest.0a0+git1"; do
  echo "__version__ = '$version'" >old/torch/version.py
  [[ $series == "${version:0:4}" ]] || expect "another version" \
    "is torch $version, $this take the lockstep archive for torch ${version:0:4}, $install" \
    "$(lockstep PYTHON="./python-${#old}" -- --nproc 1 script.lua)"
done
echo "__version__ = '2.10.0'" >old/torch/version.py
expect "a Python without torch" "has no torch: install torch==$built_for" "$(lockstep PYTHON=./python-0 -- script.lua)"
version="lockstep $(sed -n 's/^version=//p' lockstep/bin/lockstep) (built for torch $built_for, "
[[ $version =~ ^"lockstep "[0-9]+\.[0-9]+\.[0-9]+" (built for torch 2."[0-9]+\.[0-9]+", "$ ]] || { echo "not a version: $version"; failed=1; }
expect "the version" "${version}runs with torch $built_for)" "$(lockstep LIBTORCH="$libtorch" -- --version)"
expect "the version without torch" "${version}found none)" "$(lockstep PYTHON=./python-0 -- --version)"
expect "the version without Python" "${version}found none)" "$(lockstep PYTHON=nowhere/python -- --version)"
expect "the version with another torch" "${version}found torch 2.10.0, which does not fit)" \
  "$(lockstep PYTHON="./python-${#old}" -- --version)"
expect "no Python" "nowhere/python was not found" "$(lockstep PYTHON=nowhere/python -- script.lua)"
# A folder whose files take the names of what the launcher and Python load: a model that was downloaded, for example.
mkdir -p hostile/importlib hostile/torch/lib site user/.local/lib
for module in contextlib os site re sitecustomize usercustomize importlib/__init__ torch/__init__; do
  echo 'open("/proc/self/fd/1", "w").write("code of the current folder ran\n")' >"hostile/$module.py"
done
for library in libspng.so.0 libonig.so.5 libgomp.so.1 libz.so.1 libc10.so torch/lib/libtorch_cpu.so torch/lib/libc10.so cjson.so; do
  echo "not a library" >"hostile/$library"
done
printf '#!/bin/sh\necho "code of the current folder ran"\n' | tee hostile/python3 >hostile/readlink
chmod +x hostile/python3 hostile/readlink
ln -s "$libtorch" site/torch
own=$(HOME=$PWD/user python3 -I -c 'import site; print(site.getusersitepackages())')
mkdir -p "$own"
ln -s "$libtorch" "$own/torch"
in_hostile() {
  local variables=()
  while [[ $1 != -- ]]; do variables+=("$1"); shift; done
  shift
  (cd hostile && env -i PATH=/usr/bin:/bin HOME="$TEST_TMPDIR" "${variables[@]}" ../lockstep/bin/lockstep "$@" 2>&1)
}
# expect_only NAME TEXT OUTPUT: as expect, and nothing of the hostile folder has been read.
expect_only() {
  expect "$1" "$2" "$3"
  [[ $3 != *"the current folder ran"* && $3 != *"not a library"* && $3 != *"invalid ELF"* && $3 != *"file too short"* ]] || {
    printf '%s: loads from the current folder:\n%s\n' "$1" "$3"
    failed=1
  }
}
one=(--nproc 1 ../script.lua)
expect_only "LIBTORCH in a hostile folder" "sum	3	1" "$(in_hostile LIBTORCH="$libtorch" -- "${one[@]}")"
expect_only "PYTHONPATH in a hostile folder" "sum	3	1" "$(in_hostile PYTHONPATH="$PWD/site" -- "${one[@]}")"
expect_only "a relative PYTHONPATH" "sum	3	1" "$(in_hostile PYTHONPATH=../site -- "${one[@]}")"
expect_only "PYTHONPATH with the current folder in it" "sum	3	1" "$(in_hostile PYTHONPATH=":.:./:$PWD/site:" -- "${one[@]}")"
expect_only "the user's site-packages" "sum	3	1" "$(in_hostile HOME="$PWD/user" -- "${one[@]}")"
expect_only "no torch but the current folder's" "has no torch: install torch==$built_for" "$(in_hostile X= -- "${one[@]}")"
for folders in : "/usr/lib:" ".:/usr/lib" "::./"; do
  expect_only "LD_LIBRARY_PATH=$folders" "sum	3	1" \
    "$(in_hostile LIBTORCH="$libtorch" LD_LIBRARY_PATH="$folders" LUA_CPATH='./?.so' -- "${one[@]}")"
done
expect "a folder that LD_LIBRARY_PATH cannot name" "must have no colon" "$(
  ln -s "$libtorch" a:b
  lockstep LIBTORCH=a:b -- script.lua
)"

# The CPU image of scripts/launch/Dockerfile copies these files out of the wheels: the program needs no others.
mkdir cpu
reader=lockstep/lib/driver/data/parquet/liblockstep_parquet.so # absent if this was built without Arrow
arrow=
[[ ! -e $reader ]] || arrow=$(ldd $reader | awk '/libarrow[.]so/ {print $3}')
arrow=${arrow%/pyarrow/*}
while read -r _ _ files; do
  for file in ${files% *}; do
    to=${files##* }
    mkdir -p "cpu${to%/}"
    # pyarrow lies where the library that reads Parquet was linked with it.
    wheels=${libtorch%/torch}
    [[ $file != /wheels/pyarrow/* ]] || wheels=$arrow
    ln -s "$wheels/${file#/wheels/}" "cpu$to"
  done
done < <(sed -n '/^FROM program AS cpu$/,/^FROM program AS cuda$/s/^COPY --from=wheels/& /p' lockstep/scripts/launch/Dockerfile)
needed=$(LD_LIBRARY_PATH=$PWD/cpu/opt/libtorch/torch/lib ldd lockstep/lib/lockstep)
expect "libtorch of the CPU image" "$PWD/cpu/opt/libtorch/torch/lib/libtorch_cpu.so" "$needed"
expect "libraries of CUDA of the CPU image" "$PWD/cpu/opt/libtorch/torch/lib/../../nvidia/cu13/lib/libcupti.so" "$needed"
case $needed in
  *"not found"* | *"$libtorch"*)
    printf 'the CPU image lacks a library:\n%s\n' "$needed"
    failed=1
    ;;
esac
expect "the CPU image" "sum	3	1" "$(lockstep LIBTORCH="$PWD/cpu/opt/libtorch" -- --nproc 1 script.lua)"
if [[ -n $arrow ]]; then
  needed=$(LD_LIBRARY_PATH=$PWD/cpu/opt/libtorch/pyarrow ldd $reader)
  for library in libarrow libparquet; do
    expect "$library of the CPU image" "$PWD/cpu/opt/libtorch/pyarrow/$library.so" "$needed"
  done
  printf 'print("flag", require("lockstep.data").source("%s", { cache = "cache" })[1].flag)\n' "$parquet" >rows.lua
  expect "Parquet in the CPU image" "flag	true" "$(lockstep LIBTORCH="$PWD/cpu/opt/libtorch" -- --nproc 1 rows.lua)"
fi
expect "the wheel of Parquet" "pyarrow==" "$(cat lockstep/requirements-parquet.txt)"
expect "the wheels of the images" "torch==$built_for" "$(cat lockstep/requirements.txt)"
[[ $built_for != 2.11.0 ]] || expect "their hashes" "torch==2.11.0 --hash=" "$(cat lockstep/requirements.txt)"
for requirement in torch:requirements pyarrow:requirements-parquet; do
  hashes=$(grep "^${requirement%:*}==" "lockstep/${requirement#*:}.txt" | grep -o -- --hash=sha256: | wc -l)
  [[ $built_for != 2.11.0 ]] || ((hashes >= 4)) || { echo "$requirement has the hashes of $hashes wheels, but of 4 Pythons"; failed=1; }
done
[[ -x lockstep/scripts/launch/node.sh ]] || { echo "node.sh is not executable"; failed=1; }

# An install that nobody may write, as root of a cluster makes it: the cache is the user's, and the scripts' data is
# found. Where a test runs as root, permissions stop nothing, so the folder is compared before and after.
mkdir -p lockstep/data home
echo "packed" >lockstep/data/digits.csv.gz
yes '{"text": "a sample"}' | head -c 2000000 >big.jsonl
cat >read.lua <<'LUA'
local data = require "lockstep.data"
print("samples", #data.source("big.jsonl"), io.open(data.path("digits.csv.gz")):read("*l"))
LUA
chmod -R a-w lockstep
find lockstep | sort >before
user=(LIBTORCH="$libtorch" HOME="$PWD/home")
samples=$(((2000000 + 20) / 21))
expect "the cache of a user" "samples	$samples	packed" "$(lockstep "${user[@]}" -- --nproc 1 read.lua)"
expect "the index in ~/.cache" big.jsonl "$(ls home/.cache/lockstep/index)"
expect "XDG_CACHE_HOME" "samples	$samples" "$(lockstep "${user[@]}" XDG_CACHE_HOME="$PWD/xdg" -- --nproc 1 read.lua)"
expect "the index in XDG_CACHE_HOME" big.jsonl "$(ls xdg/lockstep/index)"
expect "LOCKSTEP_CACHE" "samples	$samples	packed" "$(lockstep "${user[@]}" LOCKSTEP_CACHE="$PWD/own" -- --nproc 1 read.lua)"
expect "the index in LOCKSTEP_CACHE" big.jsonl "$(ls own/index)"
mkdir elsewhere
expect "pretrain.lua on its own documents" "documents to learn from" "$(
  cd elsewhere && env -i PATH=/usr/bin:/bin "${user[@]}" ../lockstep/bin/lockstep --nproc 1 ../lockstep/scripts/pretrain.lua \
    --set steps=1 --set tokenizer_documents=2 --set held_out=0 --set sequences_per_step=1 --set micro_batch=1 2>&1
)"
find lockstep | sort | diff before - || { echo "a run wrote into the install"; failed=1; }
chmod -R u+w lockstep

# Parquet: a library that cannot be loaded, as without pyarrow, and a program that was built without it.
printf 'require("lockstep.data").source("x.parquet", { cache = "cache" })\n' >parquet.lua
touch x.parquet
mkdir -p lockstep/lib/driver/data/parquet
echo >lockstep/lib/driver/data/parquet/liblockstep_parquet.so
expect "no pyarrow" "x.parquet: Apache Arrow's library, which reads Parquet, cannot be loaded: " \
  "$(lockstep LIBTORCH="$libtorch" -- --nproc 1 parquet.lua)"
rm lockstep/lib/driver/data/parquet/liblockstep_parquet.so
expect "built without Arrow" "x.parquet: this program was built without Apache Arrow's library" \
  "$(lockstep LIBTORCH="$libtorch" -- --nproc 1 parquet.lua)"

expect "a wrong LIBTORCH" "LIBTORCH=/tmp holds neither" "$(lockstep LIBTORCH=/tmp -- script.lua)"
exit "$failed"
