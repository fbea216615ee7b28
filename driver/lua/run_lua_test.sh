#!/bin/sh
# run_lua_test.sh NPROC FILE: see lua_test.bzl.
exec driver/lockstep --nproc "$1" --timeout 30 --run-dir "$TEST_TMPDIR/run" driver/lua/run_test.lua "$2"
