--- sharding.propose: counts against models, memory and time against hand-computed ones, and what holds for any config.

local model_config = require "lockstep.models.config"
local cost = require "lockstep.sharding.planning.cost"
local grids = require "lockstep.sharding.grid"
local models = require "lockstep.models"
local plain = require "lockstep.plain"
local shapes = require "lockstep.sharding.planning.shape"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"
local watching = require "lockstep.core.watching"

local FOLDERS = { "gemma3", "granite", "llama", "llama_tied", "mistral", "mixtral", "olmo2", "olmo3", "phi3", "qwen2",
  "qwen2_5_vl", "qwen3", "qwen3_moe", "qwen3_vl", "qwen3_vl_moe", "smollm3" }

local LLAMA_8B = { model_type = "llama", vocab_size = 128256, hidden_size = 4096, intermediate_size = 14336,
  num_hidden_layers = 32, num_attention_heads = 32, num_key_value_heads = 8 }
local LLAMA_70B = plain.copy(LLAMA_8B, { hidden_size = 8192, intermediate_size = 28672, num_hidden_layers = 80,
  num_attention_heads = 64 })
local QWEN_235B = { model_type = "qwen3_moe", vocab_size = 151936, hidden_size = 4096, intermediate_size = 12288,
  num_hidden_layers = 94, num_attention_heads = 64, num_key_value_heads = 4, head_dim = 128,
  moe_intermediate_size = 1536, num_experts = 128, num_experts_per_tok = 8 }

local function propose(config, more)
  return sharding.propose(plain.copy({ config = config, gpus = 8, memory_gib = 80, seq_len = 4096,
    tokens_per_step = 2 ^ 20 }, more))
end

-- Parameters ------------------------------------------------------------------------------------------------

for _, folder in ipairs(FOLDERS) do
  t.test("ParametersAreThoseOfTheModel_" .. folder, function()
    local model = models.load("tests/models/" .. folder)

    local proposals = propose("tests/models/" .. folder, { gpus = 1, seq_len = 8, tokens_per_step = 64 })

    t.equal(proposals.parameters, model:num_parameters())
    -- One rank holds all of them: its dense and experts' parameters are the model's.
    local shape = shapes.of(model.config)
    local sum = shape.outside + shape.vocabulary * (shape.is_tied and 1 or 2)
    for _, kind in ipairs(shape.layers) do
      sum = sum + shape.kinds[kind].split + shape.kinds[kind].kv + shape.kinds[kind].whole + shape.kinds[kind].experts
    end
    t.equal(sum, model:num_parameters())
  end)
end

t.test("KnownModelsHaveTheirPublishedNumbers", function()
  t.equal(propose(LLAMA_8B).parameters, 8030261248)
  t.equal(propose(LLAMA_70B).parameters, 70553706496)
  t.equal(propose(QWEN_235B).parameters, 235093634560)
end)

-- Memory ----------------------------------------------------------------------------------------------------

--- Returns the elements that the forward pass keeps, of each token, measured.
local function measured_elements(config, num_layers)
  local model = models.build(plain.copy(config, { num_hidden_layers = num_layers }), { dtype = torch.bfloat16 })
  local tokens = 256
  local ids = torch.arange(tokens) % config.vocab_size
  collectgarbage()
  collectgarbage()
  local tracker = watching.memory_tracker "cpu"
  local kept = { model:hidden { input_ids = ids } }
  collectgarbage()
  collectgarbage()
  local bytes = 0
  for _, line in ipairs(tracker:report().held) do bytes = bytes + line.bytes end
  return bytes / 2 / tokens, kept
end

local SMALL = { vocab_size = 64, hidden_size = 64, intermediate_size = 160, num_attention_heads = 4,
  num_key_value_heads = 2, head_dim = 16, moe_intermediate_size = 48, num_experts = 8, num_experts_per_tok = 2,
  norm_topk_prob = true }

for _, family in ipairs { "llama", "qwen3", "qwen3_moe" } do
  t.test("KeptActivationsAreThoseOfALayer_" .. family, function()
    local config = plain.copy(SMALL, { model_type = family, num_hidden_layers = 2 })
    if family ~= "qwen3_moe" then
      for _, key in ipairs { "moe_intermediate_size", "num_experts", "num_experts_per_tok", "norm_topk_prob" } do
        config[key] = nil
      end
    end
    local kept = shapes.of(config).kinds[1].kept

    local of_a_layer = (measured_elements(config, 4) - measured_elements(config, 2)) / 2

    t.near(kept.split + kept.kv + kept.tokens + kept.whole, of_a_layer, 0.01 * of_a_layer)
  end)
end

--- Megatron-LM's theoretical_memory_usage: s b h (18 + 4 ffn / h) bytes a layer.
t.test("ActivationsAreNearMegatronsFormula", function()
  for _, config in ipairs { LLAMA_8B, LLAMA_70B } do
    local kept = shapes.of(config).kinds[1].kept
    local megatron = config.hidden_size * (18 + 4 * config.intermediate_size / config.hidden_size)

    t.near(2 * (kept.split + kept.kv + kept.tokens + kept.whole), megatron, 0.1 * megatron)
  end
end)

--- Bytes of what a rank holds besides activations.
local function parameter_bytes(shape, c, stage)
  local parts = cost.parts(shape, 4096, c, stage)
  return parts.masters + parts.gradients + parts.moments + parts.gathered + parts.buffers
end

--- Bytes of activations, and of what backward holds besides.
local function activation_bytes(shape, seq_len, c, stage)
  local parts = cost.parts(shape, seq_len, c, stage)
  return parts.activations + parts.workspace
end

local function candidate(more)
  return plain.copy({ tp = 1, cp = 1, ep = 1, pp = 1, dp = 1, chunks = 1, sequences = 1, micro_batches = 8,
    checkpoint = false, reshard = false }, more)
end

-- The numbers of docs/fully_shard.md: U = 0.218e9, R = 1.05e9.
t.test("ParameterBytesAreThoseOfFullyShard", function()
  local shape = shapes.of(LLAMA_8B)
  local all, layer = 8030261248, 4096 * (4096 * 2.5 + 3 * 14336 + 2)
  local root = 2 * 128256 * 4096 + 4096
  local stage = shapes.stages(shape, 1, 1)[1]

  t.equal(parameter_bytes(shape, candidate { dp = 4 }, stage), 6 * all + 16 * all / 4 + 4 * (layer + root))
  t.equal(parameter_bytes(shape, candidate { dp = 2, cp = 2 }, stage), 6 * all + 16 * all / 4 + 4 * (layer + root))
  t.equal(parameter_bytes(shape, candidate { dp = 8, reshard = true }, stage),
    16 * all / 8 + 12 * layer + 10 * root)
end)

t.test("TpDividesWhatThePlanDivides", function()
  local shape = shapes.of(LLAMA_8B)
  local stage = shapes.stages(shape, 1, 1)[1]
  local whole = 65 * 4096 -- the norms
  local own = (8030261248 - whole) / 4 + whole

  local bytes = parameter_bytes(shape, candidate { tp = 4, dp = 2, micro_batches = 1 }, stage)

  local layer, root = (4096 * (4096 * 2.5 + 3 * 14336)) / 4 + 2 * 4096, 2 * 128256 * 4096 / 4 + 4096
  t.equal(bytes, 10 * own + 8 * (layer + root))
end)

t.test("RanksBeyondTheHeadsHoldCopiesOfKeysAndValues", function()
  local config = plain.copy(LLAMA_8B, { num_key_value_heads = 2 })
  local shape = shapes.of(config)
  local stage = shapes.stages(shape, 1, 1)[1]
  local norms, kv = 65 * 4096, 32 * 2 * 4096 * 256

  local bytes = parameter_bytes(shape, candidate { tp = 8, dp = 2, micro_batches = 2 }, stage)

  local all = (shape.parameters - norms - kv) / 8 + kv / 2 + norms
  local layer = (all - 2 * 128256 * 4096 / 8 - 4096) / 32
  t.equal(bytes, 14 * all + 4 * (layer + 2 * 128256 * 4096 / 8 + 4096))
end)

t.test("ARankOfItsOwnGathersNothing", function()
  local shape = shapes.of(LLAMA_8B)
  local stage = shapes.stages(shape, 1, 1)[1]

  t.equal(parameter_bytes(shape, candidate {}, stage), 18 * shape.parameters) -- weights in bfloat16 besides
  t.equal(parameter_bytes(shape, candidate { weight_bytes = 4 }, stage), 16 * shape.parameters)
end)

t.test("ReplicasKeepBucketsAndEarlierGradients", function()
  local shape = shapes.of(LLAMA_8B)
  local stage = shapes.stages(shape, 1, 1)[1]
  local function bytes(more) return parameter_bytes(shape, candidate(plain.copy(more, { replicas = true })), stage) end

  t.equal(bytes { dp = 2 }, 20 * shape.parameters)
  t.equal(bytes { dp = 2, micro_batches = 1 }, 16 * shape.parameters)
  -- AdamW makes masters of weights in bfloat16: 2 + 4, gradients and buckets 2 + 2, moments 8.
  t.equal(bytes { dp = 2, master_bytes = 2 }, 18 * shape.parameters)
end)

t.test("LateGradientsDoNotAddUpWithActivations", function()
  local parts = { masters = 1, moments = 2, gathered = 4, buffers = 8, gradients = 100, late = 80, activations = 60,
    workspace = 30 }

  t.equal(cost.total(parts), 15 + 20 + 90)
  t.equal(cost.total(plain.copy(parts, { activations = 10 })), 15 + 20 + 80)
end)

t.test("ExpertsAreSharedOutOverTheirOwnDp", function()
  local shape = shapes.of(QWEN_235B)
  local stage = shapes.stages(shape, 1, 1)[1]
  local experts = 94 * 128 * 3 * 4096 * 1536
  local dense = shape.parameters - experts
  local layer = (dense - 2 * 151936 * 4096 - 4096) / 94 + experts / 94 / 8

  local bytes = parameter_bytes(shape, candidate { dp = 32, ep = 8 }, stage)

  -- 32 ranks share the dense parameters, and 4 ranks each eighth of the experts.
  t.near(bytes, 6 * (dense + experts / 8) + 16 * (dense / 32 + experts / 8 / 4)
    + 4 * (layer + 2 * 151936 * 4096 + 4096), 1)
end)

t.test("StagesKeepAsManyMicroBatchesAsTheirOrder", function()
  local shape = shapes.of(LLAMA_8B)
  local function kept(stage, chunks, micro_batches)
    local c = candidate { pp = 4, chunks = chunks, micro_batches = micro_batches }
    local one = { stage = stage, counts = { 8 }, is_first = false, is_last = false }
    local none = { stage = 3, counts = { 8 }, is_first = false, is_last = false }
    local layer = shape.kinds[1].kept
    local elements = 8 * (layer.split + layer.kv + layer.tokens + layer.whole)
    local single = activation_bytes(shape, 4096, candidate { pp = 4 }, none)
    -- Each micro-batch also keeps the result of each chunk.
    local more = (activation_bytes(shape, 4096, c, one) - single) / (2 * 4096)
    return (more + elements + 4096) / (elements + chunks * 4096)
  end

  for stage = 0, 3 do t.near(kept(stage, 1, 8), 4 - stage, 1e-9) end
  t.near(kept(0, 1, 2), 2, 1e-9)
  t.near(kept(0, 2, 8), 4 * (1 + 3 / 8), 1e-9) -- p (1 + (p - 1) / (p v))
end)

t.test("StagesOfAModelWithPicturesAreThoseThatAreCut", function()
  local shape = shapes.of((model_config.read "tests/models/qwen3_vl"))
  local counts = {}
  for i, stage in ipairs(shapes.stages(shape, 2, 1, true)) do counts[i] = stage.counts[1] end

  t.equal(counts, { 2, 1 }) -- the first two layers take features of pictures
end)

t.test("TiedEmbeddingsLieOnTheFirstStageAndTheLast", function()
  local shape = shapes.of(plain.copy(LLAMA_8B, { tie_word_embeddings = true }))
  local stages = shapes.stages(shape, 2, 1)
  local c = candidate { pp = 2, dp = 1, micro_batches = 1 }
  local layer, table_of, norm = (shape.parameters - shape.vocabulary - 4096) / 32, shape.vocabulary, 4096
  local first, last = stages[1].counts[1], stages[2].counts[1] -- fewer layers with the head
  t.equal({ first, last }, { 17, 15 })

  t.equal(parameter_bytes(shape, c, stages[1]), 18 * (first * layer + table_of))
  t.equal(parameter_bytes(shape, c, stages[2]), 18 * (last * layer + table_of + norm))
end)

-- Time ------------------------------------------------------------------------------------------------------

local function only(config, grid, more)
  return propose(config, plain.copy({ grid = grid, memory_gib = 1000 }, more))[1]
end

t.test("TheBubbleIsThatOfTheOrder", function()
  local one = only(LLAMA_8B, { pp = 4 }, { gpus = 4 })

  local busy = one.step_s - one.shares.bubble - one.shares.optimizer - one.shares.dp
  t.near(one.shares.bubble / busy, (4 - 1) / (one.micro_batches * one.chunks), 1e-9)
end)

t.test("OneRankComputesWhatTheModelNeeds", function()
  local one = only(LLAMA_8B, { tp = 1 }, { gpus = 1, tokens_per_step = 8192, memory_gib = 2000 })

  -- Six FLOPs of each parameter but the embedding's, and the scores, at 0.6 of 989e12.
  local products = 6 * (8030261248 - 128256 * 4096) * 8192
  local scores = 32 * 12 * 32 * 128 * 2048 * 8192
  t.truthy(one.step_s > (products + scores) / (0.6 * 989e12))
  t.truthy(one.step_s < 1.5 * (products + scores) / (0.6 * 989e12))
  t.truthy(one.mfu > 0.4 and one.mfu < 0.6)
end)

t.test("OtherDevicesAreOtherTimes", function()
  local one = only(LLAMA_8B, { tp = 8 })
  local function faster(more) return only(LLAMA_8B, { tp = 8 }, more).step_s < one.step_s end

  local better = { flops = 2e15, memory_bandwidth = 1e13, link_gb_s = 900, latency_us = 1, efficiency = 0.9 }
  for name, value in pairs(better) do
    t.truthy(faster { [name] = value }, name)
  end
  local across = only(LLAMA_70B, { tp = 8, pp = 1 }, { gpus = 16 })
  t.truthy(only(LLAMA_70B, { tp = 8, pp = 1 }, { gpus = 16, network_gb_s = 400 }).step_s <= across.step_s)
end)

t.test("AMeasuredStepGivesTheEfficiency", function()
  local truth = only(LLAMA_8B, { tp = 2, dp = 4 }, { efficiency = 0.47 })
  local measured = { step_s = truth.step_s, grid = { tp = 2 }, sequences = truth.sequences,
    checkpoint = truth.checkpoint, reshard_after_forward = truth.fully_shard.reshard_after_forward }

  local calibrated = propose(LLAMA_8B, { measured = measured })

  t.near(calibrated.efficiency, 0.47, 1e-6)
  measured.step_s = 1e-3
  t.raises("measured: 0.001 s a step is too fast; the device's figures", propose, LLAMA_8B, { measured = measured })
  measured.step_s, measured.sequences = 4, 5
  t.raises("no whole number of micro-batches of 5 sequences on tp 2 x dp 4", propose, LLAMA_8B,
    { measured = measured })
end)

-- The search ------------------------------------------------------------------------------------------------

local function random_config(seed)
  math.randomseed(seed)
  local kv = 2 ^ math.random(0, 3)
  local config = { model_type = "llama", vocab_size = 1000 * math.random(10, 150), head_dim = 64,
    hidden_size = 512 * math.random(2, 16), intermediate_size = 1024 * math.random(2, 28),
    num_hidden_layers = math.random(2, 80), num_key_value_heads = kv, num_attention_heads = kv * math.random(1, 12) }
  if math.random() < 0.4 then
    config.model_type, config.num_experts = "qwen3_moe", 2 ^ math.random(3, 7)
    config.moe_intermediate_size, config.num_experts_per_tok = 256 * math.random(1, 8), math.random(1, 8)
  end
  local seq_len = 1024 * 2 ^ math.random(0, 5)
  return config, { gpus = math.random() < 0.3 and 3 * 2 ^ math.random(0, 6) or 2 ^ math.random(0, 9),
    seq_len = seq_len, tokens_per_step = seq_len * 2 ^ math.random(4, 10), memory_gib = 2 ^ math.random(4, 7) }
end

t.test("ProposalsOfRandomConfigsAreGridsThatFit", function()
  local num_found = 0
  for seed = 1, 40 do
    local config, more = random_config(seed)
    local proposals = propose(config, more)
    for i, one in ipairs(proposals) do
      local grid, about = one.grid, ("seed %d, proposal %d"):format(seed, i)
      local sizes = grids.sizes(grid, more.gpus) -- raises where sharding.grid would
      t.equal(sizes.tp * sizes.cp * sizes.pp * sizes.dp, more.gpus, about)
      local kv = config.num_key_value_heads
      t.truthy(config.num_attention_heads % grid.tp == 0 and (kv % grid.tp == 0 or grid.tp % kv == 0), about)
      t.equal((config.num_experts or 1) % grid.ep, 0, about)
      t.equal(one.micro_batches * one.sequences * grid.dp * more.seq_len, more.tokens_per_step, about)
      t.truthy(one.memory_gib <= 0.8 * more.memory_gib and grid.pp * one.chunks <= config.num_hidden_layers, about)
      t.truthy(one.chunks == 1 or one.micro_batches % grid.pp == 0, about)
      t.truthy(i == 1 or one.step_s >= proposals[i - 1].step_s * 0.999, about)
      local sum = 0
      for _, seconds in pairs(one.shares) do sum = sum + seconds end
      t.near(sum, one.step_s, 1e-9 * one.step_s, about)
    end
    num_found = num_found + #proposals
    for _, loser in ipairs(proposals.losers) do t.truthy(#loser.why > 0) end
  end
  t.truthy(num_found > 500, "only " .. num_found .. " grids fit")
end)

t.test("MoreMemoryIsNeverSlower", function()
  for seed = 1, 12 do
    local config, more = random_config(seed)
    local last = math.huge
    for power = 4, 8 do
      more.memory_gib = 2 ^ power
      local best = propose(config, more)[1]
      local now = best and best.step_s or math.huge
      t.truthy(now <= last * 1.001, ("seed %d, %d GiB: %g s after %g s"):format(seed, more.memory_gib, now, last))
      last = now
    end
  end
end)

t.test("SixteenThousandGpusAreFewCandidates", function()
  for _, config in ipairs { LLAMA_70B, QWEN_235B } do
    local proposals = propose(config, { gpus = 16384, seq_len = 8192, tokens_per_step = 2 ^ 25 })
    t.truthy(#proposals > 0 and proposals.candidates < 35000, proposals.candidates)
  end
end)

t.test("LosersSayWhy", function()
  local proposals = propose(QWEN_235B, { gpus = 256, tokens_per_step = 4096 * 64 })
  local function why(axis, size)
    for _, loser in ipairs(proposals.losers) do
      if loser.grid[axis] == size and not loser.least_gib then return loser.why end
    end
  end

  t.equal(why("tp", 16), "tp 16 would span nodes of 8 GPUs")
  t.equal(why("pp", 128), "pp 128 is more than the 94 layers")
  t.equal(why("dp", 128), "dp 128 does not divide the 64 sequences of a step")
  proposals = propose(plain.copy(LLAMA_8B, { num_attention_heads = 12, num_key_value_heads = 12, head_dim = 128 }))
  t.equal(why("tp", 8), '"model.layers.0.self_attn.q_proj": 12 heads cannot be divided by 8 ranks')
  local small = propose(LLAMA_70B, { gpus = 8, memory_gib = 80 })
  t.equal(#small, 0)
  t.truthy(tostring(small):match "^no grid fits\n.*needs [%d.]+ GiB of 64 %(80 %% of 80%)", tostring(small))
end)

t.test("GivenSizesThatNoGridHasSayWhy", function()
  local function reason(grid, config)
    local proposals = propose(config or LLAMA_8B, { gpus = 16, grid = grid })
    t.equal(#proposals, 0)
    t.truthy(tostring(proposals):find(proposals.losers[1].why, 1, true))
    return proposals.losers[1].why
  end

  t.equal(reason { tp = 3 }, "tp 3 does not divide the 16 GPUs")
  t.equal(reason { dp = 5 }, "dp 5 does not divide the 16 GPUs")
  t.equal(reason { tp = 8, pp = 4 }, "together these are 32 ranks, which do not divide the 16 GPUs")
  t.equal(reason { ep = 2 }, "LlamaForCausalLM has no mixture of experts")
  t.equal(reason({ ep = 3 }, QWEN_235B), "ep 3 does not divide the 128 experts")
  t.equal(reason({ ep = 32 }, QWEN_235B), "ep 32 does not divide the 16 GPUs, as it must divide dp x cp")
end)

t.test("GridsThatAModelCannotTakeAreLosers", function()
  local proposals = propose("tests/models/gemma3_vision", { gpus = 8 })
  local texts = {}
  for _, loser in ipairs(proposals.losers) do texts[#texts + 1] = loser.why end
  local text = table.concat(texts, "; ")
  t.truthy(#proposals > 0)
  t.truthy(text:find("the attention of Gemma3ForConditionalGeneration needs whole sequences, and tp 1 x cp 4 does not "
    .. "divide its 6 query heads", 1, true), text)
  for _, one in ipairs(proposals) do t.equal({ 6 / one.grid.tp % one.grid.cp, one.grid.ep }, { 0, 1 }) end
  for _, loser in ipairs(proposals.losers) do t.equal((loser.grid.dp or 1) % 1, 0) end -- none that no GPUs have
  local states = propose("tests/models/qwen3_next", { gpus = 4 })
  t.truthy(#states > 0)
  for _, one in ipairs(states) do t.equal(one.grid.cp, 1) end
  for _, loser in ipairs(states.losers) do
    if loser.grid.cp == 2 then
      t.equal(loser.why, "layers of Qwen3NextForCausalLM pass a state along the sequence, which chunks do not hand on")
    end
  end
end)

t.test("GridsThatTheUserLeavesOutAreNoLosers", function()
  for _, loser in ipairs(propose("tests/models/gemma3_vision", { gpus = 8, grid = { dp = 8 } }).losers) do
    t.equal(loser.grid.dp or 8, 8)
  end
end)

t.test("GivenSizesAreKept", function()
  for _, one in ipairs(propose(LLAMA_8B, { grid = { pp = 2, dp = 2 } })) do
    t.equal({ one.grid.pp, one.grid.dp }, { 2, 2 })
  end
  local sizes = { pp = 2, cp = 2, ep = 8 }
  local proposals = propose(QWEN_235B, { gpus = 256, tokens_per_step = 4096 * 256, grid = sizes })
  t.truthy(#proposals > 0)
  for _, one in ipairs(proposals) do t.equal({ one.grid.pp, one.grid.cp, one.grid.ep }, { 2, 2, 8 }) end
end)

t.test("ProposalsPrintAsATable", function()
  local text = tostring(propose(LLAMA_8B))

  t.truthy(text:match "^grid +step s +GiB +tokens/s +MFU +batches +how +why\n", text)
  t.truthy(text:find("more grids that fit", 1, true), text)
end)

t.test("MistakesAreNamed", function()
  local function check(message, more, config)
    t.raises(message, propose, config or LLAMA_8B, more)
  end
  check("gpus must be a whole number of at least 1, not 0", { gpus = 0 })
  check("memory_gib must be a number above 0, not -1", { memory_gib = -1 })
  check("tokens_per_step 5000 is not a multiple of seq_len 4096; give 4096", { tokens_per_step = 5000 })
  check("efficiency must be a number above 0 and at most 1, not 2", { efficiency = 2 })
  check('unknown option "memory_gb"; did you mean "memory_gib"?', { memory_gb = 80 })
  check("config must be a table as config.json has it, or a folder, not a number", {}, 5)
  check('sharding.propose: unknown architecture "gpt"', {}, { model_type = "gpt" })
  check("grid.tp must be a whole number of at least 1, not 0.5", { grid = { tp = 0.5 } })
  check("grid.replicas is 2; the model of memory knows replicas = 1 alone", { grid = { replicas = 2 } })
  t.raises('the option "gpus" is missing', sharding.propose, { config = LLAMA_8B, memory_gib = 80, seq_len = 1,
    tokens_per_step = 1 })
end)
