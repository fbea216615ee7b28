--- lockstep.graph on several ranks without a GPU: nothing is recorded, and collectives work as in any function.

local dist = require "lockstep.distributed"
local lockstep = require "lockstep"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

t.test("EachCallRunsTheFunction", function()
  local runs = 0
  local graph = lockstep.graph(function(x)
    runs = runs + 1
    local sum = x * 2
    dist.all_reduce(sum)
    return sum
  end, { warmup = 1 })

  for i = 1, 4 do t.equal(graph(torch.full({ 2 }, i)):totable(), { 4 * i, 4 * i }) end

  t.equal({ runs, graph.calls, graph.hits, graph.captured }, { 4, 4, 0, false })
end)
