#!/bin/sh
# run_strict.sh TEST: see strict.bzl.
export LOCKSTEP_PROGRAM=tests/strict/lockstep LOCKSTEP_STRICT_TWIN=1
exec "$1"
