-- Models in 4 bits: the numbers of bitsandbytes bit for bit, a run of QLoRA as PEFT has it, and all that is done with a
-- model afterwards. make_four_bit.py makes the facts.

local data = require "lockstep.data"
local few_bits = require "lockstep.nn.few_bits"
local blockwise = require "lockstep.nn.blockwise"
local lora = require "lockstep.lora"
local models = require "lockstep.models"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local quantized = require "lockstep.models.quantized"
local run = require "lockstep.run"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local FOLDER = "tests/models/qwen3_nf4"

local answers = data.safetensors(FOLDER .. "/answers.safetensors")
local ids = answers.input_ids
local batch = { input_ids = ids, seq_lens = { ids:size(0) } }

local function bits(x) return x:contiguous():view(torch.uint8) end
local function same_bits(a, b, what) t.truthy(torch.equal(bits(a), bits(b)), what) end
local function difference(a, b) return (a:float() - b:float()):abs():max():item() end
local function logits_of(model, given) return torch.no_grad(model, given or batch) end

--- Returns the bytes of a model's parameters and buffers.
local function bytes_of(model)
  local bytes = 0
  for _, tensor in pairs(model:state_dict()) do bytes = bytes + tensor:numel() * tensor:element_size() end
  return bytes
end

t.test("MatricesHaveTheBitsOfBitsandbytes", function()
  local facts = data.safetensors "tests/models/four_bit/matrices.safetensors"
  same_bits(blockwise.map(true, "cpu"), facts.signed)
  same_bits(blockwise.map(false, "cpu"), facts.unsigned)
  local tried = 0
  for name, whole in pairs(facts) do
    local rows, kind, double = name:match "^whole%.(%d+)%.(%w+)%.(%w+)$"
    if rows then
      local case = name:gsub("^whole%.", "")
      local weight = facts["weight." .. rows]

      local matrix = few_bits.quantize(weight, { type = kind, double = double == "True" })

      same_bits(matrix.packed, facts[case], case)
      same_bits(matrix.absmax, facts[case .. ".absmax"], case)
      if matrix.nested_absmax then same_bits(matrix.nested_absmax, facts[case .. ".nested_absmax"], case) end
      t.truthy(torch.equal(few_bits.dequantize(matrix, weight.dtype), whole), case)
      local tensors = { [case] = facts[case] }
      for other, tensor in pairs(facts) do
        if other:sub(1, #case + 1) == case .. "." then tensors[other] = tensor end
      end
      local readers = quantized.take(tensors, { quant_method = "bitsandbytes" }, weight.dtype)
      t.truthy(torch.equal(readers[case](), whole), "as a folder has it: " .. case)
      tried = tried + 1
    end
  end
  t.equal(tried, 12)
end)

t.test("AFolderOfBitsandbytesComputesWhatItDoesThere", function()
  local model = models.load(FOLDER)
  local layers, count = few_bits.layers(model)

  t.equal({ count, getmetatable(model.model.layers[1].self_attn.o_proj) == nn.Linear }, { 13, true })
  for name, layer in pairs(layers) do same_bits(few_bits.whole(layer), answers["whole." .. name .. ".weight"], name) end
  t.near(logits_of(model), answers.logits, 2e-5)
end)

t.test("WholeWeightsOfTheFolderAreTheSame", function()
  local model, whole = models.load(FOLDER), models.load(FOLDER, { load_in_4bit = false })

  local _, count = few_bits.layers(whole)
  t.equal(count, 0)
  t.near(logits_of(whole), logits_of(model), 1e-5)
  t.equal(models.generate(model, { { 3, 1, 4 }, { 1 } }, { max_new_tokens = 8 }),
    models.generate(whole, { { 3, 1, 4 }, { 1 } }, { max_new_tokens = 8 }))
end)

--- Trains an adapter as PEFT did. Returns the losses.
local function train(model, steps, forward)
  local optimizer, losses = optim.AdamW(model:parameters(), { lr = 1e-2, weight_decay = 0 }), {}
  for step = 1, steps do
    local sum, count = (forward or function() return model:loss(batch) end)()
    losses[step] = sum:item() / count
    ;(sum / count):backward()
    optimizer:step()
    optimizer:zero_grad()
  end
  return losses
end

--- Gives a model the adapter with which PEFT began.
local function with_adapter(model)
  lora.apply(model, { r = 4, alpha = 8, targets = "all-linear" })
  torch.no_grad(function()
    for name, p in model:named_parameters() do
      if p.requires_grad then p:copy_(answers["before.base_model.model." .. name]) end
    end
  end)
  return model
end

t.test("QloraFollowsPeft", function()
  local expected = answers.losses:totable()
  local model = with_adapter(models.load(FOLDER))

  local losses = train(model, #expected)

  for step, loss in ipairs(expected) do t.near(losses[step], loss, 2e-5 * loss, "the loss of step " .. step) end
  local compared = 0
  for name, p in model:named_parameters() do
    if p.requires_grad then
      t.near(p:detach(), answers["after.base_model.model." .. name], 2e-3, name)
      compared = compared + 1
    end
  end
  t.equal(compared, 28)
end)

t.test("RegionsThatRunAgainAndTilesLearnTheSame", function()
  local plain = train(with_adapter(models.load(FOLDER)), 3)
  local model = with_adapter(models.load(FOLDER))
  model.checkpoint = {}
  local tiled = with_adapter(models.load(FOLDER))
  tiled.tiled_mlp = { tiles = 3 }

  for step, loss in ipairs(train(model, 3)) do t.near(loss, plain[step], 1e-6) end
  for step, loss in ipairs(train(tiled, 3)) do t.near(loss, plain[step], 1e-4) end
end)

t.test("NothingButTheBytesIsKeptOfTheBase", function()
  local model = models.load(FOLDER)
  local linear, bytes = 0, 0
  for _, layer in pairs((few_bits.layers(model))) do
    linear = linear + few_bits.outline(layer):numel()
    for name, tensor in pairs(layer:state_dict()) do
      if not name:find "map" then bytes = bytes + tensor:numel() * tensor:element_size() end
    end
  end
  t.truthy(bytes / linear < 0.52, bytes / linear .. " bytes for a weight")
  t.equal(bytes_of(models.load(FOLDER, { load_in_4bit = false })) > bytes_of(model), true)
end)

-- Made at load: every architecture ---------------------------------------------------------------------

local FAMILIES = { "llama", "llama_tied", "qwen2", "qwen3", "qwen3_moe", "mistral", "mixtral", "gemma3", "phi3",
  "olmo2", "granite", "smollm3", "deepseek_v3_plain", "gpt_oss" }

for i, family in ipairs(FAMILIES) do
  t.test("AModelMadeIn4BitsIsTheOneThatIsSavedWhole_" .. family, function()
    local path = "tests/models/" .. family
    local options = { quant_type = i % 2 == 0 and "fp4" or "nf4", double_quant = i % 3 ~= 0 }
    local given = { input_ids = (torch.arange(14) * 7):remainder(61), seq_lens = { 5, 9 } }
    local model = models.load(path, { load_in_4bit = options, dtype = torch.float32 })
    local _, count = few_bits.layers(model)
    t.truthy(count > 0)

    models.save(model, run.dir .. "/" .. family, { like = path })

    local saved = models.load(run.dir .. "/" .. family)
    local before = models.load(path)
    t.truthy(difference(logits_of(saved, given), logits_of(before, given)) > 1e-4, "4 bits change something")
    t.near(logits_of(model, given), logits_of(saved, given), 5e-5)
    lora.apply(model, { r = 2, targets = "all-linear" })
    local sum, tokens = model:loss(given)
    ;(sum / tokens):backward()
    for name, p in model:named_parameters() do
      t.truthy(not p.requires_grad or p.grad or name:find "%.experts%.", name .. " has no gradient")
    end
  end)
end

t.test("WeightsAreRoundedFromTheDtypeOfTheModel", function()
  local path = "tests/models/qwen3"
  local model = models.load(path, { load_in_4bit = true, dtype = torch.bfloat16 })
  local layer = model.model.layers[1].mlp.up_proj
  local whole = models.load(path, { dtype = torch.bfloat16 }).model.layers[1].mlp.up_proj.weight

  local expected = few_bits.dequantize(few_bits.quantize(whole, { type = "nf4", double = true }), torch.bfloat16)
  t.truthy(torch.equal(few_bits.whole(layer), expected))
  local y = layer(torch.ones({ 2, 20 }):to(torch.bfloat16))
  t.equal(y.dtype, torch.bfloat16)
end)

t.test("SkippedLayersAndTheComputeDtypeAreTheCallers", function()
  local model = models.load("tests/models/qwen3", { load_in_4bit = { skip = { "q_proj", "mlp.down_proj" },
    compute_dtype = torch.bfloat16 } })

  for name in pairs((few_bits.layers(model))) do
    t.truthy(not name:find "q_proj" and not name:find "down_proj", name)
  end
  local layer = model.model.layers[1].self_attn.k_proj
  local x = torch.randn { 3, 20 }
  local rounded = torch.linear(x:to(torch.bfloat16), few_bits.whole(layer):to(torch.bfloat16))
  t.equal(layer(x).dtype, torch.float32)
  t.near(layer(x), rounded:float(), 2e-2)
  t.truthy(difference(layer(x), torch.linear(x, few_bits.whole(layer))) > 1e-4)
end)

-- Adapters ---------------------------------------------------------------------------------------------------------

for name, options in pairs { plain = {}, dora = { dora = true }, rslora = { rslora = true },
  dora_dropout = { dora = true, dropout = 0.3 } } do
  t.test("AdaptersLearnAsOnWholeWeights_" .. name, function()
    local function adapted(load_in_4bit)
      local model = models.load(FOLDER, { load_in_4bit = load_in_4bit })
      torch.manual_seed(7)
      lora.apply(model, { r = 3, targets = "all-linear", dora = options.dora, rslora = options.rslora,
        dropout = options.dropout })
      torch.manual_seed(8)
      return model, train(model, 3)
    end
    local model, losses = adapted()
    local whole, expected = adapted(false)

    for step, loss in ipairs(expected) do t.near(losses[step], loss, 1e-5) end
    local state = whole:state_dict()
    for key, p in model:named_parameters() do
      if p.requires_grad then t.near(p:detach(), state[key], 2e-3, key) end
    end
  end)
end

t.test("MergingGivesWholeWeightsThatComputeTheSame", function()
  local model = with_adapter(models.load(FOLDER))
  train(model, 3)
  local expected = logits_of(model)
  lora.save(model, run.dir .. "/adapter")

  lora.merge(model)

  local _, count = few_bits.layers(model)
  t.equal(count, 0)
  t.near(logits_of(model), expected, 2e-5)
  models.save(model, run.dir .. "/merged", { like = FOLDER })
  t.near(logits_of(models.load(run.dir .. "/merged")), expected, 2e-5)
  lora.save_merged(run.dir .. "/adapter", run.dir .. "/merged_later", { like = FOLDER })
  t.near(logits_of(models.load(run.dir .. "/merged_later")), expected, 2e-5)
  local again = models.load(FOLDER)
  lora.load(again, run.dir .. "/adapter")
  t.near(logits_of(again), expected, 1e-6)
end)

t.test("SavingMergedRoundsABaseThatIsWhole", function()
  local path = "tests/models/qwen3"
  local given = { input_ids = torch.arange(9), seq_lens = { 9 } }
  local model = models.load(path, { load_in_4bit = true })
  lora.apply(model, { targets = "all-linear" })
  lora.save(model, run.dir .. "/adapter_of_whole")

  lora.save_merged(run.dir .. "/adapter_of_whole", run.dir .. "/merged_of_whole", { like = path, load_in_4bit = true })

  t.near(logits_of(models.load(run.dir .. "/merged_of_whole"), given), logits_of(model, given), 2e-5)
end)

t.test("SavingMergedRoundsWeightsOfTheDtypeInTraining", function()
  local path, how = "tests/models/qwen3", { load_in_4bit = true, dtype = torch.bfloat16 }
  local model = models.load(path, how)
  lora.apply(model, { targets = "all-linear" })
  lora.save(model, run.dir .. "/adapter_of_bf16")

  lora.save_merged(run.dir .. "/adapter_of_bf16", run.dir .. "/merged_of_bf16",
    { like = path, load_in_4bit = true, dtype = torch.bfloat16 })

  lora.merge(model)
  t.equal(models.load(run.dir .. "/merged_of_bf16"):state_dict(), model:state_dict())
end)

-- Autocast, states, and what is refused ------------------------------------------------------------------------------

t.test("AutocastMultipliesInItsDtype", function()
  local layer = models.load("tests/models/qwen3", { load_in_4bit = true }).model.layers[1].mlp.up_proj
  local x = torch.randn({ 4, 20 }):requires_grad_(true)
  local y = torch.autocast({ device = "cpu", dtype = torch.bfloat16 }, layer, x)

  t.equal(y.dtype, torch.bfloat16)
  y:sum():backward()
  t.equal(x.grad.dtype, torch.float32)
end)

t.test("AStateGoesIntoAnotherModel", function()
  local model, other = models.load(FOLDER), models.load(FOLDER)
  torch.no_grad(function()
    for _, p in model:named_parameters() do p:zero_() end
  end)
  t.truthy(difference(logits_of(model), answers.logits) > 0.1)

  model:load_state_dict(other:state_dict())

  t.equal(difference(logits_of(model), logits_of(other)), 0)
end)

t.test("AChangeOfTheModelsDtypeLeavesTheBlocksAlone", function()
  local model = models.load(FOLDER)
  local name, layer = next((few_bits.layers(model)))

  model:to(torch.bfloat16)

  same_bits(few_bits.whole(layer), answers["whole." .. name .. ".weight"])
  model:requires_grad_(true)
  t.equal({ layer.weight.requires_grad, model.model.norm.weight.requires_grad }, { false, true })
end)

t.test("WhatCannotBeIn4BitsIsAnError", function()
  local function load(options, more)
    options = { load_in_4bit = options }
    for key, value in pairs(more or {}) do options[key] = value end
    return models.load, "tests/models/qwen3", options
  end
  t.raises('quant_type must be "nf4" or "fp4", not "int4"', load { quant_type = "int4" })
  t.raises("load_in_4bit must be true, false or a table of options, not a string", load "nf4")
  t.raises("unknown option", load { type = "nf4" })
  t.raises("compute_dtype must be torch.float32", load { compute_dtype = torch.float64 })
  t.raises("layers in 4 bits are not for part; give load_in_4bit = false", load(true, { part = "visual" }))
  t.raises("no linear layer that could be in 4 bits", load { skip = { "q_proj", "k_proj", "v_proj", "o_proj",
    "gate_proj", "up_proj", "down_proj" } })
  t.raises("skip must be names of layers, got a number", load { skip = { 3 } })
  t.raises("layers do not multiply in float64; give it compute_dtype", load(true, { dtype = torch.float64 }))
  t.raises("the folder's weights are in 4 bits already", models.load, FOLDER, { load_in_4bit = { quant_type = "fp4" } })
  t.raises("has an odd number of elements", few_bits.quantize, torch.zeros { 3, 5 }, { type = "nf4" })
end)

t.test("TensorsThatAreNotThereAreNamed", function()
  local function tensors()
    local facts, result = data.safetensors(FOLDER .. "/model.safetensors"), {}
    for name, tensor in pairs(facts) do
      if name:find "layers.1.mlp.up_proj" then result[name] = tensor end
    end
    return result
  end
  local how, name = { quant_method = "bitsandbytes" }, "model.layers.1.mlp.up_proj.weight"
  for _, part in ipairs { "", ".absmax", ".nested_absmax", ".nested_quant_map" } do
    local given = tensors()
    given[name .. part] = nil
    t.raises("a weight in 4 bits needs the tensors .absmax", quantized.take, given, how)
  end
  local given = tensors()
  given[name .. ".quant_state.bitsandbytes__nf4"] = torch.zeros({ 3 }, { dtype = torch.uint8 })
  t.raises("holds no JSON object", quantized.take, given, how)
  local good = '{"quant_type":"nf4","blocksize":64,"nested_blocksize":256,"dtype":"bfloat16","shape":[4,32]}'
  for _, case in ipairs {
    { '"blocksize":64', '"blocksize":0', "a whole number of at least 1 as blocksize of its quant_state, got 0" },
    { '"blocksize":64', '"blocksize":"64x"', "as blocksize of its quant_state, got 64x" },
    { '"nested_blocksize":256', '"nested_blocksize":1e300', "as nested_blocksize of its quant_state" },
    { '"nf4"', '"int8"', "expected nf4 or fp4 as quant_type of its quant_state, got int8" },
    { '"dtype":"bfloat16",', "", "expected float32, bfloat16 or float16 as dtype of its quant_state, got nil" },
    { "%[4,32%]", "[-4,-32]", "expected a weight of shape [out, in] in 4 bits" },
    { '"shape"', '"nested_offset":"x","shape"', "expected a number as nested_offset of its quant_state, got x" },
  } do
    given = tensors()
    given[name .. ".quant_state.bitsandbytes__nf4"] = torch.tensor({ good:gsub(case[1], case[2]):byte(1, -1) },
      { dtype = torch.uint8 })
    t.raises(case[3], quantized.take, given, how)
  end
end)

t.test("WeightsOfLlmInt8AreReadWhole", function()
  local codes = torch.tensor({ { 127, -64, 0 }, { 5, -127, 1 } }, { dtype = torch.int8 })
  local tensors = { ["a.weight"] = codes, ["a.SCB"] = torch.tensor { 2, 0.5 },
    ["a.weight_format"] = torch.zeros({}, { dtype = torch.uint8 }), ["b.weight"] = torch.ones { 2 } }

  local readers = quantized.take(tensors, { quant_method = "bitsandbytes" }, torch.float32)

  t.near(readers["a.weight"](), torch.tensor { { 2, -128 / 127, 0 }, { 2.5 / 127, -0.5, 0.5 / 127 } }, 1e-6)
  t.equal({ tensors["a.SCB"], tensors["a.weight_format"], readers["b.weight"] }, {})
  t.raises("a.SCB is for a.weight, which must be int8 [3, in]", quantized.take, { ["a.weight"] = codes,
    ["a.SCB"] = torch.ones { 3 } }, { quant_method = "bitsandbytes" })
  for _, magnitude in ipairs { -0.5, 0 / 0, math.huge } do
    t.raises("models.load: a.SCB[1] is ", quantized.take, { ["a.weight"] = codes,
      ["a.SCB"] = torch.tensor { 0, magnitude } }, { quant_method = "bitsandbytes" })
  end
end)

t.test("MagnitudesOfLlmInt8MayBeAColumn", function()
  local codes = torch.tensor({ { 127, -64 }, { 5, -127 }, { 0, 1 } }, { dtype = torch.int8 })
  local how, magnitudes = { quant_method = "bitsandbytes" }, torch.tensor { 2, 0.5, 1 }
  local function whole(scb)
    return quantized.take({ ["a.weight"] = codes, ["a.SCB"] = scb }, how, torch.float32)["a.weight"]()
  end

  t.equal(whole(magnitudes:unsqueeze(1)), whole(magnitudes))
  t.equal(whole(magnitudes:unsqueeze(0)), whole(magnitudes))
end)

t.test("WeightsOfLlmInt8InTheOrderOfAKernelAreRefused", function()
  local codes = torch.ones({ 2, 3 }, { dtype = torch.int8 })
  t.raises("models.load: a.weight_format must be 0, which stands for rows, got 3", quantized.take,
    { ["a.weight"] = codes, ["a.SCB"] = torch.ones { 2 },
      ["a.weight_format"] = torch.tensor(3, { dtype = torch.uint8 }) }, { quant_method = "bitsandbytes" })
end)
