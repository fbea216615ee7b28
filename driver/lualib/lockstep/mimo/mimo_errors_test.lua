--- A failure on one side of a bridge is an error on both sides, which names the ranks. Vision on ranks 0 and 1,
--- language on rank 2.

local dist = require "lockstep.distributed"
local mimo = require "lockstep.mimo"
local nn = require "lockstep.nn"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local RANK = dist.rank()
local IS_VISION = RANK < 2

local function new_topology()
  return mimo.topology { modules = { { name = "vision", dp = 2 }, { name = "language", first_rank = 2 } } }
end
local topo = new_topology()

--- A bridge with a topology of its own: once one has failed, the gradients of its topology are not reduced.
local function new_bridge() return mimo.bridge { topology = new_topology(), from = "vision", to = "language" } end

--- Forward and backward of a call with x on ranks of vision.
local function call(bridge, x, opts)
  local y = bridge(x, opts)
  torch.sum(y):backward()
  return y
end

local function ones(rows, columns) return torch.ones { rows, columns or 2 }:requires_grad_(true) end

t.test("EachRankGetsTheGradientOfItsRowsHoweverManyTheyAre", function()
  local rows, bridge = { 1, 3 }, new_bridge()
  local x = IS_VISION and torch.full({ rows[RANK + 1], 2 }, 1 + RANK):requires_grad_(true) or nil

  local y = bridge(x, { rows_per_sample = rows })
  torch.sum(IS_VISION and y or y * y:detach()):backward()

  if x then t.equal(x.grad, torch.full({ rows[RANK + 1], 2 }, 1 + RANK)) end
end)

t.test("AMistakeOfTheSenderReachesTheReceiver", function()
  local bridge = new_bridge()
  local opts = { rows_per_sample = { 1, 3 } }

  if RANK == 0 then
    t.raises("x has 2 rows on dim 0, but the samples of rank 0 (vision) have 1 of rows per sample {1, 3}", bridge,
      ones(2), opts)
    t.raises("failed before", bridge, ones(1), opts)
  elseif RANK == 1 then
    -- Its own part went well: it learns of the failure in backward.
    t.raises("rank 0 (vision) failed: mimo: bridge vision -> language: x has 2 rows", call, bridge, ones(3), opts)
  else
    t.raises("rank 0 (vision) failed: mimo: bridge vision -> language: x has 2 rows", bridge, nil, opts)
  end
end)

t.test("AMistakeOfTheReceiverReachesTheSenders", function()
  local bridge = new_bridge()

  if IS_VISION then
    t.raises("rank 2 (language) failed: mimo: bridge vision -> language: rank 2 (language) receives, and has no x",
      call, bridge, ones(1))
  else
    t.raises("rank 2 (language) receives, and has no x to give", bridge, ones(1))
  end
end)

t.test("TablesThatDifferAreNamedOnBothSides", function()
  local bridge = new_bridge()
  local opts = { rows_per_sample = RANK == 2 and { 2, 3 } or { 1, 3 } }

  local message = t.raises("the ranks disagree about the micro-batch", call, bridge,
    IS_VISION and ones(1 + 2 * RANK) or nil, opts)

  t.truthy(message:find("rows per sample {1, 3}", 1, true), message)
  t.truthy(message:find("rows per sample {2, 3}", 1, true), message)
end)

t.test("TablesThatDifferInLaterCallsAreNamedToo", function()
  local bridge = new_bridge()
  for _ = 1, 2 do call(bridge, IS_VISION and ones(1 + 2 * RANK) or nil, { rows_per_sample = { 1, 3 } }) end
  local opts = { rows_per_sample = RANK == 2 and { 4, 3, 2 } or { 1, 3 } }

  t.raises("call 2", call, bridge, IS_VISION and ones(1 + 2 * RANK) or nil, opts)
end)

t.test("SizesAndDtypesAreThoseOfTheFirstCall", function()
  for _, x in ipairs { ones(1, 3), torch.ones({ 1, 2 }, { dtype = torch.float64 }):requires_grad_(true) } do
    local bridge = new_bridge()
    call(bridge, IS_VISION and ones(1) or nil)

    if RANK == 0 then
      t.raises("but was Float [rows, 2] in earlier calls", bridge, x)
    elseif RANK == 1 then
      t.raises("rank 0 (vision) failed", call, bridge, ones(1))
    else
      t.raises("rank 0 (vision) failed", bridge)
    end
  end
end)

t.test("SourcesThatSendDifferentThingsAreNamed", function()
  local bridge = new_bridge()

  t.raises("Float [rows, 3]", call, bridge, IS_VISION and ones(1, RANK == 0 and 2 or 3) or nil)
end)

t.test("WithoutATableSourcesThatDifferAreNamed", function()
  local bridge = new_bridge()

  t.raises("the ranks disagree about the micro-batch", call, bridge, IS_VISION and ones(1 + RANK) or nil)
end)

t.test("RowsThatVaryWantATable", function()
  local bridge = new_bridge()
  call(bridge, IS_VISION and ones(1) or nil)

  if IS_VISION then
    t.raises("x has 2 rows on dim 0, but in the first call it was 1; where it varies, say which rows are whose", bridge,
      ones(2))
  else
    t.raises("but in the first call it was 1", bridge)
  end
end)

t.test("AGraphThatIsThrownAwayIsAnError", function()
  local bridge = new_bridge()
  local x = IS_VISION and ones(1) or nil

  local y = bridge(x)

  if IS_VISION then
    t.raises("rank 2 (language) failed: the graph of its call 0 is gone, and backward never ran through it", function()
      torch.sum(y):backward()
    end)
  else
    y = nil -- luacheck: ignore
    collectgarbage()
    collectgarbage()
  end
end)

t.test("ACallThatIsNeverWaitedForIsAnError", function()
  local bridge = new_bridge()
  local x = IS_VISION and ones(1) or nil

  local pending = bridge:start(x)

  if IS_VISION then
    t.raises("rank 2 (language) failed: its call 0 was started and never waited for", function()
      torch.sum(pending:wait()):backward()
    end)
  else
    pending = nil -- luacheck: ignore
    collectgarbage()
    collectgarbage()
  end
end)

t.test("EachCallIsWaitedForAndGoneBackThroughOnce", function()
  local bridge = new_bridge()
  local pending = bridge:start(IS_VISION and ones(1) or nil)
  local y = pending:wait()
  t.raises("waited for twice", pending.wait, pending)
  local loss = torch.sum(y)
  loss:backward { retain_graph = true }
  t.raises("backward ran a second time through call 0", loss.backward, loss)
end)

t.test("SendersGiveOneToEightTensorsWithTheSameRows", function()
  for _, case in ipairs {
    { {}, "must give 1 to 8 tensors, but gave 0" },
    { { ones(1), ones(2) }, "all tensors of a call have the same rows, but dim 0 is 1 and 2" },
    { torch.ones({}), "x must have more dims than 0" },
  } do
    local bridge = new_bridge()
    if RANK == 0 then
      t.raises(case[2], bridge, case[1])
    elseif RANK == 1 then
      t.raises("rank 0 (vision) failed", call, bridge, ones(1))
    else
      t.raises(case[2], bridge)
    end
  end
end)

-- Tensor-parallel ranks whose gradients differ --------------------------------------------------------

--- Vision on rank 0, a replica of language on ranks 1 and 2, which has a gradient of its own on each.
local function go_back_through_tp(audit, gradient_of)
  local divided = mimo.topology { modules = { { name = "vision" }, { name = "language", first_rank = 1, tp = 2 } } }
  local bridge = mimo.bridge { topology = divided, from = "vision", to = "language", audit = audit }
  local x = RANK == 0 and ones(2) or nil
  local y = bridge(x)
  torch.sum(RANK == 0 and y or y * gradient_of(RANK)):backward()
  return x
end

t.test("WithoutTheAuditEachTpRankSendsItsOwnGradient", function()
  local x = go_back_through_tp(false, function(rank) return rank end)
  if x then t.equal(x.grad, torch.tensor { { 1, 1 }, { 2, 2 } }) end -- halves of two different gradients
end)

t.test("WithTheAuditAGradientThatDiffersOverTpIsAnErrorOnAll", function()
  t.raises("the gradient of tensor 0 of y differs over tp, between rank 1 (language) and rank 2 (language)",
    go_back_through_tp, true, function(rank) return rank end)
end)

t.test("WithTheAuditGradientsThatDifferByRoundingAreAlike", function()
  local x = go_back_through_tp(true, function(rank) return 1 + rank * 1e-7 end)
  if x then t.near(x.grad, torch.ones { 2, 2 }, 1e-6) end
end)

-- Mistakes that are detected before anything is sent: the other side would wait.
for _, case in ipairs {
  { { row_per_sample = { 1, 1 } }, 'did you mean "rows_per_sample"' },
  { { rows_per_sample = { 1, -1 } }, "rows_per_sample holds -1 for sample 1" },
  { { rows_per_sample = "two" }, "rows_per_sample" },
  { { rows_per_sample = { 1, 1.5 } }, "rows_per_sample" },
  { { samples = 7 }, "samples must be an array of ids, not a number" },
  { { samples = { {} } }, "samples[1] must be a number or a string, not a table" },
  { "none", "options must be a table" },
} do
  for _, wrong in ipairs { 0, 2 } do
    t.test(("AMistakeInAnOptionOfOneRankReachesTheOthers(%s, rank %d)"):format(case[2], wrong), function()
      local bridge = new_bridge()
      local x, right = IS_VISION and ones(1) or nil, { rows_per_sample = { 1, 1 } }

      if RANK == wrong then
        t.raises(case[2], bridge, x, case[1])
        t.raises("failed before", bridge, x, right)
      else
        local message = t.raises(("rank %d (%s) failed"):format(wrong, wrong == 0 and "vision" or "language"), call,
          bridge, x, right)
        t.truthy(message:find(case[2], 1, true), message)
      end
    end)
  end
end

t.test("AnXOfAnotherTypeReachesTheOthers", function()
  local bridge = new_bridge()

  if RANK == 0 then
    t.raises("x", bridge, "image", {})
  elseif RANK == 1 then
    t.raises("rank 0 (vision) failed", call, bridge, ones(1))
  else
    t.raises("rank 0 (vision) failed", bridge)
  end
end)

t.test("MistakesInOptionsAreNamed", function()
  t.raises('the option "from" is missing', mimo.bridge, { topology = topo, to = "language" })
  t.raises("dim must be from 0 to 7, but is -1", mimo.bridge,
    { topology = topo, from = "vision", to = "language", dim = -1 })
end)

t.test("ATopologyOfAnotherWorldIsRefusedWhereRanksMeet", function()
  for _, size in ipairs { 2, 4 } do
    local other = mimo.topology { world_size = size,
      modules = { { name = "vision", dp = size - 1 }, { name = "language", first_rank = size - 1 } } }
    local expected = ("the topology is of world_size %d, but this run has 3 ranks"):format(size)
    t.raises(expected, mimo.bridge, { topology = other, from = "vision", to = "language" })
    t.raises(expected, mimo.loader, { topology = other, source = t.test })
    t.raises(expected, mimo.reduce_gradients, { topology = other, modules = {}, loss = "mean" })
    t.raises(expected, mimo.clip_grad_norm, { topology = other, modules = {}, max_norm = 1 })
  end
end)

-- Gradients -----------------------------------------------------------------------------------------

local module = nn.Linear(2, 1)
local mine = { [IS_VISION and "vision" or "language"] = module }

t.test("ModulesOfOtherRanksAreRefused", function()
  local opts = { topology = topo, loss = "mean" }
  opts.modules = {}
  t.raises("has the module", mimo.reduce_gradients, opts)
  opts.modules = { vision = module, language = module }
  t.raises("does not have the module", mimo.reduce_gradients, opts)
  opts.modules = { [IS_VISION and "vision" or "language"] = module, audio = module }
  t.raises('no module is called "audio"', mimo.reduce_gradients, opts)
  opts.modules, opts.loss = mine, "average"
  t.raises('loss must be "sum" or "mean", not average', mimo.reduce_gradients, opts)
  t.raises("max_norm must be a number above 0", mimo.clip_grad_norm, { topology = topo, modules = mine, max_norm = 0 })
end)

--- The gradient of a weight whose loss is the sum over `count` tokens, each of gradient 1, on each rank of its module.
local function set_gradient(value) module.weight.grad, module.bias.grad = torch.full({ 1, 2 }, value), nil end

t.test("WithoutTheScaleAnEncoderLearnsByItsOwnSize", function()
  -- The language model's replica has the mean over its tokens for loss, and each image a gradient of 1 from it.
  set_gradient(1)
  local naive = dist.all_reduce(module.weight.grad:clone(), "avg", { group = IS_VISION and topo:group("vision", "dp")
    or dist.group { ranks = { 2 } } })

  mimo.reduce_gradients { topology = topo, modules = mine, loss = "mean" }

  t.equal(module.weight.grad, torch.full({ 1, 2 }, IS_VISION and 2 or 1)) -- the sum over both images
  t.equal(naive, torch.full({ 1, 2 }, 1)) -- half of it on ranks of vision
  t.equal(module.bias.grad, nil)
end)

t.test("TokensAreCountedOnceOverTheLanguageModel", function()
  set_gradient(3)

  local tokens = mimo.reduce_gradients { topology = topo, modules = mine, loss = "sum",
    tokens = not IS_VISION and 12 or nil }

  t.equal(tokens, 12)
  t.equal(module.weight.grad, torch.full({ 1, 2 }, IS_VISION and 0.5 or 0.25))
end)

t.test("AGradientThatOneReplicaLacksCountsAsZeros", function()
  set_gradient(4)
  if RANK == 1 then module.weight.grad = nil end

  mimo.reduce_gradients { topology = topo, modules = mine, loss = "mean" }

  t.equal(module.weight.grad, torch.full({ 1, 2 }, 4))
  t.equal(module.bias.grad, nil)
end)

t.test("GradientsThatDataParallelHasAveragedAreOnlyScaled", function()
  local layer, modules = module, mine
  if IS_VISION then
    torch.manual_seed(1)
    local replicas = sharding.data_parallel(nn.Linear(2, 1), { group = topo:group("vision", "dp") })
    replicas(torch.full({ 1, 2 }, 1 + RANK)):sum():backward()
    layer, modules = replicas.module, { vision = replicas }
    t.equal(layer.weight.grad, torch.full({ 1, 2 }, 1.5))
  else
    set_gradient(1)
  end

  mimo.reduce_gradients { topology = topo, modules = modules, loss = "mean" }

  t.equal(layer.weight.grad, torch.full({ 1, 2 }, IS_VISION and 3 or 1)) -- on vision the sum over both images
end)

t.test("TheNormCountsReplicasOnce", function()
  set_gradient(IS_VISION and 3 or 4)

  local norm = mimo.clip_grad_norm { topology = topo, modules = mine, max_norm = 1 }

  local expected = math.sqrt(2 * 9 + 2 * 16)
  t.near(norm:item(), expected, 1e-12)
  t.near(module.weight.grad, torch.full({ 1, 2 }, (IS_VISION and 3 or 4) / expected), 1e-6)
end)

t.test("TheNormCountsShardsEachAndCopiesOnce", function()
  local divided = mimo.topology { modules = { { name = "vision", tp = 2 }, { name = "language", first_rank = 2 } } }
  local opts = { topology = divided, modules = mine, max_norm = 1e9 }
  module.weight.grad, module.bias.grad = torch.full({ 1, 2 }, 1 + RANK), torch.full({ 1 }, 5)

  if IS_VISION then t.raises("say which of its parameters are divided over tp", mimo.clip_grad_norm, opts) end
  opts.tp_sharded = function(_, name) return name == "weight" end

  local norm = mimo.clip_grad_norm(opts)

  t.near(norm:item(), math.sqrt(2 * 1 + 2 * 4 + 25 + 2 * 9 + 25), 1e-12)
end)
