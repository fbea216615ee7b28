#!/bin/sh
# Starts the packed lockstep program with the libtorch 2.11 of this machine.
#
# LIBTORCH names a folder that holds lib/libtorch_cpu.so, or a site-packages that holds it as torch/. Without
# LIBTORCH the torch that PYTHON (default: python3) would import is used; Python itself is not needed later.
# To read Parquet takes a pyarrow, too: next to torch, or in the folder that LIBARROW names.
here=$(dirname "$(readlink -f "$0")")
prefix=$(dirname "$here")

fail() {
  echo "lockstep: $1" >&2
  exit 1
}

if [ -n "${LIBTORCH:-}" ]; then
  torch=$LIBTORCH
  [ -e "$torch/lib/libtorch_cpu.so" ] || torch=$LIBTORCH/torch
  [ -e "$torch/lib/libtorch_cpu.so" ] ||
    fail "LIBTORCH=$LIBTORCH holds neither lib/libtorch_cpu.so nor torch/lib/libtorch_cpu.so; name the folder of torch 2.11"
else
  python=${PYTHON:-python3}
  command -v "$python" >/dev/null 2>&1 ||
    fail "needs libtorch 2.11: set LIBTORCH to its folder, or PYTHON to a Python that has torch 2.11 ($python was not found)"
  # Finds the package without importing it, which would take seconds.
  torch=$("$python" -c '
import importlib.util
spec = importlib.util.find_spec("torch")
print(spec.submodule_search_locations[0] if spec else "")') || torch=
  [ -n "$torch" ] && [ -e "$torch/lib/libtorch_cpu.so" ] ||
    fail "$python has no torch: install torch==2.11.0, or set LIBTORCH to the folder of a libtorch 2.11, or PYTHON to another Python"
fi

# The program is compiled against 2.11, and another version would fail with unresolved symbols.
version=
if [ -r "$torch/version.py" ]; then
  version=$(sed -n "s/^__version__ = '\([^']*\)'.*/\1/p" "$torch/version.py")
elif [ -r "$torch/build-version" ]; then
  version=$(cat "$torch/build-version")
fi
case $version in
  2.11.* | "") ;;
  *) fail "$torch is torch $version, and this program was built for 2.11; install torch==2.11.0, or set LIBTORCH" ;;
esac

arrow=${LIBARROW:-$(dirname "$torch")}/pyarrow
LD_LIBRARY_PATH=$torch/lib:$arrow${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH
# The scripts' data comes with the archive.
: "${LOCKSTEP_CACHE:=$prefix}"
export LOCKSTEP_CACHE
exec "$prefix/lib/lockstep" "$@"
