--- Writes the LuaLS stubs of ATen's operators and of the modules lockstep.core into a folder. ./run does so after each
--- build, for editors:
---
---     bazel-bin/driver/lockstep --nproc 1 driver/lualib/types/generate.lua driver/lualib/types

local bindings = require "bindings"
local run = require "lockstep.run"
local stubs = require "stubs"

local folder = run.args[1]
if not folder or run.args[2] then error("generate.lua takes one argument, the folder to write to", 0) end
for _, files in ipairs { stubs.files(), bindings.files() } do
  for name, text in pairs(files) do
    local file = assert(io.open(folder .. "/" .. name, "w"))
    file:write(text)
    assert(file:close())
  end
end
