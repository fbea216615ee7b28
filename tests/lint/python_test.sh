#!/bin/sh
# python_test.sh MODULE: runs tests/lint/MODULE.py in the workspace that this file belongs to.
exec python3 -B "$(dirname "$(readlink -f "$0")")/unittest_xml.py" "$1"
