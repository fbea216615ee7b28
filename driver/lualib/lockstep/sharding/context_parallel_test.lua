-- sharding.context_parallel: chunks on several ranks compute what one rank computes with the whole.

local checkpoint = require "lockstep.checkpoint"
local dist = require "lockstep.distributed"
local models = require "lockstep.models"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local TOKENS = 24 -- a multiple of 2, 3 and 4 ranks
local SEQ_LENS = { 6, 10, 8 }
local rank, world = dist.rank(), dist.world_size()
local CHUNK = TOKENS / world

--- This rank's chunk of a tensor of the whole sequence.
local function own(x) return x:narrow(0, rank * CHUNK, CHUNK) end

local function random(...) return torch.randn({ TOKENS, ... }, { dtype = torch.float64 }) end

for i, opts in ipairs {
  {},
  { seq_lens = SEQ_LENS },
  { seq_lens = { 7, 17 }, scale = 0.3 },
  { seq_lens = { 20, 4 }, causal = false },
  { seq_lens = { 2, 22 }, window = 5 },
  { seq_lens = { 15, 9 }, window = 3, causal = false },
} do
  t.test("AttentionOfChunksIsThatOfTheWhole_" .. i, function()
    torch.manual_seed(1)
    local given, weight = { random(4, 6), random(2, 6), random(2, 6) }, random(4, 6)
    local whole, chunk = {}, {}
    for j, x in ipairs(given) do
      whole[j] = x:clone():requires_grad_(true)
      chunk[j] = own(x):clone():requires_grad_(true)
    end
    local expected = nn.attention(whole[1], whole[2], whole[3], opts)
    torch.sum(expected * weight):backward()

    local y = sharding.context_parallel(nil, function(q, k, v) return nn.attention(q, k, v, opts) end, unpack(chunk))
    torch.sum(y * own(weight)):backward()

    t.near(y, own(expected), 1e-12)
    for j = 1, 3 do t.near(chunk[j].grad, own(whole[j].grad), 1e-12, "gradient " .. j) end
  end)
end

local function batch_of(part)
  local ids = (torch.arange(TOKENS) * 7):remainder(61)
  local mask = torch.ones({ TOKENS })
  mask[CHUNK % TOKENS], mask[9] = 0, 0
  return { input_ids = part(ids), loss_mask = part(mask), seq_lens = SEQ_LENS }
end

local function whole(x) return x end

--- The loss and its gradients of the whole batch on one rank.
local function expected_of(folder)
  local model = models.load("tests/models/" .. folder)
  local sum, count = model:loss(batch_of(whole))
  ;(sum / count):backward()
  return model, sum:item(), count
end

local function loss_of_chunks(model)
  return sharding.context_parallel(nil, function() return model:loss(batch_of(own)) end)
end

for _, folder in ipairs { "qwen3", "qwen2", "llama_tied", "qwen3_moe" } do
  for kind, region in ipairs { {}, { checkpoint = checkpoint.new {} },
    { checkpoint = checkpoint.new { offload = "host", early_stop = false } } } do
    t.test("AModelLearnsFromChunksAsFromTheWhole_" .. folder .. "_" .. kind, function()
      local plain, expected, expected_count = expected_of(folder)
      local model = models.load("tests/models/" .. folder)
      model.checkpoint = region.checkpoint

      local sum, count = loss_of_chunks(model)
      ;(sum / expected_count):backward()

      local counts = dist.all_reduce(torch.tensor { count })
      t.equal(counts[0]:item(), expected_count)
      t.near(dist.all_reduce(sum:detach():clone()):item(), expected, 1e-4)
      local gradients = {}
      for name, p in plain:named_parameters() do gradients[name] = p.grad end
      for name, p in model:named_parameters() do
        local grad = p.grad or torch.zeros_like(p)
        t.near(dist.all_reduce(grad), gradients[name] or torch.zeros_like(p), 1e-5, name)
      end
    end)
  end
end

t.test("AShardedModelTakesChunks", function()
  local plain, _, count = expected_of "qwen3"
  local model = sharding.fully_shard(models.load "tests/models/qwen3")

  local sum = loss_of_chunks(model)
  ;(sum / count * world):backward() -- a sharded model averages over ranks

  t.near(model:clip_grad_norm(1e9):item(), optim.clip_grad_norm(plain:parameters(), 1e9):item(), 1e-5)
end)

t.test("StepsHoldNoMemory", function()
  local model = models.load "tests/models/qwen3"
  t.memory_is_flat(function()
    loss_of_chunks(model):backward()
    model:zero_grad()
  end)
end)

t.test("PositionsCountFromTheStartOfTheWholeSequence", function()
  local model = models.load "tests/models/qwen3"
  local ids = batch_of(whole).input_ids
  local expected = torch.no_grad(model, { input_ids = ids })

  local logits = torch.no_grad(sharding.context_parallel, nil, model, { input_ids = own(ids) })

  t.near(logits, own(expected), 1e-4)
end)

t.test("AGroupHoldsASequenceOfItsOwn", function()
  local first = rank < 2
  local ranks = {}
  for r = first and 0 or 2, first and math.min(world, 2) - 1 or world - 1 do ranks[#ranks + 1] = r end
  local group = dist.group { ranks = ranks }
  torch.manual_seed(first and 1 or 2)
  local x = torch.randn({ 4 * #ranks, 2, 4 })

  local y = sharding.context_parallel(group, nn.attention, x:narrow(0, 4 * group:rank(), 4),
    x:narrow(0, 4 * group:rank(), 4), x:narrow(0, 4 * group:rank(), 4))

  t.near(y, nn.attention(x, x, x):narrow(0, 4 * group:rank(), 4), 1e-6)
end)

t.test("AnErrorEndsTheChunks", function()
  t.raises("in the script", sharding.context_parallel, nil, function() error "in the script" end)

  local x = torch.ones({ 3, 1, 4 })
  t.equal(nn.attention(x, x, x, { seq_lens = { 3 } }), x)
end)

t.test("MistakesAreNamed", function()
  local within = function(fn, ...) return sharding.context_parallel(nil, fn, ...) end
  local model = models.load "tests/models/qwen3"
  local x = torch.ones({ 3, 1, 4 })
  t.raises("the first argument must be a group of dist.group, or nil for all ranks, not a function",
    sharding.context_parallel, nn.attention)
  t.raises("fn must be a function or a module, not a nil", sharding.context_parallel)
  t.raises("one call cannot be inside another", within, within, print)
  t.raises("call it outside, on whole prompts", within, models.generate, model, { { 1, 2 } })
  t.raises("log_probs: not within sharding.context_parallel", within, model.log_probs, model, batch_of(own))
  if world == 1 then return end
  local lengths = batch_of(own)
  lengths.seq_lens = { 8 + rank, 16 - rank }
  t.raises("seq_lens: 8 16", within, model, lengths)
  t.raises(("seq_lens add up to 3 tokens, but the chunks of %d ranks hold %d"):format(world, 3 * world), within,
    nn.attention, x, x, x, { seq_lens = { 3 } })
  t.raises(("seq_lens add up to 24 tokens, but input_ids holds 24 on each of %d ranks"):format(world), within, model,
    batch_of(whole))
  local uneven = torch.ones({ 3 + rank, 1, 4 })
  t.raises("the ranks call different collectives", within, nn.attention, uneven, uneven, uneven)
end)
