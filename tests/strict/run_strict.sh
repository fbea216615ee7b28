#!/bin/sh
# run_strict.sh TEST: see strict.bzl.
export LOCKSTEP_PROGRAM=tests/strict/lockstep
exec "$1"
