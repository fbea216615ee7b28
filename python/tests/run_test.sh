#!/bin/sh
# run_test.sh MODULE [FOLDER]: runs MODULE.py of this folder, or of another, with the package of this build on its path, and
# with torch where the test's data has it: the one that the build uses, and what it imports from the cache
# (third_party/torch_python).
path=python:${2:-python/tests}
libtorch=../libtorch/python_path
if [ -e "$libtorch" ]; then
  home=$(getent passwd "$(id -u)" | cut -d: -f6)
  path=$path:$(cat "$libtorch"):${LOCKSTEP_CACHE:-$home/.cache/lockstep}/data/torch_python
fi
exec env PYTHONPATH="$path" PYTHONDONTWRITEBYTECODE=1 PYTHONWARNINGS="ignore:Failed to initialize NumPy" OMP_NUM_THREADS=1 \
  python3 tests/lint/unittest_xml.py "$1"
