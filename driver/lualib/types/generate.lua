--- Writes the LuaLS stubs of ATen's operators into a folder. ./run does so after each build, for editors:
---
---     bazel-bin/driver/lockstep --nproc 1 driver/lualib/types/generate.lua driver/lualib/types

local run = require "lockstep.run"
local stubs = require "stubs"

local folder = run.args[1]
if not folder or run.args[2] then error("generate.lua takes one argument, the folder to write to", 0) end
for name, text in pairs(stubs.files()) do
  local file = assert(io.open(folder .. "/" .. name, "w"))
  file:write(text)
  assert(file:close())
end
