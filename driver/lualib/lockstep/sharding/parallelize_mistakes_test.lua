-- Mistakes with grids of two ranks: each is one error, and never another result.

local core = require "lockstep.core"
local data = require "lockstep.data"
local dist = require "lockstep.distributed"
local lora = require "lockstep.lora"
local models = require "lockstep.models"
local nn = require "lockstep.nn"
local plain = require "lockstep.plain"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local RANK = dist.rank()
local TP, CP, PP, EP = sharding.grid { tp = 2 }, sharding.grid { cp = 2 }, sharding.grid { pp = 2 },
  sharding.grid { ep = 2 }

local function load(name) return models.load("tests/models/" .. name) end

t.test("RanksWithOtherOptionsAreNamed", function()
  for _, case in ipairs { { PP, { order = "1f1b" }, { order = "all_forwards_first" } },
    { TP, { sequence = true }, {} }, { CP, { cp = "ring" }, {} }, { TP, {}, { fully_shard = false } } } do
    t.raises("every rank must give the same options, got fully_shard", sharding.parallelize, load "qwen3", case[1],
      case[2 + RANK])
  end
end)

t.test("ModelsThatAnAxisCannotTakeAreErrors", function()
  t.raises("the attention of a Gemma3ForConditionalGeneration needs whole sequences, which all-to-all over heads "
    .. 'alone gives it: take cp = "all_to_all"', sharding.parallelize, load "gemma3_vision", CP, { cp = "ring" })
  t.raises("but Gemma3ForConditionalGeneration has no mixture of experts", sharding.parallelize,
    load "gemma3_vision", EP)
end)

t.test("PicturesOfGemmaInChunksThatAScriptCutsAreAnError", function()
  local net, batch = load "gemma3_vision", data.safetensors "tests/models/gemma3_vision/answers.safetensors"
  t.raises("a batch with pictures cannot be in chunks", sharding.context_parallel, nil, net, { input_ids =
    batch.input_ids, pixel_values = batch.pixel_values, image_grid_thw = batch.image_grid_thw,
    seq_lens = batch.seq_lens:totable() })
end)

-- Patterns of layers are about modules: the experts of a mixture lie in one tensor of the same name.
t.test("APlanOfLayersLeavesExpertsWhole", function()
  local net = load "qwen3_moe" -- some layers are dense
  local experts = net.model.layers[1].mlp.experts
  local shape = tostring(experts.gate_up_proj.shape)
  local down, count = tostring(experts.down_proj.shape), net:num_parameters()
  sharding.parallelize(net, TP, { plan = { ["gate_proj"] = "column", ["up_proj"] = "column", ["down_proj"] = "row" },
    fully_shard = false })
  t.equal({ tostring(experts.gate_up_proj.shape), tostring(experts.down_proj.shape) }, { shape, down })
  t.truthy(net:num_parameters() < count)
end)

t.test("AdaptersOfExpertsAreNotDivided", function()
  local net = load "qwen3_moe"
  lora.apply(net, { r = 2, targets = {}, parameters = { "experts.gate_up_proj" } })
  t.raises('"model.layers.0.mlp.experts" has adapters of its experts, which ep does not divide', sharding.parallelize,
    net, EP)
end)

t.test("FieldsOfAUsersNetAreNotThoseOfAPipeline", function()
  local net = load "qwen3"
  net.tied, net.part = true, "language"
  local model = sharding.parallelize(net, TP)
  local loss = sharding.accumulate(model, { { input_ids = torch.arange(8) } }, 7, function(b)
    return model(b, "loss")
  end)
  t.truthy(loss:item() > 0)
end)

t.test("NoiseOnEmbeddingsNeedsWholeSequencesAndTheWholeModel", function()
  local net = load "qwen3"
  local handle = nn.neftune(net, net:decoder().embed_tokens, { alpha = 5 })
  t.raises("nn.neftune needs whole sequences", sharding.parallelize, net, CP)
  t.raises("nn.neftune needs whole sequences", sharding.parallelize, net, PP)
  handle:remove()
  t.equal(torch.is_tensor((sharding.parallelize(net, CP)({ input_ids = torch.arange(8) }, "loss"))), true)
end)

t.test("AModelThatCannotBeSplitTakesNoPlan", function()
  local net = load "phi3"
  net.tensor_plan = false
  t.raises("Phi3ForCausalLM says that its layers cannot be split", sharding.parallelize, net, TP,
    { plan = { ["layers.*.mlp.gate_up_proj"] = "column", ["layers.*.mlp.down_proj"] = "row" } })
end)

t.test("FusedWeightsAndSinksThatDoNotDivideAreErrors", function()
  local function refused(text, name, change)
    local net = load(name)
    local plan = change(net.model.layers[1], net.settings)
    t.raises("sharding.tensor_parallel: " .. text, sharding.parallelize, net, TP, { plan = plan })
  end
  refused('"model.layers.0.self_attn.qkv_proj": 1 heads cannot be divided by 2 ranks; ranks cannot share heads of keys '
    .. "and values that are one weight", "phi3", function(_, c) c.num_key_value_heads = 1 end)
  refused('"model.layers.0.mlp.gate_up_proj": a section of 35 output features cannot be divided by 2 ranks', "phi3",
    function(layer) layer.mlp.gate_up_proj.sections = { 35, 37 } end)
  refused('"model.layers.0.mlp.gate_up_proj": its sections, of 60 output features, are for a "column" layer with as '
    .. 'many, not for a "column" layer with 72', "phi3",
    function(layer) layer.mlp.gate_up_proj.sections = { 30, 30 } end)
  for _, case in ipairs { { { 108, -36 }, "[2] must be a whole number of at least 1, not -36" },
    { { 36.5, 35.5 }, "[1] must be a whole number of at least 1, not 36.5" },
    { "x", " must be an array of the output features of each weight, not a string" } } do
    refused('"model.layers.0.mlp.gate_up_proj": sections' .. case[2], "phi3",
      function(layer) layer.mlp.gate_up_proj.sections = case[1] end)
  end
  local half = sharding.parallelize(load "phi3", TP, { plan = { ["layers.*.mlp.down_proj"] = "row" } })
  t.raises('a "row" layer takes a part of the features on each of 2 ranks, 18, and was given 36; the layer before it '
    .. 'must be a "column" layer', half, { input_ids = torch.arange(8) })
  refused('"model.layers.0.self_attn.sinks" is a parameter of several modules', "gpt_oss",
    function(layer) layer.mlp.shared = layer.self_attn.sinks end)
  refused('"model.layers.0.self_attn.q_proj" is a column layer, but "model.layers.0.self_attn.kv_b_proj" is not',
    "deepseek_v3_plain", function(_, c)
      c.num_attention_heads = 4
      return { ["layers.*.self_attn.q_proj"] = "column", ["layers.*.self_attn.o_proj"] = "row" }
    end)
end)

t.test("ReplicasAreComparedOnlyWhereTheyComputeTheSame", function()
  local every = core.verify_every
  core.verify_every = function() return 10 end
  for _, grid in ipairs { CP, EP, PP } do
    t.raises("--verify-every compares replicas that compute the same", sharding.parallelize, load "qwen3", grid)
  end
  core.verify_every = every
end)

-- Each rank would draw a head of its own: then the ranks of tp give other scores.
t.test("ANewHeadIsTheSameOnAllRanksOfAGrid", function()
  torch.manual_seed(RANK)
  for _, shards in ipairs { { fully_shard = {} }, { fully_shard = false } } do
    local judge = models.load("tests/models/qwen3", { num_labels = 2, grid = TP, parallel = shards })
    local scores = judge { input_ids = torch.arange(6) }:totable()
    local of_all = dist.all_gather_object(scores)
    t.equal(of_all[1], of_all[2])
  end
  torch.manual_seed(RANK)
  local judge = models.load("tests/models/qwen3", { num_labels = 2, shard = {} })
  local of_all = dist.all_gather_object(judge { input_ids = torch.arange(6) }:totable())
  t.equal(of_all[1], of_all[2])
  t.raises("the folder has a head of 1 labels, not num_labels = 7", models.load, "tests/models/qwen3_reward",
    { num_labels = 7 })
end)

t.test("ReplicasOnAGridClipByTheirOwnMethod", function()
  local model = sharding.parallelize(load "qwen3", sharding.grid {}, { fully_shard = false })
  model({ input_ids = torch.arange(6) }):sum():backward()
  local norm = model:clip_grad_norm(1)
  local sum = 0
  for _, p in ipairs(model:parameters()) do sum = sum + p.grad:pow(2):sum():item() end
  t.truthy(norm:item() > 1 and math.abs(math.sqrt(sum) - 1) < 1e-3, sum)
end)

t.test("SizesWithoutOptionsOfReplicasTakeExperts", function()
  local net = models.build { architectures = { "MixtralForCausalLM" }, model_type = "mixtral", vocab_size = 11,
    hidden_size = 8, intermediate_size = 8, num_hidden_layers = 1, num_attention_heads = 2, num_key_value_heads = 2,
    num_local_experts = 4, num_experts_per_tok = 2 }
  local whole = net:num_parameters()
  t.truthy(sharding.parallel(net, { ep = 2 }):num_parameters() < whole)
end)

t.test("DefaultsOfScriptsAreNoOptions", function()
  local function parallel(more)
    local sizes, written, stderr = { fully_shard = false, sequence = false, chunks = 1, order = "" }, "", io.stderr
    for name, value in pairs(more) do sizes[name] = value end
    io.stderr = { write = function(_, line) written = written .. line end } -- luacheck: ignore 122
    local function restore() io.stderr = stderr end -- luacheck: ignore 122
    plain.finally(restore, sharding.parallel, load "qwen3", sizes)
    return written
  end
  t.equal(parallel {}, "")
  t.equal(parallel { chunks = 2 },
    RANK == 0 and "lockstep: sharding.parallelize: chunks has no effect where pp is 1\n" or "")
  for _, more in ipairs { { pp = 2 }, { pp = 2, order = "all_forwards_first" }, { tp = 2, sequence = true } } do
    t.equal(parallel(more), "")
  end
  t.raises("4 stages need as many layers, but the model has 2", parallel, { pp = 2, chunks = 2 })
  t.raises("sideways", parallel, { pp = 2, order = "sideways" })
end)
