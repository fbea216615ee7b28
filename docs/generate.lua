--- Writes reference.md into a folder, and the table of parallelism.md there:
---
---     bazel build //driver:lockstep
---     bazel-bin/driver/lockstep --nproc 1 docs/generate.lua docs
---
--- reference_test and grids_test fail when the pages in this folder are not what this program writes.

local reference = require "lockstep.help.reference"
local run = require "lockstep.run"

local here = debug.getinfo(1, "S").source:match "^@(.*)/" or "."
package.path = ("%s/?.lua;%s/../driver/lualib/?.lua;%s"):format(here, here, package.path) -- fixtures of tests, too
local grids = require "grids"

local folder = run.args[1]
if not folder or run.args[2] then error("generate.lua takes one argument, the folder to write to", 0) end

local function write(name, text)
  local file = assert(io.open(folder .. "/" .. name, "w"))
  file:write(text)
  assert(file:close())
end

write("reference.md", reference.page())
local file = io.open(folder .. "/parallelism.md")
if file then -- a folder for the reference alone has no such page
  local page = file:read "*a"
  file:close()
  write("parallelism.md", grids.fresh(page))
end
