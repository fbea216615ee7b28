#!/bin/sh
# run_test.sh PYTHON MODULE: runs python/tests/MODULE.py with the package of this build on its path.
python=$1
shift
exec env PYTHONPATH=python:python/tests PYTHONDONTWRITEBYTECODE=1 "$python" tests/lint/unittest_xml.py "$@"
