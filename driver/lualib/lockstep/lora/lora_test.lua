-- lora.apply, disabled, merge, and what each function refuses. Numbers against PEFT are in lora_peft_test.lua.

local checkpoint = require "lockstep.checkpoint"
local core = require "lockstep.core"
local data = require "lockstep.data"
local lora = require "lockstep.lora"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local t = require "lockstep.testing"
local tiny = require "tiny_fixture"
local torch = require "lockstep.torch"

local ids = torch.tensor({ 1, 4, 9, 0, 4 }, { dtype = torch.int64 })

--- Moves every trained parameter, so that no adapter is 0.
local function perturb(model)
  torch.no_grad(function()
    for _, p in ipairs(model:parameters()) do
      if p.requires_grad then p:add_(torch.randn_like(p) * 0.3) end
    end
  end)
end

local function trained_names(model)
  local names = {}
  for name, p in model:named_parameters() do
    if p.requires_grad then names[#names + 1] = name end
  end
  return names
end

-- apply -------------------------------------------------------------------------------------------------

t.test("ApplyFreezesTheRestAndReturnsHowManyModules", function()
  local model = tiny.base()

  t.equal(lora.apply(model, { r = 2, targets = { "o_proj" } }), 2)

  t.equal(trained_names(model), { "layers.0.o_proj.lora_A.weight", "layers.0.o_proj.lora_B.weight",
    "layers.1.o_proj.lora_A.weight", "layers.1.o_proj.lora_B.weight" })
  t.equal(model.layers[1].o_proj.lora_A.weight.shape, { 2, 10 })
  t.equal(model.layers[1].o_proj.lora_B.weight.shape, { 6, 2 })
end)

t.test("TargetsAreLastNamesOrMoreOfTheName", function()
  local function count(targets) return lora.apply(tiny.base(), { targets = targets }) end

  t.equal(lora.apply(tiny.base()), 4) -- q_proj and v_proj
  t.equal(count { "layers.1.q_proj" }, 1)
  t.equal(count { "1.q_proj", "o_proj" }, 3)
  t.equal(count "all-linear", 6) -- all but the head
  t.equal(count "q_proj,o_proj", 4)
  t.equal(count "o_proj", 2)
end)

t.test("AnAdapterChangesNothingAtFirst", function()
  local model = tiny.base()
  local before = model(ids):detach()
  for _, o in ipairs { {}, { rslora = true }, { dora = true, r = 3 } } do
    model = tiny.base()
    lora.apply(model, o)
    t.near(model(ids):detach(), before, 1e-5)
  end
end)

t.test("AdaptersOfLowPrecisionLayersAreFloat32", function()
  for dtype, expected in pairs { [torch.bfloat16] = torch.float32, [torch.float16] = torch.float32,
    [torch.float32] = torch.float32, [torch.float64] = torch.float64 } do
    local model = tiny.base(dtype)
    lora.apply(model, { dora = true })
    local layer = model.layers[1].q_proj

    t.equal({ layer.lora_A.weight.dtype, layer.lora_B.weight.dtype, layer.lora_magnitude_vector.dtype },
      { expected, expected, expected })
    t.equal(model(ids).dtype, dtype)
  end
end)

t.test("ModulesToSaveAreTrainedWholeAndGetNoAdapter", function()
  local model = tiny.base()

  t.equal(lora.apply(model, { targets = "all-linear", modules_to_save = { "lm_head", "layers.0" } }), 3)

  t.equal(trained_names(model)[1], "layers.0.q_proj.weight")
  t.equal(model.layers[1].q_proj.lora_A, nil)
  t.truthy(model.lm_head.weight.requires_grad)
  t.truthy(not model.embed_tokens.weight.requires_grad)
end)

t.test("ASubclassOfLinearKeepsItsOwnForwardPass", function()
  local Double = nn.Linear:subclass("Double")
  function Double:forward(x) return nn.Linear.forward(self, x) * 2 end
  local net = nn.Sequential { Double(3, 4), nn.Linear(4, 2) }
  local x = torch.randn({ 2, 3 })
  local before = net(x):detach()

  t.equal(lora.apply(net, { targets = { "0" } }), 1)
  t.equal(net(x):detach(), before)
  t.equal(net[1].class_name, "LoraDouble")
  lora.merge(net)
  t.equal(net[1].class_name, "Double")
end)

t.test("TrainingMovesOnlyAdaptersAndLearns", function()
  torch.manual_seed(3)
  local model, target = tiny.base(), torch.randn({ 5, 11 })
  local before = model:state_dict()
  for name, value in pairs(before) do before[name] = value:clone() end
  lora.apply(model, { r = 4, alpha = 8, dora = true, targets = "all-linear" })
  local optimizer = optim.AdamW(model:parameters(), { lr = 2e-2, weight_decay = 0 })
  local first, last
  for _ = 1, 60 do
    local loss = torch.mse_loss(model(ids), target)
    loss:backward()
    optimizer:step()
    optimizer:zero_grad()
    first, last = first or loss:item(), loss:item()
  end

  t.truthy(last < 0.7 * first, ("%g, then %g"):format(first, last))
  for name, value in pairs(before) do t.equal(model:state_dict()[name], value, name) end
end)

-- PEFT divides the magnitude of such a row, 0, by its length, 0.
t.test("RowsOfZerosStayFiniteWithDoraAndLearn", function()
  for _, dropout in ipairs { 0, 0.3 } do
    torch.manual_seed(3)
    local net = nn.Sequential { nn.Linear(6, 4, { bias = false }) }
    torch.no_grad(function() net[1].weight[1]:zero_() end)
    local x, target = torch.randn { 16, 6 }, torch.randn { 16, 4 }
    local before = net(x):detach()
    lora.apply(net, { r = 2, dora = true, dropout = dropout, targets = "all-linear" })
    t.near(net:eval()(x):detach(), before, 1e-6)
    lora.merge(net)
    t.near(net(x):detach(), before, 1e-6)

    lora.apply(net:train(), { r = 2, dora = true, dropout = dropout, targets = "all-linear" })
    local optimizer = optim.AdamW(net:parameters(), { lr = 1e-2, weight_decay = 0 })
    for _ = 1, 20 do
      torch.mse_loss(net(x), target):backward()
      for name, p in net:named_parameters() do
        if p.requires_grad then t.truthy(p.grad:isfinite():all():item(), name) end
      end
      optimizer:step()
      optimizer:zero_grad()
    end
    local after = net:eval()(x):detach()
    t.truthy(after:select(1, 1):abs():max():item() > 1e-3, tostring(after:select(1, 1)))
    lora.merge(net)
    t.near(net(x):detach(), after, 1e-5)
  end
end)

t.test("TheOperatorOfALayerAndTheFormulaAgreeInValuesGradientsAndFlops", function()
  local inputs, out, rows, r = 24, 16, 32, 4
  for dtype, tolerance in pairs { [torch.float64] = 1e-13, [torch.float32] = 2e-6, [torch.bfloat16] = 1e-2 } do
    local net = nn.Sequential({ nn.Linear(inputs, out) }):to(dtype)
    lora.apply(net, { r = r, targets = "all-linear" })
    perturb(net)
    local x, dy = torch.randn { rows, inputs }:to(dtype), torch.randn { rows, out }:to(dtype)
    local function results(is_fused)
      local before = nn.use_fused(is_fused)
      local input, y = x:clone():requires_grad_(true), nil
      net:zero_grad()
      local flops = lockstep.flops(function()
        y = net(input)
        y:backward(dy)
      end).total
      nn.use_fused(before)
      return { y:detach(), input.grad, net[1].lora_A.weight.grad, net[1].lora_B.weight.grad }, flops
    end

    local fused, flops = results(true)
    local plain, plain_flops = results(false)

    t.equal(net[1].weight.grad, nil)
    for i = 1, 4 do
      t.equal(fused[i].dtype, plain[i].dtype)
      local scale = plain[i]:abs():max():item()
      t.truthy((fused[i] - plain[i]):abs():max():item() <= tolerance * scale, ("%s %d"):format(tostring(dtype), i))
    end
    -- Forward and the gradient of x, and the adapter's six products.
    t.equal(flops, 2 * rows * (2 * inputs * out + 3 * r * (inputs + out)))
    t.equal(plain_flops, flops)
  end
end)

t.test("TheOperatorOfALayerWithDoraAndDropoutAndPeftsFormulaAgree", function()
  local inputs, out, rows, dropout = 24, 16, 32, 0.3
  for dtype, tolerance in pairs { [torch.float64] = 1e-13, [torch.float32] = 2e-6, [torch.bfloat16] = 1e-2 } do
    local net = nn.Sequential({ nn.Linear(inputs, out) }):to(dtype)
    lora.apply(net, { r = 4, alpha = 8, dora = true, dropout = dropout, targets = "all-linear" })
    perturb(net)
    local layer, x, dy = net[1], torch.randn { rows, inputs }:to(dtype), torch.randn { rows, out }:to(dtype)
    local function results(compute)
      torch.manual_seed(5)
      local input = x:clone():requires_grad_(true)
      net:zero_grad()
      local y = compute(input)
      y:backward(dy)
      return { y:detach(), input.grad, layer.lora_A.weight.grad, layer.lora_B.weight.grad,
        layer.lora_magnitude_vector.grad }
    end
    --- W x + bias + (m - 1) W x' + m 2 B A x', of the kept numbers x', with m = magnitudes / lengths of rows.
    local expected = results(function(input)
      local kept, a, b = torch.dropout(input, dropout, true), layer.lora_A.weight, layer.lora_B.weight
      kept = kept:to(a.dtype)
      local weight = layer.weight:to(a.dtype)
      local norms = torch.linalg_vector_norm((weight + torch.matmul(b, a) * 2):detach(), 2, { 1 })
      local m = layer.lora_magnitude_vector / norms
      local update, base = torch.linear(torch.linear(kept, a), b) * 2, torch.linear(kept, weight)
      return (torch.linear(input, layer.weight, layer.bias) + (m - 1) * base + m * update):to(dtype)
    end)

    for _, is_fused in ipairs { true, false } do
      local before = nn.use_fused(is_fused)
      local found = results(net)
      nn.use_fused(before)
      for i = 1, 5 do
        t.equal(found[i].dtype, expected[i].dtype)
        t.truthy((found[i] - expected[i]):abs():max():item() <= tolerance * expected[i]:abs():max():item(),
          ("%s %d"):format(tostring(dtype), i))
      end
    end
  end
end)

t.test("CheckpointedLayersGiveTheSameGradientsWithDropout", function()
  local function gradients(ckpt)
    torch.manual_seed(4)
    local model = tiny.base()
    lora.apply(model, { dropout = 0.3, dora = true })
    perturb(model)
    local x = model.embed_tokens(ids)
    for _, layer in ipairs(model.layers) do x = ckpt(layer, x) end
    tiny.loss(model.lm_head(x)):backward()
    local found = {}
    for name, p in model:named_parameters() do found[name] = p.grad end
    return found
  end

  t.equal(gradients(checkpoint.new()), gradients(function(layer, x) return layer(x) end))
end)

t.test("ExpertsGetAdaptersThatCheckpointAndDisabledKnow", function()
  local names = { "experts.gate_up_proj", "experts.down_proj" }
  local function train(ckpt)
    torch.manual_seed(4)
    local model = tiny.base_of("experts")
    local before = model(ids):detach()
    t.equal(lora.apply(model, { r = 2, targets = {}, parameters = names }), 2)
    t.equal(model(ids):detach(), before)
    perturb(model)
    t.equal(lora.disabled(model, model, ids), before)
    t.truthy((model(ids) - before):abs():max():item() > 0.1)
    tiny.loss(ckpt(model, ids)):backward()
    return model
  end
  local plain = train(function(model, x) return model(x) end)
  local recomputed = train(checkpoint.new())

  t.equal(trained_names(plain), { "experts.lora_gate_up_proj.lora_A.weight", "experts.lora_gate_up_proj.lora_B.weight",
    "experts.lora_down_proj.lora_A.weight", "experts.lora_down_proj.lora_B.weight" })
  local gradients = {}
  for name, p in recomputed:named_parameters() do gradients[name] = p.grad end
  for name, p in plain:named_parameters() do t.equal(gradients[name], p.grad, name) end

  local logits = plain(ids):detach()
  t.equal(lora.merge(plain), 2)
  t.near(plain(ids):detach(), logits, 1e-5)
  t.equal(plain.experts.class_name, "Experts")
end)

t.test("AllLinearLeavesOutRouters", function()
  local net = nn.Sequential { tiny.base_of("experts") }
  net[1].gate = nn.Linear(6, 3)

  t.equal(lora.apply(net, { targets = "all-linear" }), 1)
  t.equal(net[1].gate.lora_A, nil)
end)

-- disabled ----------------------------------------------------------------------------------------------

t.test("DisabledIsTheModelBeforeTrainingAndComesBack", function()
  local base = tiny.base()(ids):detach()
  local model = tiny.base()
  lora.apply(model, { dora = true, modules_to_save = { "lm_head", "embed_tokens" } })
  perturb(model)
  local now = model(ids):detach()

  local reference, twice = lora.disabled(model, function(x)
    local inner = lora.disabled(model, model, x)
    return model(x), inner
  end, ids)

  t.equal(reference, base)
  t.equal(twice, base)
  t.truthy(not reference.requires_grad)
  t.equal(model(ids):detach(), now)
  t.raises("stop", lora.disabled, model, function() error("stop") end)
  t.equal(model(ids):detach(), now)
  t.truthy((now - base):abs():max():item() > 0.1)
end)

t.test("DisabledFollowsTheModelToAnotherDtype", function()
  local model = tiny.base()
  lora.apply(model, { modules_to_save = { "lm_head" } })
  perturb(model)
  model:to(torch.float64)

  t.near(lora.disabled(model, model, ids), tiny.base(torch.float64)(ids):detach(), 1e-12)
end)

-- merge -------------------------------------------------------------------------------------------------

t.test("AMergedModelIsPlainAgainAndCanBeAdaptedAgain", function()
  local model = tiny.base()
  lora.apply(model, { modules_to_save = { "lm_head" } })
  perturb(model)

  t.equal(lora.merge(model), 4)

  t.equal(#trained_names(model), 1) -- lm_head stays as it was
  for name in model:named_parameters() do t.truthy(not name:find("lora"), name) end
  t.equal(model.layers[1].q_proj.class_name, "Linear")
  t.equal(lora.apply(model), 4)
end)

t.test("MergingAWeightThatAnEmbeddingSharesIsRefused", function()
  local net = nn.Sequential { nn.Embedding(5, 4), nn.Linear(4, 5, { bias = false }) }
  net[2].weight = net[1].weight
  lora.apply(net, { targets = { "1" } })

  t.raises('lora.merge: "1" shares its weight with "0" (weight), which merging would change, too', lora.merge, net)
end)

-- Errors ------------------------------------------------------------------------------------------------

t.test("ApplyRefusesWhatItCannotDo", function()
  local adapted, tied = tiny.base(), tiny.base()
  lora.apply(adapted)
  tied.lm_head.weight = tied.embed_tokens.weight
  for _, case in ipairs {
    { tiny.base(), { targets = { "q_porj" } }, 'lora.apply: targets: "q_porj" is the name of no linear layer of the '
      .. 'model, did you mean "q_proj"?; there are: lm_head, o_proj, q_proj, v_proj' },
    { tiny.base(), { targets = { "q_proj", "gate" } }, '"gate" is the name of no linear layer of the model; there' },
    { tiny.base(), { targets = { "embed_tokens" } }, '"embed_tokens" is of the class Embedding, and only linear layers '
      .. "get an adapter; list it in modules_to_save" },
    { tiny.base(), { targets = { "lm_head" } }, 'targets: "lm_head" is the head, whose weight the loss' },
    { tiny.base(), { targets = "all_linear" }, '"all_linear" is the name of no linear layer of the model' },
    { tiny.base(), { targets = "" }, 'or "all-linear", not an empty array' },
    { tiny.base(), { targets = {} }, "targets must be names of linear layers, as in" },
    { tiny.base(), { targets = { 3 } }, "a name must be a string, not 3" },
    { tiny.base(), { modules_to_save = { "head" } }, 'modules_to_save: "head" is the name of no module of the model' },
    { tiny.base(), { targets = { "q_proj", "v_proj" }, modules_to_save = { "v_proj" } }, 'lora.apply: "v_proj" is in '
      .. "targets and in modules_to_save; a module has an adapter or is trained as a whole" },
    { tied, { modules_to_save = { "lm_head" } }, '"lm_head" shares its weight with "embed_tokens", which others would '
      .. "load without what was learned; list both" },
    { tiny.base(), { r = 0 }, "lora.apply: r must be a whole number of at least 1, not 0" },
    { tiny.base(), { r = 1.5 }, "r must be a whole number of at least 1, not 1.5" },
    { tiny.base(), { alpha = 0 }, "alpha must be a number above 0, not 0" },
    { tiny.base(), { dropout = 1 }, "dropout must be a number from 0 to below 1, not 1" },
    { tiny.base(), { rank = 8 }, 'lora.apply: unknown option "rank"' },
    { tiny.base(), { dora = 1 }, "lora.apply: dora must be a boolean, not 1" },
    { nn.Sequential { nn.ReLU() }, { targets = "all-linear" }, "the model has no linear layer below its head" },
    { tiny.base_of("experts"), { targets = {}, parameters = { "up_proj" } },
      'parameters: "up_proj" is the name of no parameter '
      .. "[experts, out, in] of the model; there are: experts.down_proj, experts.gate_up_proj" },
    { tiny.base(), { parameters = { "q_proj.weight" } }, "[experts, out, in] of the model; there are: none" },
    { tiny.base_of("experts"), { parameters = { "down_proj" }, dropout = 0.1 }, "have no dropout: it must be 0, not" },
    { tiny.base_of("experts"), { parameters = { "down_proj" }, dora = true }, "dora must be false, not true" },
    { adapted, {}, "lora.apply: the model has adapters already; call lora.merge first" },
    { torch.ones({ 2 }), {}, "lora.apply: expected a module, not a userdata" },
    { {}, {}, "lora.apply: expected a module, not a table" },
  } do
    t.raises(case[3], lora.apply, case[1], case[2])
  end
end)

t.test("ARefusedApplyLeavesTheModelAsItWas", function()
  local model = tiny.base()
  pcall(lora.apply, model, { targets = { "q_proj", "none" } })

  t.equal(#trained_names(model), 12)
  t.equal(model.layers[1].q_proj.lora_A, nil)
end)

t.test("TiedModulesAreSavedUnderBothNames", function()
  local model = tiny.base()
  model.lm_head.weight = model.embed_tokens.weight
  lora.apply(model, { modules_to_save = { "lm_head", "embed_tokens" } })
  perturb(model)
  lora.save(model, run.dir .. "/tied")

  local saved = data.safetensors(run.dir .. "/tied/adapter_model.safetensors")
  t.equal(saved["base_model.model.lm_head.weight"], model.lm_head.weight:detach())
  t.equal(saved["base_model.model.embed_tokens.weight"], model.lm_head.weight:detach())
end)

t.test("ATiedHeadWithoutAModuleIsSavedForPeftAndLoaded", function()
  local Tied = tiny.Tiny:subclass("Tied")
  function Tied:init()
    tiny.Tiny.init(self)
    self.lm_head = nil
    self.config = { tie_word_embeddings = true }
  end
  function Tied:forward(x)
    x = self.embed_tokens(x)
    for _, layer in ipairs(self.layers) do x = layer(x) end
    return torch.linear(x, self.embed_tokens.weight)
  end
  local function make()
    torch.manual_seed(8)
    return Tied()
  end
  local model, folder = make(), run.dir .. "/tied_head"
  local before = model(ids):detach()
  for _, names in ipairs { { "lm_head" }, { "embed_tokens" } } do
    t.raises('shares its weight with "', lora.apply, make(), { modules_to_save = names })
  end
  t.equal(lora.apply(model, { modules_to_save = { "lm_head", "embed_tokens" } }), 4)
  perturb(model)
  lora.save(model, folder)

  local weights = data.safetensors(folder .. "/adapter_model.safetensors")
  t.equal(weights["base_model.model.lm_head.weight"], model.embed_tokens.weight:detach())
  local loaded = make()
  t.equal(lora.load(loaded, folder), 4)
  t.equal(loaded(ids):detach(), model(ids):detach())
  t.equal(lora.disabled(loaded, loaded, ids), before)
  t.equal(loaded(ids):detach(), model(ids):detach())

  weights["base_model.model.lm_head.weight"] = torch.zeros({ 11, 6 })
  data.save_safetensors(folder .. "/adapter_model.safetensors", weights)
  t.raises("differ, and the model ties them: they are one weight", lora.load, make(), folder)
end)

t.test("OtherFunctionsNeedAModelWithAdapters", function()
  for name, call in pairs {
    save = function(model) lora.save(model, run.dir .. "/none") end,
    merge = lora.merge,
    disabled = function(model) lora.disabled(model, print) end,
  } do
    t.raises("lora." .. name .. ": the model has no adapters; call lora.apply before", call, tiny.base())
    t.raises("lora." .. name .. ": expected a module, not a nil", call)
  end
  local model = tiny.base()
  lora.apply(model)
  t.raises("lora.save: the folder must be a string, not a nil", lora.save, model)
  t.raises("lora.disabled: fn must be a function or a module, not a number", lora.disabled, model, 3)
  t.raises("lora.save: ", lora.save, model, "/proc/none")
end)

-- Folders -----------------------------------------------------------------------------------------------

--- A folder that is as PEFT's, but for a change of its configuration or tensors.
local function changed(name, change)
  local from, to = tiny.FIXTURES .. "/plain/", run.dir .. "/" .. name
  local config = core.json_decode(t.read_file(from .. "adapter_config.json"))
  local tensors = data.safetensors(from .. "adapter_model.safetensors")
  change(config, tensors)
  core.make_folder(to)
  core.write_file(to .. "/adapter_config.json", { core.json_encode(config) })
  data.save_safetensors(to .. "/adapter_model.safetensors", tensors)
  return to
end

local FIRST = "base_model.model.layers.0.q_proj.lora_A.weight"

t.test("AFolderThatWouldComputeSomethingElseIsRefused", function()
  for i, case in ipairs {
    { function(c) c.peft_type = "LOHA" end, 'peft_type must be "LORA", not "LOHA"' },
    { function(c) c.bias = "all" end, 'bias = "all" trains biases, which is not supported; expected "none"' },
    { function(c) c.lora_bias = true end, "lora_bias = true is not supported" },
    { function(c) c.fan_in_fan_out = true end, "fan_in_fan_out = true is not supported" },
    { function(c) c.target_parameters = { "experts.weight" } end, '"experts.weight" is the name of no parameter' },
    { function(c) c.some_new_key = 3 end, "some_new_key = 3 is not supported, and would change what the model" },
    { function(c) c.init_lora_weights = "pissa" end, 'init_lora_weights = "pissa" changes the base weights, too' },
    { function(c) c.r = core.null end, "r must be a number, not null" },
    { function(c) c.lora_dropout = 2 end, "lora_dropout must be at least 0 and below 1, not 2" },
    { function(c) c.lora_dropout = -0.5 end, "lora_dropout must be at least 0 and below 1, not -0.5" },
    { function(_, x) x[FIRST] = torch.zeros({ 3, 6 }, { dtype = torch.int64 }) end,
      'adapter_model.safetensors: "' .. FIRST .. '" has the dtype torch.int64' },
    { function(_, x) x[FIRST] = torch.full({ 3, 6 }, 0 / 0) end,
      'adapter_model.safetensors: "' .. FIRST .. '" holds NaN or infinity' },
    { function(c) c.r = 5 end, '"layers.0.q_proj.lora_A.weight" must have shape {5, 6}, as in the model, not {3, 6}' },
    { function(c) c.rank_pattern = { ["layers.(0|1)"] = 2 } end,
      'the name "layers.(0|1)" in rank_pattern is a regular expression; only "^" in front' },
    { function(c) c.use_dora = true end, "has no lora_magnitude_vector" },
    { function(_, x) x[FIRST] = nil end, '"layers.0.q_proj" has no lora_A' },
    { function(_, x) x[FIRST] = torch.zeros({ 3, 7 }) end, '"layers.0.q_proj.lora_A.weight" must have shape {3, 6}' },
    { function(_, x) x["lora_A.weight"] = torch.zeros({ 1 }) end, 'the key "lora_A.weight" does not begin with' },
    { function(_, x) x["base_model.model.embed_tokens.lora_embedding_A"] = torch.zeros({ 1 }) end, "is not supported" },
    { function(_, x) x["base_model.model.lm_head.weight"] = torch.zeros({ 1 }) end,
      'holds "lm_head.weight", which is in no module of modules_to_save' },
    { function(c) c.modules_to_save = { "lm_head" } end, 'lacks "lm_head.weight" of modules_to_save' },
    { function(c) c.target_modules, c.modules_to_save = { "q_proj", "o_proj" }, { "o_proj" } end,
      '"o_proj" is in target_modules and in modules_to_save; a module has' },
    { function(_, x)
      for key in pairs(x) do
        if key:find("layers.0", 1, true) then x[key] = nil end
      end
    end, 'has no adapter for "layers.0.' },
    { function(_, x)
      for _, part in ipairs { "A", "B" } do
        x["base_model.model.layers.7.q_proj.lora_" .. part .. ".weight"] = torch.zeros({ 3, 3 })
      end
    end, '"layers.7.q_proj" is the name of no linear layer of the model' },
    { function(_, x)
      for key in pairs(x) do x[key] = nil end
      x["base_model.model.lm_head.weight"] = torch.zeros({ 1 })
    end, "holds no adapter" },
  } do
    local folder = changed("changed" .. i, case[1])
    local model = tiny.base()
    t.raises(case[2], lora.load, model, folder)
    t.equal(#trained_names(model), 12, "case " .. i)
  end
  t.equal(lora.load(tiny.base(), changed("same", function() end)), 4)
end)

t.test("AFolderMustFitTheAdaptersThatAreThere", function()
  local folder = tiny.FIXTURES .. "/plain"
  for _, case in ipairs {
    { { r = 3, alpha = 7 }, '"layers.0.q_proj" has alpha = 7 in the model, and 6 in' },
    { { r = 2, alpha = 6 }, '"layers.0.q_proj" has r = 2 in the model, and 3 in' },
    { { r = 3, alpha = 6, targets = { "o_proj" } }, 'has no adapter for "layers.0.o_proj", which the model has' },
    { { r = 3, alpha = 6, targets = { "q_proj" } }, "has 4 adapters, and the model has 2" },
    { { r = 3, alpha = 6, modules_to_save = { "lm_head" } }, 'lacks "lm_head.weight" of modules_to_save' },
  } do
    local model = tiny.base()
    lora.apply(model, case[1])
    t.raises(case[2], lora.load, model, folder)
  end
  local model = tiny.base()
  lora.apply(model, { r = 3, alpha = 6 })
  t.equal(lora.load(model, folder), 4)
  t.raises("lora.load: there is no folder ", lora.load, tiny.base(), run.dir .. "/nowhere")
  core.make_folder(run.dir .. "/half")
  t.raises("adapter_config.json is not there; expected a folder with", lora.load, tiny.base(), run.dir .. "/half")
  core.write_file(run.dir .. "/half/adapter_config.json", { '{"peft_type": "LORA", "r": 1, "lora_alpha": 1}' })
  t.raises("adapter_model.safetensors is not there", lora.load, tiny.base(), run.dir .. "/half")
  core.write_file(run.dir .. "/half/adapter_model.bin", { "x" })
  t.raises("adapter_model.bin is a pickle", lora.load, tiny.base(), run.dir .. "/half")
  t.raises("lora.load: expected a folder, or OWNER/MODEL of the Hub; got a number", lora.load, tiny.base(), 3)
end)
