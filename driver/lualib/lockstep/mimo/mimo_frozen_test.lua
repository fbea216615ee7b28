--- Towers that are frozen on all ranks or on some. A rank without a gradient still runs backward like the others, and
--- no rank waits for a message that never comes. On four ranks.

local dist = require "lockstep.distributed"
local mimo = require "lockstep.mimo"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local RANK = dist.rank()
local COLUMNS, ROWS, SAMPLES = 3, 2, 4

local GRIDS = {
  { name = "dp 2 to dp 2", { dp = 2 }, { dp = 2, first_rank = 2 } },
  { name = "dp 3 to dp 1", { dp = 3 }, { first_rank = 3 } },
  { name = "dp 1 to dp 3", {}, { dp = 3, first_rank = 1 } },
  { name = "dp 2 to tp 2", { dp = 2 }, { tp = 2, first_rank = 2 } },
  { name = "dp 2 to cp 2", { dp = 2 }, { cp = 2, first_rank = 2 } },
  { name = "tp 2 to dp 2", { tp = 2 }, { dp = 2, first_rank = 2 } },
  { name = "dp 4 to dp 2 tp 2 on the same ranks", { dp = 4 }, { dp = 2, tp = 2 } },
  { name = "dp 2 tp 2 to dp 4 on the same ranks", { dp = 2, tp = 2 }, { dp = 4 } },
  { name = "dp 4 to dp 4 on the same ranks", { dp = 4 }, { dp = 4 } },
}

--- The frozen replicas of vision.
local FROZEN = {
  none = function() return false end,
  all = function() return true end,
  ["the first replica"] = function(dp_rank) return dp_rank == 0 end,
  ["the last replica"] = function(dp_rank, dp_size) return dp_rank == dp_size - 1 end,
}

--- The rows [first, first + count) of replica i of k.
local function rows_of(tensor, i, k)
  local small, larger = math.floor(SAMPLES / k), SAMPLES % k
  local first = i * small + math.min(i, larger)
  return tensor:narrow(0, ROWS * first, ROWS * (small + (i < larger and 1 or 0)))
end

--- A trained language model's loss over frozen and trained towers, some steps of it.
local function train(topology, is_frozen)
  local vision, language = topology:peers("vision", "dp") ~= nil, topology:peers("language", "dp") ~= nil
  local bridge = mimo.bridge { topology = topology, from = "vision", to = "language" }
  local rows = {}
  for i = 1, SAMPLES do rows[i] = ROWS end
  local projector = torch.full({ COLUMNS }, 2):requires_grad_(true)
  for step = 1, 4 do
    torch.manual_seed(step)
    local whole, weight = torch.randn { SAMPLES * ROWS, COLUMNS }, torch.randn { SAMPLES * ROWS, COLUMNS }
    local x, frozen
    if vision then
      local dp_rank, dp_size = topology:dp_info(RANK, "vision")
      frozen = is_frozen(dp_rank, dp_size)
      x = rows_of(whole, dp_rank, dp_size):clone():requires_grad_(not frozen)
    end

    local y = bridge(x, { rows_per_sample = rows })

    if language then
      local dp_rank, dp_size = topology:dp_info(RANK, "language")
      t.truthy(torch.equal(y:detach(), rows_of(whole, dp_rank, dp_size)))
      local cp = topology:peers("language", "cp")
      local loss = torch.sum(y * projector * rows_of(weight, dp_rank, dp_size)) / #cp
      loss:backward()
      t.truthy(projector.grad, "the projector has no gradient")
    else
      torch.sum(y):backward()
    end
    if frozen then t.equal(x.grad, nil) end
    if vision and not frozen then t.near(x.grad, 2 * rows_of(weight, topology:dp_info(RANK, "vision")), 1e-6) end
  end
end

for _, grids in ipairs(GRIDS) do
  for _, which in ipairs { "none", "all", "the first replica", "the last replica" } do
    t.test(("AFrozenTowerTakesNoGradientAndDelaysNoRank(%s, frozen: %s)"):format(grids.name, which), function()
      local from, to = grids[1], grids[2]
      from.name, to.name = "vision", "language"
      train(mimo.topology { modules = { from, to } }, FROZEN[which])
    end)
  end
end

--- From vision on ranks 0 and 1 to two replicas of language.
local function new_bridge(vision)
  local topology = mimo.topology { modules = { vision, { name = "language", dp = 2, first_rank = 2 } } }
  return mimo.bridge { topology = topology, from = "vision", to = "language" }
end

-- One tensor of two is frozen, on one replica: dp 2 to dp 2.
t.test("EachTensorIsFrozenOrNotByItself", function()
  local bridge = new_bridge { name = "vision", dp = 2 }
  local x = RANK < 2 and { torch.ones { 2, 2 }:requires_grad_(RANK == 0), torch.ones { 2, 2 }:requires_grad_(RANK == 1),
    torch.arange(2) } or nil

  local y = bridge(x)

  t.equal({ y[1].requires_grad, y[2].requires_grad, y[3].requires_grad }, { true, true, false })
  torch.add(y[1]:sum() * 2, y[2]:sum() * 3):backward()
  if x then
    t.equal(x[1].grad, RANK == 0 and torch.full({ 2, 2 }, 2) or nil)
    t.equal(x[2].grad, RANK == 1 and torch.full({ 2, 2 }, 3) or nil)
  end
end)

t.test("AFrozenTowerUnderNoGradIsAConstant", function()
  local bridge = new_bridge { name = "vision", dp = 2 }
  local weight = torch.ones { 2 }:requires_grad_(true)
  for _ = 1, 3 do
    local x = RANK < 2 and torch.no_grad(function() return torch.ones { 2, 2 } * weight end) or nil
    torch.sum(bridge(x) * weight):backward()
  end
  if RANK >= 2 then t.equal(weight.grad, torch.full({ 2 }, 6)) end
end)

t.test("AFrozenTowerStillLearnsWhatTheOtherSideSays", function()
  local bridge = new_bridge { name = "vision", dp = 2 }
  local opts = { rows_per_sample = RANK < 2 and { 1, 1 } or { 1, 2 } }

  t.raises("the ranks disagree about the micro-batch", function()
    for _ = 1, 3 do torch.sum(bridge(RANK < 2 and torch.ones { 1, 2 } or nil, opts)):backward() end
  end)
end)

-- Both have the same rows, and gather the halves of their gradient.
t.test("TensorParallelRanksOfAReplicaAreFrozenTogether", function()
  local bridge = new_bridge { name = "vision", tp = 2 }

  local function train_one_lane()
    for _ = 1, 3 do
      local y = bridge(RANK < 2 and torch.ones { 4, 2 }:requires_grad_(RANK == 0) or nil)
      if RANK < 2 then torch.sum(y):backward() end
    end
  end

  if RANK >= 2 then
    return bridge() -- and no backward: the towers do not come to take a gradient
  end
  local message = t.raises("hold the same replica, but x requires grad on one of them alone", train_one_lane)
  t.truthy(message:find("call 0: rank " .. RANK .. " (vision) and rank " .. 1 - RANK .. " (vision)", 1, true), message)
end)
