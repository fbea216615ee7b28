--- Runs one file of tests: lockstep run_test.lua FILE. See lua_test.bzl.

require("lockstep.testing").main(require("lockstep.run").args[1])
