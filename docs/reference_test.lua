--- docs/reference.md is what docs/generate.lua writes.

local reference = require "lockstep.help.reference"
local t = require "lockstep.testing"

t.test("ThePageIsFresh", function()
  local page = t.read_file("docs/reference.md")

  if page ~= reference.page() then
    error("docs/reference.md is stale: bazel-bin/driver/lockstep --nproc 1 docs/generate.lua docs", 0)
  end
end)
