--- docs/reference.md is what docs/generate.lua writes.

local help = require "lockstep.help"
local reference = require "lockstep.help.reference"
local t = require "lockstep.testing"

t.test("ThePageIsFresh", function()
  local page = t.read_file("docs/reference.md")

  if page ~= reference.page() then
    error("docs/reference.md is stale: bazel-bin/driver/lockstep --nproc 1 docs/generate.lua docs", 0)
  end
end)

t.test("ThePageLeavesOutWhatIsPrivate", function()
  local page = reference.page()

  for _, private in ipairs { "batching.Stream:fill", "log.go_on_from", "models.Layer:after_attention", "nn.fields",
    "run.progress", "sharding.Drawn", "sharding.Packed:note", "text.Chat:renderer" } do
    t.truthy(reference.find(private), private) -- it is there, and has a comment
    t.equal({ private, page:find("### `" .. private, 1, true) }, { private })
  end
  for line in page:gmatch "[^\n]+" do
    local name = line:match "^### `([^`(]+)" or line:match "^%- `([^`]+)`"
    local is_private = name and (name == "private" or name:find "^_" or name:find "[.:]_")
    t.truthy(not is_private and not line:find("lockstep.core", 1, true), line)
  end
end)

t.test("HelpListsNothingPrivateButExplainsIt", function()
  t.equal(help.text("log"):find("go_on_from", 1, true), nil)
  t.truthy(help.text("log.go_on_from"):find("Continues the log", 1, true))
end)
