--- Traces on several ranks: one file each, with its own operators and its collectives.

local core = require "lockstep.core"
local dist = require "lockstep.distributed"
local run = require "lockstep.run"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

t.test("EachRankWritesAFileOfItsOwn", function()
  local path = lockstep.profile({}, function()
    lockstep.span("rank " .. dist.rank(), function() dist.all_reduce(torch.ones { 4 }) end)
  end)
  dist.barrier()

  t.equal(path, string.format("%s/trace-rank%d.json", run.dir, dist.rank()))
  for rank = 0, dist.world_size() - 1 do
    local file = assert(io.open(string.format("%s/trace-rank%d.json", run.dir, rank)))
    -- Beyond 2^53, which our reader refuses rather than round.
    local text, names = file:read("*a"):gsub('("baseTimeNanoseconds": )%d+', "%10"), {}
    for _, event in ipairs(core.json_decode(text).traceEvents) do names[event.name or ""] = true end
    file:close()
    t.truthy(names["rank " .. rank], "the trace of rank " .. rank .. " lacks its span")
    t.truthy(names["gloo:all_reduce"], "the trace of rank " .. rank .. " lacks its collective")
  end
end)

t.test("RankZeroAlonePrintsTheRoofline", function()
  local printed, stdout = {}, io.stdout
  io.stdout = { -- luacheck: ignore 122
    write = function(_, ...) printed[#printed + 1] = table.concat { ... } end,
    flush = function() end,
  }
  local x = torch.ones { 4, 4 }
  lockstep.profile({ path = "roofline.json", roofline = true }, function()
    x:mm(x)
    dist.all_reduce(x)
  end)
  io.stdout = stdout -- luacheck: ignore 122
  dist.barrier()

  local text = table.concat(printed)
  t.equal(text:find("\nmatrix products", 1, true) ~= nil, dist.rank() == 0, text)
  t.equal(text:find("\ncommunication", 1, true) ~= nil, dist.rank() == 0, text)
end)
