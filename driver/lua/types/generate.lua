--- Writes the LuaLS stubs of ATen's operators into a folder:
---
---     bazel build //driver:lockstep
---     bazel-bin/driver/lockstep --nproc 1 driver/lua/types/generate.lua driver/lua/types
---
--- types_test fails when the files in this folder are not what this program writes.

local run = require "lockstep.run"
local stubs = require "stubs"

local folder = run.args[1]
if not folder or run.args[2] then error("generate.lua takes one argument, the folder to write to", 0) end
for name, text in pairs(stubs.files()) do
  local file = assert(io.open(folder .. "/" .. name, "w"))
  file:write(text)
  assert(file:close())
end
