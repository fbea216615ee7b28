--- Runs one file of tests: lockstep run_test.lua FILE. See lua_test.bzl.

local file = require("lockstep.run").args[1]
local folder = file and file:match "^(.*)/" or "."
package.path = folder .. "/?.lua;" .. package.path -- its fixtures lie in its folder
require("lockstep.testing").main(file)
