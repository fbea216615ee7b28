-- Models whose linear layers keep the 8 bits of LLM.int8. make_four_bit.py makes the folder. qlora_test compares
-- training with PEFT's.

local config = require "lockstep.models.config"
local few_bits = require "lockstep.nn.few_bits"
local lora = require "lockstep.lora"
local models = require "lockstep.models"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local FOLDER, WHOLE = "tests/models/qwen3_int8", "tests/models/qwen3"
local BF16 = torch.bfloat16

local batch = { input_ids = (torch.arange(24) * 7):remainder(61), seq_lens = { 9, 15 } }

local function logits_of(model) return torch.no_grad(model, batch) end
local function load(options) return models.load(FOLDER, options) end
local function whole(dtype) return load { load_in_8bit = false, dtype = dtype } end

--- Two steps. Returns the losses.
local function train(model)
  local optimizer, losses = optim.AdamW(model:parameters(), { lr = 1e-2 }), {}
  for step = 1, 2 do
    local sum, count = model:loss(batch)
    losses[step] = sum:item() / count
    ;(sum / count):backward()
    optimizer:step()
    optimizer:zero_grad()
  end
  return losses
end

t.test("LayersKeepTheBytesOfTheFolder", function()
  local layers, count = few_bits.layers(load())
  local numbers, bytes = 0, 0
  for _, layer in pairs(layers) do
    t.equal({ layer.weight.dtype, layer.weight.requires_grad }, { torch.int8, false })
    for _, tensor in pairs(layer:state_dict()) do bytes = bytes + tensor:numel() * tensor:element_size() end
    numbers = numbers + layer.weight:numel()
  end

  t.equal(count, 14)
  t.truthy(bytes / numbers < 1.25, bytes / numbers .. " bytes for a weight; rows are short")
  t.equal(select(2, few_bits.layers(whole())), 0)
end)

for _, dtype in ipairs { torch.float32, BF16, torch.float16 } do
  t.test("WholeWeightsHaveTheBitsOfThoseThatAreReadWhole_" .. tostring(dtype), function()
    local state, compared = whole(dtype):state_dict(), 0

    for name, layer in pairs((few_bits.layers(load { dtype = dtype }))) do
      t.truthy(torch.equal(few_bits.whole(layer), state[name .. ".weight"]), name)
      compared = compared + 1
    end
    t.equal(compared, 14)
  end)
end

t.test("LogitsAndNewTokensAreThoseOfWholeWeights", function()
  local model, other = load(), whole()

  t.near(logits_of(model), logits_of(other), 2e-5)
  local prompts, o = { { 3, 1, 4 }, { 1 } }, { max_new_tokens = 8 }
  t.equal(models.generate(model, prompts, o), models.generate(other, prompts, o))
end)

t.test("AModelRoundedAtLoadIsTheFolderOfBitsandbytes", function()
  local state = models.load(WHOLE, { load_in_8bit = true }):state_dict()

  for name, tensor in pairs(load():state_dict()) do t.equal(state[name], tensor, name) end
end)

for name, o in pairs { plain = {}, dropout = { dropout = 0.3 }, dora = { dora = true },
  dora_dropout = { dora = true, dropout = 0.3 } } do
  t.test("AdaptersLearnAsOnWholeWeights_" .. name, function()
    local function adapted(model)
      torch.manual_seed(7)
      lora.apply(model, { r = 3, targets = "all-linear", dora = o.dora, dropout = o.dropout })
      torch.manual_seed(8)
      return model, train(model)
    end
    local model, losses = adapted(load())
    local other, expected = adapted(whole())

    t.near(torch.tensor(losses), torch.tensor(expected), 1e-5)
    local state = other:state_dict()
    for key, p in model:named_parameters() do
      if p.requires_grad then t.near(p:detach(), state[key], 2e-3, key) end
    end
  end)
end

--- Returns a model with an adapter that is not zero.
local function with_adapter(model)
  torch.manual_seed(5)
  lora.apply(model, { r = 3, targets = "all-linear" })
  torch.no_grad(function()
    for _, p in model:named_parameters() do
      if p.requires_grad then nn.init.normal_(p, { std = 0.1 }) end
    end
  end)
  return model
end

t.test("MergingIntoBfloat16GivesTheBitsOfWholeWeights", function()
  local model, other = with_adapter(load { dtype = BF16 }), with_adapter(whole(BF16))
  lora.save(model, run.dir .. "/adapter")

  lora.merge(model)
  lora.merge(other)

  t.equal(select(2, few_bits.layers(model)), 0)
  t.equal(model:state_dict(), other:state_dict())
  models.save(model, run.dir .. "/merged", { like = FOLDER })
  local again = models.load(run.dir .. "/merged")
  t.equal(again:state_dict(), model:state_dict())
  t.equal(config.read(run.dir .. "/merged").quantization_config, nil)
  lora.save_merged(run.dir .. "/adapter", run.dir .. "/later", { like = FOLDER, dtype = BF16 })
  t.equal(models.load(run.dir .. "/later"):state_dict(), model:state_dict())
end)

for _, family in ipairs { "llama_tied", "qwen3_moe", "gemma3", "deepseek_v3_plain" } do
  t.test("AModelRoundedAtLoadIsTheOneThatIsSavedWhole_" .. family, function()
    local path = "tests/models/" .. family
    local model = models.load(path, { load_in_8bit = true, dtype = torch.float32 })
    t.truthy(select(2, few_bits.layers(model)) > 0)

    models.save(model, run.dir .. "/" .. family, { like = path })

    local saved = models.load(run.dir .. "/" .. family)
    t.near(logits_of(model), logits_of(saved), 5e-5)
    t.truthy((logits_of(saved) - logits_of(models.load(path, { dtype = torch.float32 }))):abs():max():item() > 1e-5)
  end)
end

t.test("OptionsAreChecked", function()
  local function fails(message, options, path) t.raises(message, models.load, path or FOLDER, options) end
  fails("give load_in_4bit or load_in_8bit, not both", { load_in_4bit = true, load_in_8bit = true })
  fails("load_in_8bit must be true, false or a table of options, not a number", { load_in_8bit = 1 })
  fails("unknown option", { load_in_8bit = { quant_type = "nf4" } })
  fails("the folder's weights are in 8 bits already", { load_in_8bit = { skip = { "q_proj" } } })
  fails("layers in 8 bits are not for part; give load_in_8bit = false", { load_in_8bit = true, part = "visual" })
  local model = models.load(WHOLE, { load_in_8bit = { skip = { "q_proj" }, compute_dtype = BF16 } })
  t.equal(getmetatable(model.model.layers[1].self_attn.q_proj), nn.Linear)
  t.equal(model.model.layers[1].mlp.up_proj.format.compute_dtype, BF16)
end)

t.test("WhereLayersCannotKeepBytesAFolderIsReadWhole", function()
  t.equal(select(2, few_bits.layers(load { dtype = torch.float64 })), 0)
  t.equal(select(2, few_bits.layers(load { read_once = true })), 0)
end)

t.test("AFolderIn8BitsCanBeRoundedTo4", function()
  local _, layer = next((few_bits.layers(load { load_in_4bit = true })))

  t.equal({ layer.format.type, layer.weight.dtype }, { "nf4", torch.uint8 })
end)
