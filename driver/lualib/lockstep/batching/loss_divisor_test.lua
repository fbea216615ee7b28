--- The divisor of the loss: what batching counts is what a model's loss sums. Random samples, masks, cuts and packing
--- on several ranks, against a textbook's loop over samples on one rank.

local batching = require "lockstep.batching"
local dist = require "lockstep.distributed"
local models = require "lockstep.models"
local optim = require "lockstep.optim"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local RANK, WORLD = dist.rank(), dist.world_size()
local VOCABULARY = 17
torch.set_default_dtype(torch.float64)

--- The same model on every rank, and in each call.
local function new_model()
  torch.manual_seed(3)
  return models.build({ architectures = { "Qwen3ForCausalLM" }, model_type = "qwen3", hidden_size = 8,
    intermediate_size = 12, num_hidden_layers = 1, num_attention_heads = 2, num_key_value_heads = 1, head_dim = 4,
    vocab_size = VOCABULARY, rms_norm_eps = 1e-6, rope_theta = 10000, tie_word_embeddings = false,
    max_position_embeddings = 64, hidden_act = "silu", initializer_range = 0.5 }, { dtype = torch.float64 })
end

-- Masks of `n` tokens. Those of ones are what people write first.
local MASKS = {
  function() return 1 end,
  function() return 0 end,
  function(i) return i == 1 and 1 or 0 end,
  function(i) return i > 1 and 1 or 0 end,
  function() return math.random(0, 1) end,
  function(i, n) return i > n / 2 and 1 or 0 end,
}

--- The same case on every rank.
local function random_case(seed)
  math.randomseed(seed)
  local multiple = math.random(1, 3)
  local case = { seq_len = multiple * math.random(2, 8), pad_to_multiple_of = multiple, samples = {},
    balance = math.random() < 0.7 and "lockstep" or "round_robin",
    wrapper = math.random() < 0.5 and "data_parallel" or "fully_shard", is_stream = math.random() < 0.3 }
  for s = 1, math.random(1, 9) do
    local n, mask_of = math.random(1, 14), MASKS[math.random(#MASKS)]
    local sample = { input_ids = {}, loss_mask = {}, kind = math.random() < 0.3 and "code" or nil }
    for i = 1, n do sample.input_ids[i], sample.loss_mask[i] = math.random(0, VOCABULARY - 1), mask_of(i, n) end
    case.samples[s] = sample
  end
  return case
end

--- The mean loss, its gradients' norm and the counts of a loop over the samples, each alone.
local function textbook(case)
  local net, sum = new_model(), torch.zeros {}
  local found = { loss_tokens = 0, truncated_loss_tokens = 0, samples_without_loss = 0 }
  for _, sample in ipairs(case.samples) do
    local ids, count = torch.tensor(sample.input_ids, { dtype = torch.int64 }), 0
    local scores = net({ input_ids = ids[{ { 0, math.min(#ids, case.seq_len) } }] }):log_softmax(-1)
    for i = 2, #sample.input_ids do
      if sample.loss_mask[i] == 1 and i > case.seq_len then
        found.truncated_loss_tokens = found.truncated_loss_tokens + 1
      elseif sample.loss_mask[i] == 1 then
        count = count + 1
        sum = sum - scores[{ i - 2, sample.input_ids[i] }]
      end
    end
    found.loss_tokens = found.loss_tokens + count
    found.samples_without_loss = found.samples_without_loss + (count == 0 and 1 or 0)
  end
  if found.loss_tokens == 0 then return found end
  local loss = sum / found.loss_tokens
  loss:backward()
  return found, loss:item(), optim.clip_grad_norm(net:parameters(), math.huge):item()
end

--- This rank's micro-batches of a case, and the report.
local function prepare(case)
  local o = { seq_len = case.seq_len, pad_to_multiple_of = case.pad_to_multiple_of, balance = case.balance,
    rank = RANK }
  if not case.is_stream then
    o.samples = case.samples
    local batches, report = batching.prepare(o)
    return batches[RANK + 1], report
  end
  local next_one = 0
  o.source, o.buffer, o.max_wait = function()
    next_one = next_one + 1
    return case.samples[next_one]
  end, #case.samples, 0
  return batching.stream(o)()
end

local function count_of(micro_batches)
  local count = 0
  for _, batch in ipairs(micro_batches) do count = count + batch.loss_mask:sum():item() end
  return sharding.weighted_mean(count, 1) * WORLD
end

t.test("TheDivisorIsTheNumberOfTokensThatTheLossSums", function()
  local with_first, without = 0, 0
  for seed = 1, 30 do
    local case = random_case(seed)
    local expected, loss, norm = textbook(case)

    local micro_batches, report = prepare(case)

    for name, count in pairs(expected) do t.equal(report[name], count, ("seed %d: %s"):format(seed, name)) end
    t.truthy(math.abs(count_of(micro_batches) - report.loss_tokens) < 1e-6, "seed " .. seed)
    local model = sharding[case.wrapper](new_model())
    local function learn(divisor)
      return sharding.accumulate(model, micro_batches, divisor, function(batch) return model(batch, "loss") end)
    end
    if report.loss_tokens == 0 then
      without = without + 1
      t.raises("the count is 0: no token of this step has a loss", learn, report.loss_tokens)
    else
      with_first = with_first + 1
      local found = learn(report.loss_tokens)
      local found_norm = optim.clip_grad_norm(model:parameters(), math.huge):item()
      t.truthy(math.abs(found:item() - loss) < 1e-10 * loss, ("seed %d: %.17g, not %.17g"):format(seed, found:item(),
        loss))
      t.truthy(math.abs(found_norm - norm) < 1e-9 * norm, ("seed %d: norm %.17g, not %.17g"):format(seed, found_norm,
        norm))
    end
  end
  t.truthy(with_first > 20 and without > 0)
end)

t.test("ADivisorThatIsNotTheCountIsAnErrorOnEveryRankAndNothingIsLearnt", function()
  local samples = {}
  for i = 1, 2 * WORLD do samples[i] = { input_ids = { 1, 2, 3, i }, loss_mask = { 1, 1, 1, 1 } } end
  local batches = batching.prepare { samples = samples, seq_len = 8, rank = RANK }
  for _, wrapper in ipairs { "data_parallel", "fully_shard" } do
    local model = sharding[wrapper](new_model())
    local function learn(divisor, fn)
      return sharding.accumulate(model, batches[RANK + 1], divisor, fn or function(b) return model(b, "loss") end)
    end
    t.raises(("the divisor is %d, but the function summed the losses of %d over all micro-batches and ranks"):format(
      8 * WORLD, 6 * WORLD), learn, 8 * WORLD)
    t.raises("would be 1.333 times too small", learn, 8 * WORLD)
    t.raises("would be 2 times too large", learn, 3 * WORLD)
    -- The gradients of these steps are gone.
    learn(6 * WORLD)
    local norm, fresh = optim.clip_grad_norm(model:parameters(), math.huge):item(), sharding[wrapper](new_model())
    sharding.accumulate(fresh, batches[RANK + 1], 6 * WORLD, function(b) return fresh(b, "loss") end)
    t.equal(norm, optim.clip_grad_norm(fresh:parameters(), math.huge):item())
    if WORLD > 1 then
      t.raises(("returned a count for 1 of the %d micro-batches of all ranks"):format(WORLD), learn, 6 * WORLD,
        function(b)
          local sum, count = model(b, "loss")
          return sum, RANK == 0 and count or nil
        end)
    end
    t.raises("result 2 of the function must be the count of what it summed, a number, not a boolean", learn,
      6 * WORLD, function(b) return model(b, "loss"), true end)
  end
end)

-- Batching shortens padding to one token. A rank that has it must still call backward.
t.test("AMicroBatchOfOneTokenHasAGradientOfZeros", function()
  local batch = { input_ids = torch.tensor({ 5 }, { dtype = torch.int64 }), seq_lens = { 1 } }
  for _, score in ipairs { "log_probs", "loss" } do
    local net = new_model()
    local result = net[score](net, batch)
    t.equal(result:sum():item(), 0)
    result:sum():backward()
    for name, p in net:named_parameters() do t.truthy(p.grad and p.grad:abs():max():item() == 0, name) end
  end
end)
