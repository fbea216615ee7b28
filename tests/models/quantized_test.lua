-- Folders with quantized weights: they give the logits and ids that transformers has with the same values, train with
-- adapters, and are saved whole. The formats by hand, from their specifications.

local core = require "lockstep.core"
local data = require "lockstep.data"
local lora = require "lockstep.lora"
local models = require "lockstep.models"
local optim = require "lockstep.optim"
local quantized = require "lockstep.models.quantized"
local run = require "lockstep.run"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local parity = dofile "tests/models/parity_fixture.lua"

local FOLDERS = { "gpt_oss_mxfp4", "deepseek_v3_fp8" }

local U8 = { dtype = torch.uint8 }

local function difference(a, b) return (a - b):abs():max():item() end

for _, folder in ipairs(FOLDERS) do
  local path = "tests/models/" .. folder

  t.test("LogitsAndGreedyIdsOf_" .. folder, function()
    local answers, batch = parity.answers_of(folder)
    local model = models.load(path)

    t.near(torch.no_grad(model, batch), answers.logits, 1e-4)
    local ids = batch.input_ids:totable()
    local prompt = { ids[#ids - 2], ids[#ids - 1], ids[#ids] }
    t.equal(models.generate(model, { prompt })[1], answers.generated[2]:totable())
  end)

  t.test("AShardedModelIsThePlainOne_" .. folder, function()
    local _, batch = parity.answers_of(folder)
    local plain, model = models.load(path), models.load(path, { shard = {} })

    t.equal(model:state_dict(), plain:state_dict())
    t.near(torch.no_grad(model, batch), torch.no_grad(plain, batch), 1e-5)
  end)

  t.test("AdaptersLearnAndTheBaseStays_" .. folder, function()
    local _, batch = parity.answers_of(folder)
    local model = models.load(path, { dtype = torch.bfloat16 })
    t.equal(model.model.layers[2].mlp.experts.down_proj.dtype, torch.bfloat16)
    lora.apply(model, { r = 4, alpha = 8, targets = "all-linear" })
    local before = model.model.layers[2].mlp.experts.down_proj:clone()
    local optimizer, losses = optim.AdamW(model:parameters(), { lr = 0.02 }), {}
    for step = 1, 4 do
      local sum, count = model:loss(batch)
      losses[step] = sum:item() / count
      ;(sum / count):backward()
      optimizer:step()
      optimizer:zero_grad()
    end

    t.truthy(losses[4] < losses[1], losses[4] .. " after " .. losses[1])
    t.equal(difference(model.model.layers[2].mlp.experts.down_proj, before), 0)
  end)

  t.test("ASavedFolderIsWhole_" .. folder, function()
    local _, batch = parity.answers_of(folder)
    local model = models.load(path)
    for name, like in pairs { like = path, alone = false } do
      local saved = run.dir .. "/" .. folder .. name

      models.save(model, saved, { like = like or nil })

      local config = core.json_decode(assert(io.open(saved .. "/config.json")):read "*a")
      t.equal({ config.quantization_config, config.hidden_size }, { nil, model.settings.hidden_size })
      t.equal(difference(torch.no_grad(models.load(saved), batch), torch.no_grad(model, batch)), 0, name)
    end
  end)
end

t.test("Mxfp4IsTheFormatOfTheSpecification", function()
  local codes = {}
  for i = 0, 15 do codes[i + 1] = 16 * ((i * 7) % 16) + i end -- the upper number of byte i is that of code 7 i
  local numbers = { [0] = 0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6 }
  local blocks = torch.tensor(codes, U8):view(1, 1, 1, 16):expand(1, 2, 2, 16)
  local scales = torch.tensor({ { { 127, 0 }, { 130, 254 } } }, U8)

  for _, dtype in ipairs { torch.float32, torch.float64, torch.bfloat16 } do
    local weight = quantized.from_mxfp4(blocks, scales, dtype)

    t.equal({ weight.shape[1], weight.shape[2], weight.shape[3], weight.dtype }, { 1, 64, 2, dtype })
    for i = 0, 15 do
      for column, factors in ipairs { { 1, 2 ^ -127 }, { 8, 2 ^ 127 } } do
        for block, factor in ipairs(factors) do
          for half, number in ipairs { numbers[i], numbers[(i * 7) % 16] } do
            local got = weight[0][32 * (block - 1) + 2 * i + half - 1][column - 1]:item()
            local expected = number * factor
            if math.abs(expected) >= 2 ^ 128 then expected = expected / 0 end -- beyond float32
            t.equal(got, expected)
          end
        end
      end
    end
  end
  t.truthy(quantized.from_mxfp4(blocks, torch.full({ 1, 2, 2 }, 255, U8), torch.float32):isnan():all():item())
end)

t.test("BlocksThatDoNotFitAreNamed", function()
  local tensors = data.safetensors "tests/models/gpt_oss_mxfp4/model.safetensors"
  local name = "model.layers.0.mlp.experts.down_proj"
  local how = { quant_method = "mxfp4" }
  for _, scales in ipairs { false, torch.zeros({ 3, 64, 2 }, U8), torch.zeros { 3, 64, 1 } } do
    t.raises("down_proj_scales uint8 [experts, out, blocks]", quantized.take,
      { [name .. "_blocks"] = tensors[name .. "_blocks"], [name .. "_scales"] = scales or nil }, how)
  end
  t.equal(quantized.problem(how), nil)
  t.equal(quantized.problem { quant_method = "fp8", weight_block_size = { 128, 128 } }, nil)
  for _, given in ipairs { { bits = 4 }, { quant_method = "gptq" }, { quant_method = "fp8" }, 5 } do
    t.truthy(quantized.problem(given))
  end
end)
