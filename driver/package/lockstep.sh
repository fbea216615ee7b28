#!/bin/sh
# Starts the packed lockstep program with the libtorch of this machine: see built_for below.
#
# LIBTORCH names a folder that holds lib/libtorch_cpu.so, or a site-packages that holds it as torch/. Without
# LIBTORCH the torch that PYTHON (default: python3) would import is used; Python itself is not needed later.
# To read Parquet takes a pyarrow, too: next to torch, or in the folder that LIBARROW names.
#
# The current folder may be a model that was downloaded. Nothing is loaded from it unless a variable names it.
here=$(dirname "$(readlink -f "$0")")
prefix=$(dirname "$here")
# archive.sh fills these in: this version, the libtorch that the program was compiled with, and those that others can be.
version=@VERSION@
built_for=@TORCH@
oldest=@OLDEST@
newest=@NEWEST@
series=${built_for%.*}
asked=${1-}
found_torch="found none"

# These need no torch.
case ${1-} in
  --help | -h) exec cat "$prefix/lib/help.txt" ;;
  --list) if [ $# = 1 ] || { [ "$2" = scripts ] && [ ! -e scripts ]; }; then cat "$prefix/lib/list.txt" && echo "They are in $prefix/scripts, to be copied with the modules that they require." && exit; fi ;;
esac

# The scripts of the archive have their names of --list everywhere: scripts/NAME.lua, unless there is such a file here.
# The program takes what follows the first argument of that form as the script's own.
found_script=
for argument; do
  shift
  case $found_script$argument in
    scripts/*.lua)
      found_script=yes
      [ -e "$argument" ] || [ ! -e "$prefix/$argument" ] || argument=$prefix/$argument
      ;;
  esac
  set -- "$@" "$argument"
done

# --version is answered without a torch that fits, too.
fail() {
  if [ "$asked" = --version ]; then
    echo "lockstep $version (built for torch $built_for, $found_torch)"
    exit 0
  fi
  echo "lockstep: $1" >&2
  exit 1
}

# Prints the path of a file or folder that a variable names.
absolute() {
  case $1 in
    /*) printf '%s\n' "$1" ;;
    *) printf '%s\n' "$PWD/$1" ;;
  esac
}

if [ -n "${LIBTORCH:-}" ]; then
  torch=$(absolute "$LIBTORCH")
  [ -e "$torch/lib/libtorch_cpu.so" ] || torch=$torch/torch
  [ -e "$torch/lib/libtorch_cpu.so" ] ||
    fail "LIBTORCH=$LIBTORCH holds neither lib/libtorch_cpu.so nor torch/lib/libtorch_cpu.so; name the folder of torch $series"
else
  python=${PYTHON:-python3}
  found=$(command -v "$python") ||
    fail "needs libtorch $series: set LIBTORCH to its folder, or PYTHON to a Python that has torch $series ($python was not found)"
  # Finds the package without importing it, which would take seconds. -I: Python adds the current folder to its path
  # for -c, and runs the modules that it finds there. It also leaves out PYTHONPATH and the user's site-packages,
  # which are searched here.
  torch=$("$(absolute "$found")" -I -c '
import importlib.machinery, os, site, sys
named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
named = [os.path.abspath(folder) for folder in named if os.path.normpath(folder) != "."]
own = [] if sys.prefix != sys.base_prefix or "PYTHONNOUSERSITE" in os.environ else [site.getusersitepackages()]
spec = importlib.machinery.PathFinder.find_spec("torch", named + own + sys.path)
print(spec.submodule_search_locations[0] if spec and spec.submodule_search_locations else "")') || torch=
  [ -n "$torch" ] && [ -e "$torch/lib/libtorch_cpu.so" ] ||
    fail "$python has no torch: install torch==$built_for, or set LIBTORCH to the folder of a libtorch $series, or PYTHON to another Python"
fi

# Another version would fail with unresolved symbols.
has=
if [ -r "$torch/version.py" ]; then
  has=$(sed -n "s/^__version__ = '\([^']*\)'.*/\1/p" "$torch/version.py")
elif [ -r "$torch/build-version" ]; then
  has=$(cat "$torch/build-version")
fi
found_torch="found torch ${has:-of an unknown version}"
case $has in
  "$series".* | "") ;;
  *)
    found_torch="$found_torch, which does not fit"
    minor=${has#*.}
    minor=${minor%%.*}
    case $prefix in
      */lockstep/_program) other="the wheel lockstep-$version+torch${has%%.*}.$minor-*.whl" ;;
      *) other="the lockstep archive for torch ${has%%.*}.$minor" ;;
    esac
    if [ "${has%%.*}" = "${newest%.*}" ] && [ "$minor" -ge "${oldest#*.}" ] && [ "$minor" -le "${newest#*.}" ]; then
      other="take $other,"
    else
      other="there is no lockstep for torch ${has%%.*}.$minor, only for $oldest to $newest:"
    fi
    fail "$torch is torch $has, and this program was built for $series; $other install torch==$built_for, or set LIBTORCH to the folder of a libtorch $series"
    ;;
esac

arrow=$(absolute "${LIBARROW:-$(dirname "$torch")}")/pyarrow
case $torch$arrow in
  *:*) fail "the folders of libraries, $torch and $arrow, must have no colon in their names: LD_LIBRARY_PATH splits there" ;;
esac
# The loader takes an empty name in LD_LIBRARY_PATH, as at the end of "/opt/lib:", for the current folder.
libraries=$torch/lib:$arrow
set -f
IFS=:
for folder in ${LD_LIBRARY_PATH:-}; do
  case $folder in
    '' | . | ./) ;;
    *) libraries=$libraries:$(absolute "$folder") ;;
  esac
done
unset IFS
set +f
export LD_LIBRARY_PATH="$libraries"
# The scripts' data comes with the archive.
export LOCKSTEP_DATA="$prefix/data"
exec "$prefix/lib/lockstep" "$@"
