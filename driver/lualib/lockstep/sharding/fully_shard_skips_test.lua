--- Ranks that use different units of a sharded model: each rank gets the same error, or joins.

local dist = require "lockstep.distributed"
local fixture = require "fully_shard_fixture"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local RANK, WORLD = dist.rank(), dist.world_size()
torch.set_default_dtype(torch.float64)

--- Returns the layers that each rank calls in each of two passes. All ranks draw the same numbers, so they agree.
---@param alike boolean? whether all ranks do what rank 0 does
local function schedules(random, alike)
  local all, differs = {}, false
  for pass = 1, 2 do
    all[pass] = {}
    for rank = 0, WORLD - 1 do
      local calls = {}
      for layer = 1, 3 do
        if random(4) > 1 then calls[#calls + 1] = layer end
      end
      if alike and rank > 0 then calls = all[pass][0] end
      all[pass][rank] = calls
      differs = differs or table.concat(calls) ~= table.concat(all[pass][0])
    end
  end
  return all, differs
end

t.test("RandomSkipsEndInOneMessageOnAllRanks", function()
  math.randomseed(20261122)
  local num_differing = 0
  for trial = 1, 30 do
    local all, differs = schedules(math.random, trial % 5 == 0)
    num_differing = num_differing + (differs and 1 or 0)
    local model = sharding.fully_shard(fixture.net(), { prefetch = trial % 3 })
    local function pass(number)
      local calls = all[number][RANK]
      if trial % 2 == 0 then return torch.no_grad(model.loss, model, fixture.tokens(number), calls) end
      model:loss(fixture.tokens(number), calls):backward()
    end
    local ok, message = pcall(function()
      pass(1)
      pass(2)
    end)
    -- Lua puts the rank's own line before it.
    local messages = dist.all_gather_object { ok = ok, message = tostring(message):match("fully_shard: .*") or "" }
    t.equal(ok, not differs, "trial " .. trial)
    for _, other in ipairs(messages) do t.equal(other, messages[1], "trial " .. trial) end
    if differs then
      t.truthy(message:find("fully_shard: the ranks differ in pass", 1, true), message)
      for rank = 0, WORLD - 1 do t.truthy(message:find(("\n  rank %d: "):format(rank), 1, true), message) end
      -- In a rank's line, and not before the whole, where Lua puts the own one.
      t.truthy(messages[1].message:find "\n  rank %d: [^\n]*_%a+%.lua:%d+%)", message)
    end
  end
  t.truthy(num_differing > 12 and num_differing < 30)
end)

-- All ranks have gathered the unit ahead: no collective of this pass differs.
t.test("ASkipBehindAPrefetchIsNamedWhereverItIs", function()
  for _, skipped in ipairs { 1, 2, 3 } do
    for _, prefetch in ipairs { 1, 2, 3 } do
      local model = sharding.fully_shard(fixture.net(), { prefetch = prefetch })
      local calls = {}
      for layer = 1, 3 do
        if layer ~= skipped or RANK ~= 1 then calls[#calls + 1] = layer end
      end
      local ok, message = pcall(torch.no_grad, function()
        model:loss(fixture.tokens(1))
        model:loss(fixture.tokens(2), calls)
      end)
      t.equal(ok, false, ("layer %d, prefetch %d"):format(skipped, prefetch))
      t.truthy(message:find("the ranks differ in pass 2", 1, true), message)
      local after = {}
      for rank, text in message:gmatch "\n  rank (%d): ([^\n]*)" do
        after[tonumber(rank)] = text:match "after .*" or ""
      end
      t.truthy(not after[1]:find(('"layers.%d"'):format(skipped - 1), 1, true), message)
      t.truthy(after[0] ~= after[1], message)
    end
  end
end)

t.test("RanksThatSkipJoinWithAZeroGradient", function()
  math.randomseed(7)
  for trial = 1, 6 do
    local drawn = {}
    for step = 1, 4 do drawn[step] = schedules(math.random) end
    local model = sharding.fully_shard(fixture.net(), { skipped = "join", prefetch = trial % 3,
      reshard_after_forward = trial % 2 == 0 })
    local found = fixture.train(model, 4, function(m, step)
      for pass = 1, 2 do m:loss(fixture.tokens(step + 10 * pass), drawn[step][pass][RANK]):backward() end
    end, { optimizer = function(parameters)
      -- Plain descent: AdamW would decay a layer that no rank used, or not, by the way its gradient is absent.
      local descent = { groups = {} }
      function descent.step()
        torch.no_grad(function()
          for _, p in ipairs(parameters) do
            if p.grad then p:sub_(p.grad * 0.1) end
          end
        end)
      end
      function descent.zero_grad()
        for _, p in ipairs(parameters) do p.grad = nil end
      end
      return descent
    end })

    local whole = fixture.net()
    for step = 1, 4 do
      for rank = 0, WORLD - 1 do
        for pass = 1, 2 do
          (whole:loss(fixture.tokens(step + 10 * pass, rank), drawn[step][pass][rank]) / WORLD):backward()
        end
      end
      torch.no_grad(function()
        for _, p in ipairs(whole:parameters()) do
          if p.grad then p:sub_(p.grad * 0.1) end
        end
      end)
      whole:zero_grad()
    end
    t.truthy(fixture.distance(found, whole:state_dict()) < 1e-12, "trial " .. trial)
  end
end)

t.test("AValidationPassThatOneRankLeavesEarlyIsNamed", function()
  local model = sharding.fully_shard(fixture.net())
  local ok, message = pcall(torch.no_grad, function()
    for step = 1, 3 + (RANK == 0 and 1 or 0) do model:loss(fixture.tokens(step)) end
    model:clip_grad_norm(1)
  end)
  t.equal(ok, false)
  t.truthy(message:find("rank 0: gathers the root for forward", 1, true), message)
  t.truthy(message:find("rank 1: clips gradients", 1, true), message)
end)
