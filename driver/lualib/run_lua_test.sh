#!/bin/sh
# run_lua_test.sh PROGRAM NPROC FILE: see lua_test.bzl.
exec "$1" --nproc "$2" --timeout 30 --run-dir "$TEST_TMPDIR/run" driver/lualib/run_test.lua "$3"
