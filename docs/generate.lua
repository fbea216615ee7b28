--- Writes reference.md into a folder:
---
---     bazel build //driver:lockstep
---     bazel-bin/driver/lockstep --nproc 1 docs/generate.lua docs
---
--- reference_test fails when the page in this folder is not what this program writes.

local reference = require "lockstep.help.reference"
local run = require "lockstep.run"

local folder = run.args[1]
if not folder or run.args[2] then error("generate.lua takes one argument, the folder to write to", 0) end
local file = assert(io.open(folder .. "/reference.md", "w"))
file:write(reference.page())
assert(file:close())
