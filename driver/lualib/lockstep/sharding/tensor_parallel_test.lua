-- sharding.tensor_parallel: weights in parts on several ranks compute what one rank computes with the whole.

local checkpoint = require "lockstep.checkpoint"
local dist = require "lockstep.distributed"
local lora = require "lockstep.lora"
local models = require "lockstep.models"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local same_batch = require "lockstep.models.same_batch"
local sharding = require "lockstep.sharding"
local splits = require "lockstep.nn.splits"
local t = require "lockstep.testing"
local tiled_mlp = require "lockstep.tiled_mlp"
local torch = require "lockstep.torch"

local rank, world = dist.rank(), dist.world_size()

--- The ranks that share a model: all, or two of four.
local SIZE = math.min(world, 2)
local function pair()
  if world <= 2 then return nil end
  local first = rank - rank % 2
  return dist.group { ranks = { first, first + 1 } }
end

local function load(folder) return models.load("tests/models/" .. folder, { dtype = torch.float32 }) end

local BATCH = { input_ids = (torch.arange(20) * 7):remainder(61), seq_lens = { 5, 9, 6 },
  loss_mask = torch.arange(20):remainder(5):ne(3) }

local function train(model, steps)
  local optimizer = optim.SGD(model:parameters(), { lr = 0.1 })
  local losses, norms = {}, {}
  for i = 1, steps do
    local sum, count = model:loss(BATCH)
    ;(sum / count):backward()
    losses[i], norms[i] = (sum / count):item(), optim.clip_grad_norm(model:parameters(), 0.5):item()
    optimizer:step()
    optimizer:zero_grad()
  end
  return losses, norms
end

local FOLDERS = { "llama", "llama_tied", "qwen2", "qwen3", "qwen3_moe" }

for _, folder in ipairs(FOLDERS) do
  for _, sequence in ipairs { false, true } do
    t.test(("AModelInPartsIsTheWholeModel_%s_%s"):format(folder, tostring(sequence)), function()
      local plain, group = load(folder), pair()
      local model = sharding.tensor_parallel(load(folder), { group = group, sequence = sequence })
      t.near(model(BATCH), plain(BATCH), 5e-5)
      local log_probs = plain:log_probs(BATCH)
      t.near(model:log_probs(BATCH), log_probs, 5e-5)
      t.equal(models.generate(model, { { 3, 1, 4, 1 }, { 5 } }, { max_new_tokens = 5 }),
        models.generate(plain, { { 3, 1, 4, 1 }, { 5 } }, { max_new_tokens = 5 }))

      local losses, norms = train(plain, 3)
      local own_losses, own_norms = train(model, 3)

      for i = 1, 3 do
        t.near(own_losses[i], losses[i], 1e-4, "loss " .. i)
        t.near(own_norms[i], norms[i], 1e-4, "norm " .. i)
      end
      local path = dist.all_gather_object(run.dir .. "/" .. folder .. tostring(sequence))[1]
      models.save(model, path, { like = "tests/models/" .. folder })
      local saved, expected = models.load(path):state_dict(), plain:state_dict()
      for name, tensor in pairs(expected) do t.near(saved[name], tensor, 1e-4, name) end
    end)
  end
end

t.test("EachRankHoldsItsPart", function()
  local whole = load "llama"
  local model = sharding.tensor_parallel(load "llama", { group = pair() })

  local function rows(name, of) return of.model.layers[1].self_attn[name].weight:size(0) end
  t.equal(rows("q_proj", model), rows("q_proj", whole) / SIZE)
  t.equal(model.model.layers[1].mlp.down_proj.weight:size(1), whole.model.layers[1].mlp.down_proj.weight:size(1) / SIZE)
  t.equal(model.model.norm.weight.shape, whole.model.norm.weight.shape)
end)

for _, sequence in ipairs { false, true } do
  t.test("ALayerIsRecomputedInParts_" .. tostring(sequence), function()
    local plain, model = load "qwen3", load "qwen3"
    model.checkpoint = checkpoint.new { offload = "host" }
    sharding.tensor_parallel(model, { group = pair(), sequence = sequence })

    t.near(select(2, train(model, 2))[2], select(2, train(plain, 2))[2], 1e-4)
  end)
end

t.test("TheLossOfAFloat64ModelIsInFloat64", function()
  local function load_double() return models.load("tests/models/llama", { dtype = torch.float64 }) end
  local expected = load_double():loss(BATCH)

  local loss = sharding.tensor_parallel(load_double(), { group = pair() }):loss(BATCH)

  t.equal(loss.dtype, torch.float64)
  t.truthy(math.abs(loss:item() / expected:item() - 1) < 1e-13)
end)

t.test("LogProbabilitiesHaveTheGradientsOfTheWhole", function()
  local plain = load "qwen3"
  local model = sharding.tensor_parallel(load "qwen3", { group = pair() })
  for _, one in ipairs { plain, model } do one:log_probs(BATCH):sum():backward() end

  local norms = {}
  for i, one in ipairs { plain, model } do norms[i] = optim.clip_grad_norm(one:parameters(), 1e9):item() end
  t.near(norms[2] / norms[1], 1, 1e-5)
end)

t.test("PartsOfATokenChunkedSequenceAreTheWholeModel", function()
  if world < 4 then return end
  local split = pair()
  local chunks = dist.group { ranks = { rank % 2, rank % 2 + 2 } } -- ranks with the same parts of the weights
  local plain = load "qwen3"
  local expected = plain:loss(BATCH)
  expected:backward()
  local model = sharding.tensor_parallel(load "qwen3", { group = split, sequence = true })
  local function own(x) return x:narrow(0, chunks:rank() * 10, 10) end

  local sum = sharding.context_parallel(chunks, function()
    return model:loss { input_ids = own(BATCH.input_ids), loss_mask = own(BATCH.loss_mask), seq_lens = BATCH.seq_lens }
  end)
  sum:backward()

  t.near(dist.all_reduce(sum:detach():clone(), "sum", { group = chunks }):item(), expected:item(), 1e-4)
  for _, p in ipairs(model:parameters()) do dist.all_reduce(p.grad, "sum", { group = chunks }) end
  t.near(optim.clip_grad_norm(model:parameters(), 1e9):item() / optim.clip_grad_norm(plain:parameters(), 1e9):item(), 1,
    1e-5)
end)

t.test("ReplicasHaveTheSameParts", function()
  if world < 4 then return end
  local model = sharding.tensor_parallel(load "qwen3", { group = pair() })
  t.raises("2 of the ranks", sharding.data_parallel, model, { group = pair() })
  t.raises("hold different parts of the model's weights", sharding.data_parallel, model)
  local crossed = dist.group { ranks = (rank == 0 or rank == 3) and { 0, 3 } or { 1, 2 } }
  local parts = rank % 3 == 0 and "part 1 of 2 and part 2 of 2" or "part 2 of 2 and part 1 of 2"
  t.raises(parts, sharding.data_parallel, model, { group = crossed })
  t.raises(parts, sharding.context_parallel, crossed, model, { input_ids = torch.arange(4) })
  local plain = load "qwen3"
  local expected = plain:loss(BATCH)
  expected:backward()
  local replicas = sharding.data_parallel(model, { group = dist.group { ranks = { rank % 2, rank % 2 + 2 } } })

  ;(replicas(BATCH, "loss")):backward()

  t.near(optim.clip_grad_norm(model:parameters(), 1e9):item() / optim.clip_grad_norm(plain:parameters(), 1e9):item(), 1,
    1e-5)
end)

local function parameter(model, wanted)
  for name, p in model:named_parameters() do
    if name == wanted then return p end
  end
end

t.test("AnOptimizerMadeBeforeUpdatesTheParts", function()
  local plain, model = load "llama", load "llama"
  local optimizers = { optim.AdamW(plain:parameters(), { lr = 0.01 }), optim.AdamW(model:parameters(), { lr = 0.01 }) }
  model:loss(BATCH):backward() -- gradients of whole weights, which the parts forget
  sharding.tensor_parallel(model, { group = pair() })
  model:zero_grad()
  for i, one in ipairs { plain, model } do
    one:loss(BATCH):backward()
    optimizers[i]:step()
  end

  t.near(torch.no_grad(model, BATCH), torch.no_grad(plain, BATCH), 1e-3)
end)

t.test("AStateHoldsWholeWeightsForAnyNumberOfRanks", function()
  local function made(model) return model, optim.AdamW(model:parameters(), { lr = 0.01 }) end
  local function step(model, optimizer)
    model:loss(BATCH):backward()
    optimizer:step()
    optimizer:zero_grad()
  end
  local model, optimizer = made(sharding.tensor_parallel(load "llama", { group = pair(), sequence = true }))
  step(model, optimizer)
  run:state { model = model, optimizer = optimizer }
  run:save { step = 1 }
  step(model, optimizer)
  local expected = torch.no_grad(model, BATCH)

  for _, split in ipairs { true, false } do
    local again, its_optimizer = made(split and sharding.tensor_parallel(load "llama", { group = pair() })
      or load "llama")
    run:state { model = again, optimizer = its_optimizer }
    t.equal(run:resume(), 1)
    step(again, its_optimizer)
    t.near(torch.no_grad(again, BATCH), expected, 1e-3)
  end
end)

local Net = nn.Module:subclass("Net")
function Net:init()
  self.table = nn.Embedding(7, 4)
  self.up, self.down = nn.Linear(4, 12), nn.Linear(12, 6)
  self.head = nn.Linear(6, 5)
end
function Net:forward(ids) return self.head(self.down(torch.silu(self.up(self.table(ids))))) end

t.test("APlanOfOnesOwnSplitsAnyModule", function()
  torch.manual_seed(1)
  local plain = Net()
  torch.manual_seed(dist.rank() + 2) -- the first rank's values are taken
  local model = Net()
  if rank % 2 == 0 or world == 1 then model:load_state_dict(plain:state_dict()) end
  sharding.tensor_parallel(model, { group = pair(),
    plan = { table = "vocabulary", up = "column", down = "row", head = "vocabulary" } })
  local ids = torch.tensor({ { 0, 6, 3 }, { 5, 2, 1 } }, { dtype = torch.int64 })

  local y, expected = model(ids), plain(ids)
  t.near(y, expected, 1e-6)
  y:square():sum():backward()
  expected:square():sum():backward()

  t.near(optim.clip_grad_norm(model:parameters(), 1e9):item(), optim.clip_grad_norm(plain:parameters(), 1e9):item(),
    1e-4)
  t.near(model.down.bias.grad, plain.down.bias.grad, 1e-5)
end)

t.test("StepsHoldNoMemory", function()
  for _, sequence in ipairs { false, true } do
    local model = sharding.tensor_parallel(load "qwen3", { group = pair(), sequence = sequence })
    local optimizer = optim.SGD(model:parameters(), { lr = 1e-3 })
    t.memory_is_flat(function()
      model:loss(BATCH):backward()
      optimizer:step()
      optimizer:zero_grad()
    end)
  end
end)

t.test("FrozenLayersStayFrozen", function()
  local model = load "qwen3"
  model:requires_grad_(false)
  local count = #model:parameters()
  sharding.tensor_parallel(model, { group = pair(), sequence = true })

  t.equal(#model:parameters(), count)
  for _, p in ipairs(model:parameters()) do t.equal(p.requires_grad, false) end
  t.near(model(BATCH), load "qwen3"(BATCH), 5e-5)
end)

for _, sequence in ipairs { false, true } do
  t.test("LayersThatAreUnfrozenLaterLearnAsTheWhole_" .. tostring(sequence), function()
    local plain, model = load "qwen3", load "qwen3"
    model:requires_grad_(false)
    sharding.tensor_parallel(model, { group = pair(), sequence = sequence })
    model:requires_grad_(true)

    for _, one in ipairs { plain, model } do one:loss(BATCH):backward() end

    for name, p in plain:named_parameters() do
      local own = parameter(model, name)
      if name:find "norm" then t.near(own.grad, p.grad, 1e-4 * (1 + p.grad:abs():max():item()), name) end
    end
  end)
end

--- A reward model: scores of what a model of models.load returns.
local Scorer = nn.Module:subclass("Scorer")
function Scorer:init(model)
  torch.manual_seed(2)
  self.model, self.score = model, nn.Linear(model.settings.hidden_size, 1)
end
function Scorer:forward(batch)
  return self.score(self.model:hidden(batch)):pow(2):sum() + self.model(batch):pow(2):mean()
end

t.test("AModelInsideAnotherModuleDividesAndJoinsItsTokensItself", function()
  for _, folder in ipairs { "llama", "llama_tied" } do
    local whole, parts = Scorer(load(folder)), Scorer(load(folder))
    local plan = parts.model:tensor_plan()
    plan.score = "whole"
    if folder == "llama_tied" then plan.lm_head = nil end
    sharding.tensor_parallel(parts, { group = pair(), sequence = true, plan = plan })

    for _, one in ipairs { whole, parts } do one(BATCH):backward() end

    for name, p in whole:named_parameters() do
      local own = parameter(parts, name)
      local grad = splits.of(own) and splits.whole(own.grad, splits.of(own)) or own.grad
      t.near(grad, p.grad, 1e-4 * (1 + p.grad:abs():max():item()), name)
    end
  end
end)

t.test("SeedsThatDifferDrawTheSameIdsOnTheRanksOfAModel", function()
  for _, plan in ipairs { false, { up_proj = "column", gate_proj = "column", down_proj = "row" } } do
    local model = sharding.tensor_parallel(load "qwen3", { group = pair(), plan = plan or nil })
    torch.manual_seed(rank)

    local ids = models.generate(model, { { 3 } }, { max_new_tokens = 6, temperature = 1.5 })

    local all = dist.all_gather_object(ids)
    t.equal(ids, all[rank - rank % SIZE + 1])
  end
end)

t.test("RanksThatWereGivenOtherBatchesAreTold", function()
  if world == 1 then return end
  local group = pair()
  local model = sharding.tensor_parallel(load "qwen3", { group = group,
    plan = { up_proj = "column", gate_proj = "column", down_proj = "row" } })
  local ids = torch.arange(6)
  local mask = torch.ones { 6 }

  -- A module of one's own does not notice.
  local unaware = sharding.tensor_parallel(Net(), { group = group, plan = { up = "column", down = "row" } })
  unaware(torch.tensor({ rank % SIZE }, { dtype = torch.int64 }))
  t.raises("torch.int64 {6}, 0 1 2 3 4 5, hash", model, { input_ids = ids + rank % SIZE })
  -- The message shows the first eight elements. Others count as well, also where their sums are the same.
  local function differ(length, dtype, ...)
    local values = torch.ones({ length }, { dtype = dtype }) * 2
    for _, place in ipairs { ... } do values[place[1]] = values[place[1]] + place[2] * (rank % SIZE) end
    t.raises("the ranks disagree", same_batch.check, "a test", group, { input_ids = values }, { "input_ids" })
  end
  differ(20, torch.int64, { 10, 1 }, { 11, -2 }, { 12, 1 })
  differ(131072, torch.int64, { 10001, 1 })
  differ(100, torch.float64, { 31, 2 }, { 95, -1 }) -- as bits one grows as much as the other shrinks
  differ(100, torch.bfloat16, { 31, 1 })
  t.raises("input_ids: torch.int64 {5}, 0 1 2 3 4, hash", model, { input_ids = torch.arange(5 + rank % SIZE) })
  mask[5] = rank % SIZE
  t.raises("loss_mask: torch.float32 {6}, 1 1 1 1 1 0, hash", model.loss, model, { input_ids = ids, loss_mask = mask })
  t.raises("seq_lens: 2 4", model,
    { input_ids = ids, seq_lens = { 2 + rank % SIZE, 4 - rank % SIZE } })
  t.equal(model({ input_ids = ids }).shape[1], 6)
end)

t.test("AModelInsideOfAnotherModuleComparesItsBatchesToo", function()
  if world == 1 then return end
  local outer = nn.Sequential { load "qwen3" }
  sharding.tensor_parallel(outer, { group = pair(), plan = { up_proj = "column", gate_proj = "column",
    down_proj = "row" } })

  t.raises("the ranks disagree", outer, { input_ids = torch.arange(6) + rank % SIZE })
end)

t.test("AnImageIsComparedAtItsElements", function()
  local model = sharding.tensor_parallel(load "qwen3", { group = pair(), plan = { up_proj = "column",
    gate_proj = "column", down_proj = "row" } })
  local pixels = torch.zeros({ 300, 1000 }, { dtype = torch.bfloat16 }):add(0.5 * (rank % SIZE))
  local batch = { pixel_values = pixels }
  local function check() same_batch.check("a test", splits.owner_of(model).group, batch, { "pixel_values" }) end

  if world == 1 then return end
  t.raises("0.5 0.5 0.5 0.5 0.5 0.5 0.5 0.5 ..., hash", check)
  batch.pixel_values = torch.zeros({ 300, 1000 })
  check()
end)

t.test("MistakesAreNamed", function()
  local split, group = sharding.tensor_parallel, pair()
  local function plan(p) return { group = group, plan = p } end
  t.raises("Net has no plan of its own", split, Net())
  t.raises('"up" must be "column", "row" or "vocabulary", or "split", "join", "tokens", "features" or "whole", not '
    .. '"colum"', split, Net(), plan { up = "colum" })
  t.raises('no module is named "ups"; did you mean "up"?', split, Net(), plan { ups = "column" })
  t.raises('"table" is of the class Embedding; a "column" layer is an nn.Linear', split, Net(),
    plan { table = "column" })
  t.raises("expected a module, not a nil", split)
  t.raises('unknown option "plans"', split, Net(), { plans = {} })
  local inside = load "qwen3"
  sharding.data_parallel(inside)
  t.raises("the module has been given to sharding.data_parallel or fully_shard", split, inside)
  if world == 1 then return end
  t.raises("group must be a group of dist.group, or nil for all ranks, not a number", split, Net(),
    { plan = {}, group = 3 })
  local changed = Net()
  changed.up.forward = function(_, x) return x end
  t.raises('"up" has a forward of its own', split, changed, plan { up = "column" })
  changed = Net()
  changed.other = nn.Linear(4, 12)
  changed.other.bias = changed.up.bias
  t.raises('"up" shares its bias with another module', split, changed, plan { up = "column" })
  t.raises("queries, keys and values are split together", split, load "qwen3",
    plan { q_proj = "column", o_proj = "row" })
  t.raises('"head": 5 output features cannot be divided by 2 ranks', split, Net(), plan { head = "column" })
  local whole_tokens = load "llama"
  whole_tokens.splits_tokens = false
  t.raises("LlamaForCausalLM does not support it", split, whole_tokens, { group = group, sequence = true })
  t.raises('plan must make "embed_tokens" and the head "vocabulary"', split, load "qwen3",
    { group = group, sequence = true, plan = { up_proj = "column" } })
  local model = split(load "qwen3", { group = group, sequence = true })
  t.raises("call it once for each model", split, model, { group = group })
  t.raises("takes a multiple of 2 tokens", model, { input_ids = torch.arange(5) })
  local advice = "a weight is split over 2 ranks by sharding.tensor_parallel"
  t.raises("sharding.fully_shard: the group has ranks that hold different parts of the model's weights",
    sharding.fully_shard, model)
  t.raises(advice .. "; call this before sharding.tensor_parallel", lora.apply, model, { r = 2 })
  local x = torch.ones({ 2, 20 })
  local mlp = model.model.layers[1].mlp
  local tiles = tiled_mlp.new { tiles = 2 }
  t.raises(advice, tiles.dense, tiles, { x = x, up = mlp.up_proj.weight, down = mlp.down_proj.weight })
  t.raises("sharding.context_parallel: the group has ranks that hold different parts", sharding.context_parallel, group,
    model, { input_ids = torch.arange(4) })
end)
