--- Regions that communicate. Collectives that every rank calls in the region are called again by every rank, in the
--- same order. A message between two ranks, or a bridge, is an error: the other rank takes part once.

local checkpoint = require "lockstep.checkpoint"
local dist = require "lockstep.distributed"
local mimo = require "lockstep.mimo"
local nn = require "lockstep.nn"
local t = require "lockstep.testing"
local tiled_mlp = require "lockstep.tiled_mlp"
local torch = require "lockstep.torch"

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1) -- small tensors

local RANK = dist.rank()

local function plainly(fn, ...) return fn(...) end

local function input()
  torch.manual_seed(10 + RANK)
  return torch.randn({ 4, 4 }):requires_grad_(true)
end

local functional = dist.functional
local FUNCTIONS = {
  { "functional.all_reduce", function(h) return functional.all_reduce(h) end },
  { "functional.all_gather", function(h) return functional.all_gather(h) end },
  { "functional.reduce_scatter", function(h) return functional.reduce_scatter(h) end },
  { "functional.all_to_all", function(h) return functional.all_to_all(h, { split_dim = 0, concat_dim = 0 }) end },
  { "functional.broadcast", function(h) return functional.broadcast(h, 1) end },
  { "all_reduce", function(h) return h * dist.all_reduce(h:detach():clone(), "max") end },
  { "broadcast", function(h) return h * dist.broadcast(h:detach():clone(), 0) end },
  { "all_gather", function(h) return h * dist.all_gather(h:detach())[2] end },
  { "reduce_scatter", function(h) return h * dist.reduce_scatter { h:detach(), 2 * h:detach() } end },
  { "all_gather_object", function(h) return h * dist.all_gather_object(RANK + 1)[2] end },
  { "barrier", function(h)
    dist.barrier()
    return h * 2
  end },
}

for _, early_stop in ipairs { true, false } do
  for _, case in ipairs(FUNCTIONS) do
    local name, fn = case[1], case[2]
    t.test(("CollectivesOfAllRanksAreCalledAgain(%s, early stop %s)"):format(name, tostring(early_stop)), function()
      local function gradients(call)
        torch.manual_seed(1)
        local net, x = nn.Linear(4, 4), input()
        local y = x
        for _ = 1, 3 do
          y = call(function(h) return torch.tanh(fn(torch.tanh(net(h)))) end, y)
          if y:size(0) ~= 4 then y = torch.cat { y, y }:narrow(0, 0, 4) end
        end
        return torch.grad(y:sum(), { x, net.weight, net.bias })
      end

      t.equal(gradients(checkpoint.new { early_stop = early_stop }), gradients(plainly))
    end)
  end
end

t.test("ACollectiveThatOneRankLeavesOutIsAnErrorAtOnce", function()
  local x, group = input(), dist.group { ranks = { 0, 1 } }
  local y = checkpoint.new()(function(h)
    return torch.tanh(h * dist.all_reduce(torch.ones {}, "sum", { group = group }))
  end, x)

  t.raises("the ranks call different collectives", function()
    if RANK == 0 then y:sum():backward() end
    dist.all_reduce(torch.ones { 3 }, "sum", { group = group })
  end)
end)

local MESSAGE = " is not possible inside a checkpoint region "

t.test("AMessageBetweenTwoRanksIsAnErrorInForward", function()
  local x = input()
  local ckpt = checkpoint.new()
  local function exchange(h)
    if RANK == 0 then dist.send(torch.ones { 2 }, 1) else dist.recv(torch.ones { 2 }, 0) end
    return torch.tanh(h)
  end

  local message = t.raises(MESSAGE, ckpt, exchange, x)
  t.truthy(message:find(RANK == 0 and "dist.send: " or "dist.recv: ", 1, true), message)
  t.truthy(message:find("checkpoint region [^\n]*checkpoint_collectives_test.lua:%d+"), message)
  t.raises("inside a function of tiled_mlp", tiled_mlp.new { tiles = 2 }, exchange, x)

  exchange(x)
  torch.no_grad(ckpt, exchange, x)
end)

local function new_bridge()
  local modules = { { name = "vision", dp = 1 }, { name = "language", first_rank = 1, dp = 1 } }
  local topology = mimo.topology { modules = modules }
  return mimo.bridge { topology = topology, from = "vision", to = "language" }
end

local ROWS = { rows_per_sample = { 4 } }

t.test("ABridgeInARegionIsAnErrorOnBothSides", function()
  local x, bridge = input(), new_bridge()
  local given = RANK == 0 and x or nil

  local message = t.raises(MESSAGE, function()
    if RANK == 0 then
      checkpoint.new()(function(h) return bridge(torch.tanh(h), ROWS) end, x)
    else
      torch.sum(bridge(nil, ROWS)):backward()
    end
  end)

  t.truthy(message:find("mimo: a call of bridge vision -> language", 1, true), message)
  t.raises("failed before", bridge, given, ROWS)
end)

t.test("ABridgeOutsideOfRegionsTakesTheirResults", function()
  local function gradients(call)
    local x, bridge = input(), new_bridge()
    if RANK == 0 then
      torch.sum(bridge(call(torch.tanh, x), ROWS)):backward()
      return x.grad
    end
    local y = call(function(h, own) return torch.tanh(h * own) end, bridge(nil, ROWS), x)
    y:sum():backward()
    return x.grad
  end

  t.equal(gradients(checkpoint.new()), gradients(plainly))
end)

t.test("ABridgeInARegionWithoutGradientsIsJustCalled", function()
  local x, bridge = input(), new_bridge()
  local y = torch.no_grad(checkpoint.new(), function(h) return bridge(RANK == 0 and h or nil, ROWS) end, x)
  t.equal(y:size(0), RANK == 0 and 0 or 4)
end)
