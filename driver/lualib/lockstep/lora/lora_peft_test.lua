-- Adapters that PEFT wrote: what they compute, their gradients, merging, and the folder that lora.save writes of them.
-- tests/lora/make_fixtures.py writes the fixtures with what PEFT computes.

local core = require "lockstep.core"
local data = require "lockstep.data"
local lora = require "lockstep.lora"
local run = require "lockstep.run"
local t = require "lockstep.testing"
local tiny = require "tiny_fixture"
local torch = require "lockstep.torch"

-- The number of adapted modules; bfloat16 rounds each result, which grows over two layers.
local CASES = {
  plain = { count = 4 }, rslora = { count = 2 }, dropout = { count = 4 }, dora = { count = 6 },
  dora_dropout = { count = 4 }, whole = { count = 4 }, patterns = { count = 4 }, regex = { count = 2 },
  experts = { count = 3 }, one_of_experts = { count = 2 },
  bfloat16 = { count = 4, dtype = torch.bfloat16 }, bfloat16_dora = { count = 4, dtype = torch.bfloat16 },
}

local PREFIX = "base_model.model."

--- PEFT's name of a parameter of ours.
local function peft_name(case, name)
  name = name:gsub("experts%.lora_down_proj%.", "experts.")
  return (name:gsub("experts%.lora_gate_up_proj%.", case == "experts" and "experts.base_layer." or "experts."))
end

local function load(case)
  local folder = tiny.FIXTURES .. "/" .. case
  local model = tiny.base_of(case, CASES[case].dtype)
  t.equal(lora.load(model, folder), CASES[case].count, case)
  return model, data.safetensors(folder .. "/expected.safetensors"), folder
end

--- Compares with a tolerance relative to the largest element.
local function close(actual, expected, tolerance, what)
  t.equal(actual.dtype, expected.dtype, what)
  t.near(actual:float(), expected:float(), tolerance * math.max(1, expected:float():abs():max():item()), what)
end

for case, c in pairs(CASES) do
  local tolerance = c.dtype and 2e-2 or 2e-6

  t.test("LogitsOf_" .. case .. "_AreThoseOfPeft", function()
    local model, expected = load(case)
    model:eval()

    close(torch.no_grad(model, expected.ids), expected.logits, tolerance, case)
    close(lora.disabled(model, model, expected.ids), expected.disabled, tolerance, case .. ", disabled")
    t.truthy((expected.logits - expected.disabled):abs():max():item() > 0.1)
  end)

  t.test("GradientsOf_" .. case .. "_AreThoseOfPeft", function()
    local model, expected = load(case)
    torch.manual_seed(7)

    local logits = model(expected.ids)
    close(logits:detach(), expected.train, tolerance, case)
    tiny.loss(logits):backward()

    local count = 0
    for name, p in model:named_parameters() do
      local gradient = expected["grad." .. PREFIX .. peft_name(case, name)]
      t.equal(p.requires_grad, gradient ~= nil, name)
      if gradient then
        close(p.grad, gradient, 2 * tolerance, name)
        count = count + 1
      end
    end
    for key in pairs(expected) do count = count - (key:find("^grad%.") and 1 or 0) end
    t.equal(count, 0)
  end)

  t.test("MergingOf_" .. case .. "_GivesTheWeightsOfPeft", function()
    local model, expected = load(case)
    model:eval()
    local before = torch.no_grad(model, expected.ids)

    t.equal(lora.merge(model), c.count)

    local state, names = model:state_dict(), 0
    for name, weight in pairs(state) do
      close(weight, expected["merged." .. name], c.dtype and 8e-3 or 1e-6, name)
      names = names + 1
    end
    for key in pairs(expected) do names = names - (key:find("^merged%.") and 1 or 0) end
    t.equal(names, 0)
    close(torch.no_grad(model, expected.ids), before, c.dtype and 0.1 or 5e-6, case)
  end)

  t.test("AFolderThatIsSavedAgainHoldsTheSameTensors_" .. case, function()
    local model, _, folder = load(case)
    local copy = run.dir .. "/saved_" .. case

    lora.save(model, copy)

    local theirs, ours = data.safetensors(folder .. "/adapter_model.safetensors"),
      data.safetensors(copy .. "/adapter_model.safetensors")
    for key, tensor in pairs(theirs) do t.equal(ours[key], tensor, key) end
    for key in pairs(ours) do t.truthy(theirs[key], key) end
    local again = tiny.base_of(case, c.dtype)
    lora.load(again, copy)
    for name, tensor in pairs(model:state_dict()) do t.equal(again:state_dict()[name], tensor, name) end
    t.equal({ lora.merge(again), lora.merge(model) }, { c.count, c.count })
    for name, tensor in pairs(model:state_dict()) do t.equal(again:state_dict()[name], tensor, name) end
  end)
end

-- make_fixtures.py draws these: patterns of ranks and alphas whose names overlap, and other options.
for _, kind in ipairs { "random", "random_experts" } do
  for number = 0, 15 do
    local case = ("%s_%02d"):format(kind, number)
    t.test("LogitsOf_" .. case .. "_AreThoseOfPeft", function()
      local folder = tiny.FIXTURES .. "/" .. case
      local expected = data.safetensors(folder .. "/expected.safetensors")
      local model = tiny.base_of(case):eval()
      lora.load(model, folder)
      close(torch.no_grad(model, expected.ids), expected.logits, 2e-6, case)

      -- A folder of ours says the same.
      lora.save(model, run.dir .. "/again_" .. case)
      local again = tiny.base_of(case):eval()
      lora.load(again, run.dir .. "/again_" .. case)
      t.equal(torch.no_grad(again, expected.ids), torch.no_grad(model, expected.ids))
      t.equal(lora.load(again, folder), lora.load(model, folder)) -- into adapters that are there
    end)
  end
end

t.test("TheConfigurationSaysWhatPeftNeeds", function()
  local model = load "patterns"
  lora.save(model, run.dir .. "/config")
  local config = core.json_decode(t.read_file(run.dir .. "/config/adapter_config.json"))

  t.equal({ config.peft_type, config.r, config.lora_alpha, config.use_dora, config.use_rslora },
    { "LORA", 4, 3, false, false })
  t.equal(config.target_modules, { "q_proj", "v_proj" })
  t.equal(config.rank_pattern, { ["layers.0.v_proj"] = 2, ["layers.1.v_proj"] = 2 })
  t.equal(config.alpha_pattern, { ["layers.1.v_proj"] = 7 })
  t.equal(config.modules_to_save, core.null)
end)
