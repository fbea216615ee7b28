-- QLoRA against PEFT on bitsandbytes, step by step. Models are in 4 or 8 bits on the disk, or are rounded at load.
-- make_four_bit.py makes the facts: see its CASES.

local data = require "lockstep.data"
local few_bits = require "lockstep.nn.few_bits"
local lora = require "lockstep.lora"
local models = require "lockstep.models"
local optim = require "lockstep.optim"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local WHOLE, PACKED, INT8 = "tests/models/qwen3", "tests/models/qwen3_qlora", "tests/models/qwen3_int8"
local F32, BF16 = torch.float32, torch.bfloat16

local answers = data.safetensors(PACKED .. "/answers.safetensors")
local batch = { input_ids = answers.input_ids, seq_lens = { answers.input_ids:size(0) } }

--- Returns the pairs of a table in the order of the names.
local function in_order(by_name)
  local names, i = {}, 0
  for name in pairs(by_name) do names[#names + 1] = name end
  table.sort(names)
  return function()
    i = i + 1
    return names[i], by_name[names[i]]
  end
end

--- Returns one vector of tensors by name, as make_four_bit.py does.
local function flat(by_name)
  local list = {}
  for _, tensor in in_order(by_name) do list[#list + 1] = tensor:detach():flatten() end
  return torch.cat(list)
end

--- Returns the trained parameters of a model, or what `of` gives for each.
local function adapter(model, of)
  local found = {}
  for name, p in model:named_parameters() do
    if p.requires_grad then found[name] = of and of(p) or p end
  end
  return found
end

--- Gives a model the adapter with which PEFT begins.
local function adapt(model)
  lora.apply(model, { r = 4, alpha = 8, targets = "all-linear" })
  local position = 0
  torch.no_grad(function()
    for _, p in in_order(adapter(model)) do
      p:copy_(answers.before:narrow(0, position, p:numel()):view(p.shape))
      position = position + p:numel()
    end
  end)
  t.equal(position, answers.before:numel())
  return model
end

--- Trains as PEFT did. Returns the losses, float64, and the gradients of the first step.
local function train(model)
  local optimizer, losses, gradients = optim.AdamW(model:parameters(), { lr = 1e-2, weight_decay = 0.01 }), {}, nil
  for step = 1, answers["losses.single"]:size(0) do
    local sum, count = model:loss(batch)
    local loss = sum / count
    loss:backward()
    losses[step] = loss:item()
    gradients = gradients or flat(adapter(model, function(p) return p.grad:clone() end))
    optimizer:step()
    optimizer:zero_grad()
  end
  return torch.tensor(losses, { dtype = torch.float64 }), gradients
end

local function relative(actual, expected)
  expected = expected:to(torch.float64)
  return ((actual:to(torch.float64) - expected):norm() / expected:norm()):item()
end

local single = { double_quant = false }

for name, case in pairs {
  folder = { "single", PACKED },
  at_load = { "single", WHOLE, { load_in_4bit = single } },
  double_quantization = { "double", WHOLE, { load_in_4bit = true } },
  eight_bits = { "int8", INT8 },
  eight_bits_at_load = { "int8", WHOLE, { load_in_8bit = true } },
  eight_bits_whole = { "int8", INT8, { load_in_8bit = false } },
} do
  t.test("LossesGradientsAndAdaptersAreThoseOfPeft_" .. name, function()
    local of, path, options = unpack(case)
    local model = adapt(models.load(path, options))

    local losses, gradients = train(model)

    t.near(losses / answers["losses." .. of], torch.ones_like(losses), 3e-6)
    t.near(gradients, answers["grad." .. of], 4e-6 * answers["grad." .. of]:abs():max():item())
    if of == "single" then t.near(flat(adapter(model)), answers["after.single"], 3e-5) end
  end)
end

-- In bfloat16 each implementation rounds elsewhere. Ours must be about as near as PEFT to the same model in float32,
-- whose layers have the weights that were rounded from bfloat16.

local in_4_bits = { load_in_4bit = true, dtype = BF16 }
local int8 = { dtype = BF16 }

for name, case in pairs {
  bfloat16 = { WHOLE, in_4_bits },
  wide = { WHOLE, { load_in_4bit = { compute_dtype = F32 }, dtype = BF16 } },
  prepared = { WHOLE, { load_in_4bit = { compute_dtype = BF16 }, dtype = BF16 }, F32 },
  int8_bfloat16 = { INT8, int8 },
} do
  t.test("InLowPrecisionLossesAreAsNearToThoseOfFloat32AsPefts_" .. name, function()
    local path, options, dtype = unpack(case)
    local exact, exact_gradients = train(adapt(models.load(path, path == INT8 and int8 or in_4_bits):to(F32)))

    local losses, gradients = train(adapt(models.load(path, options):to { dtype = dtype }))

    local expected, expected_gradients = answers["losses." .. name], answers["grad." .. name]
    t.truthy(relative(losses, exact) < 1.5 * relative(expected, exact))
    t.truthy(relative(gradients, exact_gradients) < 1.5 * relative(expected_gradients, exact_gradients))
  end)
end

t.test("WithoutTrainingBitsandbytesRoundsInputsTo8BitsToo", function()
  local distance = relative(torch.no_grad(models.load(INT8), batch), answers["logits.int8"])
  t.truthy(distance > 0.01 and distance < 0.04, distance)
end)

-- Bytes -----------------------------------------------------------------------------------------------------------

for case, dtype in pairs { double = F32, bfloat16 = BF16 } do
  t.test("BytesAndMagnitudesAreThoseOfBitsandbytes_" .. case, function()
    local layers = few_bits.layers(models.load(WHOLE, { load_in_4bit = true, dtype = dtype }))
    local function of(name)
      local parts = {}
      for key, layer in pairs(layers) do parts[key] = layer[name] end
      return flat(parts)
    end

    t.equal(of "weight", answers["packed." .. case])
    t.equal(of "weight_absmax", answers["absmax." .. case])
    t.equal(of("weight_nested_absmax"):view(F32), answers["nested_absmax." .. case])
  end)
end

t.test("BytesAndMagnitudesAreThoseOfTheFolder", function()
  local ours = models.load(WHOLE, { load_in_4bit = single }):state_dict()
  for name, tensor in pairs(models.load(PACKED):state_dict()) do t.equal(ours[name], tensor, name) end
end)

for case, load in pairs {
  single = function() return models.load(PACKED) end,
  bfloat16 = function() return models.load(WHOLE, { load_in_4bit = true, dtype = BF16 }) end,
} do
  t.test("MergedWeightsAreThoseOfPeft_" .. case, function()
    local model, merged = adapt(load()), {}

    lora.merge(model)

    for name, weight in pairs(model:state_dict()) do
      if name:find "^model%.layers%.1%..*proj%.weight$" then merged[name] = weight end
    end
    local expected, ours = answers["merged." .. case], flat(merged)
    t.equal(ours.dtype, expected.dtype)
    t.near(ours:float(), expected:float(), expected.dtype == F32 and 1e-6 or 0)
  end)
end
