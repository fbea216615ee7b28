-- lockstep.float8: against torchao's numbers, in training, and with other modules.

local checkpoint = require "lockstep.checkpoint"
local data = require "lockstep.data"
local float8 = require "lockstep.float8"
local lora = require "lockstep.lora"
local models = require "lockstep.models"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local tiny = require "tiny_fixture"
local torch = require "lockstep.torch"

torch.set_num_threads(1) -- small tensors

local RECIPES = { "tensorwise", "rowwise", "rowwise_with_gw_hp" }
local PROJECTIONS = 14 -- linear layers of the small model but its head

--- Returns the length of the difference, as a share of the length of `expected`.
local function error_of(actual, expected)
  t.equal(actual.dtype, expected.dtype)
  t.equal(tostring(actual.shape), tostring(expected.shape))
  return ((actual - expected):double():norm() / expected:double():norm()):item()
end

t.test("LayersComputeWhatThoseOfTorchaoCompute", function()
  local numbers = data.safetensors "tests/float8/fixtures/layers.safetensors"
  for dtype, tolerance in pairs { float32 = 5e-7, bfloat16 = 1e-3 } do
    for _, recipe in ipairs(RECIPES) do
      local function expected(name) return numbers[("%s.%s.%s"):format(dtype, recipe, name)] end
      local model = nn.Sequential { nn.Linear(32, 48) }
      model:to(torch[dtype])
      model:load_state_dict { ["0.weight"] = numbers[dtype .. ".weight"], ["0.bias"] = numbers[dtype .. ".bias"] }
      t.equal({ float8.apply(model, { recipe = recipe }) }, { 1, {} })
      local x = numbers[dtype .. ".x"]:clone():requires_grad_(true)

      local y = model(x)
      y:backward(numbers[dtype .. ".dy"])

      local actual = { y = y:detach(), dx = x.grad, dweight = model[1].weight.grad, dbias = model[1].bias.grad }
      for name, tensor in pairs(actual) do
        local message = ("%s %s %s"):format(dtype, recipe, name)
        t.near(error_of(tensor, expected(name)), 0, tolerance, message)
      end
    end
  end
end)

t.test("AModelLearnsAboutAsWellAsWithoutFloat8", function()
  for _, dtype in ipairs { torch.float32, torch.bfloat16 } do
    local first, last = tiny.train(tiny.model(nil, dtype), 30)
    t.truthy(last < 0.6 * first, ("without: %g, then %g"):format(first, last))
    for _, recipe in ipairs(RECIPES) do
      local model = tiny.model(nil, dtype)
      t.equal(float8.apply(model, { recipe = recipe }), PROJECTIONS)
      local begin, finish = tiny.train(model, 30)
      local message = ("%s: %g, then %g; without %g, then %g"):format(recipe, begin, finish, first, last)
      t.near(begin, first, 0.002 * first, message)
      t.near(finish, last, 0.02 * first, message)
      t.truthy(finish ~= last, message)
    end
  end
end)

t.test("ALayerThatIsUsedTwiceIsConvertedOnce", function()
  local layer = nn.Linear(16, 16)

  t.equal({ float8.apply(nn.Sequential { layer, layer }) }, { 1, {} })
end)

t.test("TheFirstGradientsAreNearThoseWithoutFloat8", function()
  local plain, limits = tiny.model(), { tensorwise = 0.2, rowwise = 0.15, rowwise_with_gw_hp = 0.15 }
  tiny.loss(plain, tiny.batch(1)):backward()
  for recipe, limit in pairs(limits) do
    local model = tiny.model()
    float8.apply(model, { recipe = recipe })
    tiny.loss(model, tiny.batch(1)):backward()
    local expected = {}
    for name, p in plain:named_parameters() do expected[name] = p.grad end
    for name, p in model:named_parameters() do
      local difference = error_of(p.grad, expected[name])
      t.truthy(difference > 0 and difference < limit, ("%s %s: %g"):format(recipe, name, difference))
    end
  end
end)

t.test("LayersThatStayAreReported", function()
  local model = tiny.model { intermediate_size = 40 }
  local count, left = float8.apply(model)
  t.equal(count, 8)
  t.equal(#left, 7)
  t.equal(left[1], { name = "model.layers.0.mlp.gate_proj",
    reason = "its weight is {40, 32}, and not both are multiples of 16" })
  t.equal(left[3], { name = "model.layers.0.mlp.down_proj",
    reason = "its weight is {32, 40}, and not both are multiples of 16" })
  t.equal(left[7], { name = "lm_head", reason = "it is the head" })
  t.equal(model.model.layers[1].mlp.up_proj.class_name, "Linear")
  t.equal(model.model.layers[1].self_attn.q_proj.class_name, "Float8Linear")
  t.truthy(tostring(model):find("(q_proj) Float8Linear(weight {32, 32})", 1, true), tostring(model))

  local Own = nn.Linear:subclass "Own"
  local others = nn.Sequential { nn.Linear(16, 16), Own(16, 16), nn.Linear(16, 16), nn.Linear(16, 16) }
  others[3].forward = function(_, x) return x end
  others[4]:to(torch.float64)
  count, left = float8.apply(others)
  t.equal(count, 1)
  t.equal(left, { { name = "1", reason = "its class is Own, not Linear" },
    { name = "2", reason = "it has a forward of its own" }, { name = "3", reason = "its weight is float64" } })
end)

t.test("RoutersOfExpertsStay", function()
  local model = tiny.model { architectures = { "Qwen3MoeForCausalLM" }, model_type = "qwen3_moe", num_experts = 16,
    num_experts_per_tok = 2, moe_intermediate_size = 16 }
  local count, left = float8.apply(model)
  t.equal(count, 8)
  t.equal(left[1], { name = "model.layers.0.mlp.gate", reason = "it is the router of experts" })
  tiny.loss(model, tiny.batch(1)):backward()
  t.truthy(model.model.layers[1].self_attn.q_proj.weight.grad:norm():item() > 0)
end)

t.test("AFilterChooses", function()
  local model, asked = tiny.model(), {}
  local count, left = float8.apply(model, { recipe = "rowwise", filter = function(name, layer)
    asked[#asked + 1] = name
    return name:find "mlp" ~= nil and layer.weight:size(1) == 32
  end })
  t.equal(count, 4)
  t.equal(#asked, PROJECTIONS + 1)
  t.equal(#left, PROJECTIONS + 1 - 4)
  t.equal(left[1], { name = "model.layers.0.self_attn.q_proj", reason = "the filter left it out" })
  -- A head that is called as a layer can be chosen.
  local net = nn.Sequential {}
  net.output = nn.Linear(16, 16)
  net:append(nn.Linear(16, 16))
  t.equal(select(2, float8.apply(net)), { { name = "output", reason = "it is the head" } })
  t.equal(float8.apply(nn.Sequential { nn.Linear(16, 16) }, { filter = function() return true end }), 1)
end)

t.test("BadArgumentsAreErrors", function()
  local model = tiny.model()
  t.raises('float8.apply: unknown option "recipes"; did you mean "recipe"', float8.apply, model, { recipes = "x" })
  t.raises('did you mean "filter"', float8.apply, model, { module_filter_fn = print })
  t.raises("sharding.fully_shard(net, { float8_gather = true }) gathers weights in float8", float8.apply, model,
    { enable_fsdp_float8_all_gather = true })
  t.raises('recipe must be one of rowwise, rowwise_with_gw_hp, tensorwise, not "blockwise"', float8.apply, model,
    { recipe = "blockwise" })
  t.raises("filter must be a function, not a string", float8.apply, model, { filter = "mlp" })
  t.raises('filter must return true or false, but returned nil for "model.layers.0.self_attn.q_proj"', float8.apply,
    model, { filter = function() end })
  t.raises("expected a module, or what sharding.fully_shard returned, not a number", float8.apply, 3)
  t.raises('filter chose "lm_head", the head, whose weight the loss reads', float8.apply, model,
    { filter = function() return true end })
  t.raises("none of the model's 0 linear layers can be converted", float8.apply, nn.Sequential {})
  t.raises([[none of the model's 1 linear layers can be converted; "0", for example: its weight is {8, 8}]],
    float8.apply, nn.Sequential { nn.Linear(8, 8) })
  for _, module in model:named_modules() do t.truthy(module.class_name ~= "Float8Linear") end
  float8.apply(model)
  t.raises('"model.layers.0.self_attn.q_proj" is a float8 layer already', float8.apply, model)
  t.raises("x must be float32, bfloat16 or float16, got Double", function()
    model.model.layers[1].self_attn.q_proj(torch.ones({ 2, 32 }, { dtype = torch.float64 }))
  end)
end)

t.test("TheStateIsThatOfThePlainModel", function()
  local plain, model = tiny.model(nil, torch.bfloat16), tiny.model(nil, torch.bfloat16)
  float8.apply(model)
  local names = {}
  for name, tensor in pairs(plain:state_dict()) do names[name] = tensor end
  for name, tensor in pairs(model:state_dict()) do
    t.equal(tensor, names[name], name)
    names[name] = nil
  end
  t.equal(next(names), nil)
  local folder = run.dir .. "/saved"
  models.save(model, folder)
  local loaded = models.load(folder)
  loaded:load_state_dict(model:state_dict())
  t.equal(float8.apply(loaded), PROJECTIONS)
  local batch = tiny.batch(1)
  t.equal(tiny.loss(loaded, batch):item(), tiny.loss(model, batch):item())
  t.equal(#models.generate(model, { { 1, 2, 3 } }, { max_new_tokens = 4 })[1], 4)
end)

t.test("AModelOfMetaTensorsHasShapes", function()
  local model = tiny.model(nil, nil, "meta")
  t.equal(float8.apply(model, { recipe = "rowwise" }), PROJECTIONS)
  local layer = model.model.layers[1].mlp.up_proj
  local x = torch.empty({ 3, 32 }, { device = "meta" }):requires_grad_(true)
  layer(x):sum():backward()
  t.equal(tostring(x.grad.shape), "{3, 32}")
  t.equal(tostring(layer.weight.grad.shape), "{64, 32}")
end)

t.test("RecomputedRegionsHaveTheSameBits", function()
  for _, recipe in ipairs(RECIPES) do
    for name, options in pairs {
      all = {}, offload = { offload = "host", min_bytes = 1 },
      selective = { policy = checkpoint.selective { save = { "aten::mm", "lockstep::float8_cast" } } },
    } do
      local layers = nn.Sequential { nn.Linear(32, 64), nn.Linear(64, 32) }
      float8.apply(layers, { recipe = recipe })
      local x = torch.randn({ 5, 32 }):requires_grad_(true)
      local inputs = { x, unpack(layers:parameters()) }
      local expected = torch.grad(torch.tanh(layers(x)):pow(2):sum(), inputs)
      local ckpt = checkpoint.new(options)
      local actual = torch.grad(torch.tanh(ckpt(layers, x)):pow(2):sum(), inputs)
      for i, gradient in ipairs(expected) do t.equal(actual[i], gradient, recipe .. name) end
      t.equal(ckpt:stats().recomputes, 1)
    end
  end
end)

t.test("AGraphRepeatsAStep", function()
  local layers = nn.Sequential { nn.Linear(32, 64), nn.Linear(64, 32) }
  float8.apply(layers)
  local function step(x)
    layers:zero_grad()
    local loss = layers(x):pow(2):sum()
    loss:backward()
    return loss:detach(), layers[1].weight.grad
  end
  local graph = lockstep.graph(step)
  for i = 1, 4 do
    local x = torch.randn { 6, 32 } * i
    local loss, gradient = step(x)
    gradient = gradient:clone()
    local repeated, repeated_gradient = graph(x)
    t.equal(repeated:item(), loss:item())
    t.equal(repeated_gradient, gradient)
  end
end)

--- Trains by three steps of two micro-batches each, of which one is in recomputed regions. An evaluation is between.
--- Returns the losses, in order, and the parameters.
local function losses_of_training(keep_casts, recipe, optimizer_of, dtype)
  local model = tiny.model(nil, dtype)
  float8.apply(model, { recipe = recipe, keep_casts = keep_casts })
  local optimizer = optimizer_of(model:parameters())
  local losses = {}
  local function note(loss) losses[#losses + 1] = loss:item() end
  for step = 1, 3 do
    for micro = 1, 2 do
      model.checkpoint = micro == 2 and {} or nil
      local loss = tiny.loss(model, tiny.batch(step + micro))
      loss:backward()
      note(loss)
      torch.no_grad(function() note(tiny.loss(model, tiny.batch(7))) end)
    end
    optimizer:step()
    optimizer:zero_grad()
    torch.no_grad(function() note(tiny.loss(model, tiny.batch(7))) end)
  end
  return losses, model:state_dict()
end

t.test("KeptCastsChangeNoBitOfATraining", function()
  local optimizers = {
    AdamW = function(p) return optim.AdamW(p, { lr = 1e-2 }) end,
    AdamW8bit = function(p) return optim.AdamW8bit(p, { lr = 1e-2 }) end,
    SGD = function(p) return optim.SGD(p, { lr = 0.1, momentum = 0.9 }) end,
    Lion = function(p) return optim.Lion(p, { lr = 1e-3 }) end,
    Adafactor = function(p) return optim.Adafactor(p, { lr = 1e-2 }) end,
  }
  for name, optimizer_of in pairs(optimizers) do
    for _, dtype in ipairs { torch.float32, torch.bfloat16 } do
      local losses, state = losses_of_training(true, "rowwise", optimizer_of, dtype)
      local expected, expected_state = losses_of_training(false, "rowwise", optimizer_of, dtype)
      t.equal(losses, expected, name)
      t.truthy(losses[2] ~= losses[5], name .. " changes weights")
      for key, tensor in pairs(expected_state) do t.equal(state[key], tensor, name .. key) end
    end
  end
  for _, recipe in ipairs(RECIPES) do
    local kept = losses_of_training(true, recipe, optimizers.AdamW, torch.float32)
    t.equal(kept, (losses_of_training(false, recipe, optimizers.AdamW, torch.float32)), recipe)
  end
end)

-- Autograd sees no write to one of these tensors as a write to the weight.
t.test("KeptCastsSeeWritesToMemoryWithAnotherVersion", function()
  local source
  local writes = {
    data = function(w) w:data():mul_(2) end,
    ["torch.data"] = function(w) torch.data(w):view { -1 }:mul_(2) end,
    set_data = function(w)
      source = torch.randn { 64, 32 }
      w:set_data(source)
    end,
    ["a source of set_data"] = function() source:mul_(2) end,
    set_ = function(w) torch.empty({ 0 }):set_(w):mul_(2) end,
    unsafe_split = function(w) torch.unsafe_split(w, 2)[1]:mul_(2) end,
    unsafe_split_with_sizes = function(w) torch.unsafe_split_with_sizes(w, { 16, 48 })[1]:mul_(2) end,
    unsafe_chunk = function(w) torch.unsafe_chunk(w, 2)[1]:mul_(2) end,
    _unsafe_view = function(w) torch._unsafe_view(w, { -1 }):mul_(2) end,
  }
  local order = {
    "data", "torch.data", "set_data", "a source of set_data", "set_", "unsafe_split", "unsafe_split_with_sizes",
    "unsafe_chunk", "_unsafe_view",
  }
  local layer = nn.Linear(32, 64)
  local layers = nn.Sequential { layer }
  float8.apply(layers, { recipe = "rowwise" })
  local function results()
    local x = torch.ones({ 4, 32 }):requires_grad_(true)
    local y = layers(x)
    y:sum():backward()
    return { y:detach(), x.grad }
  end
  for _, name in ipairs(order) do
    for call = 1, 2 do
      local before = results()
      torch.no_grad(function() writes[name](layer.weight) end)
      local after = results()
      t.truthy(not torch.equal(after[1], before[1]), name .. call .. " changes y")
      float8.forget()
      t.equal(after, results(), name .. call)
      t.truthy(float8.kept_bytes() > 0)
    end
  end
  local alias = layer.weight:data()
  local before = results()
  torch.no_grad(function() alias:mul_(2) end)
  t.truthy(not torch.equal(results()[1], before[1]), "an alias from before the call")
end)

-- On one rank the shards are the gathered weights.
t.test("KeptCastsSeeWritesToShardsWithinFull", function()
  local net = tiny.model()
  float8.apply(net)
  local model = sharding.fully_shard(net)
  local function loss() return tiny.loss(net, tiny.batch(7)):item() end
  model:full(function()
    torch.no_grad(function()
      local before = loss()
      for _, shard in ipairs(model:parameters()) do shard:mul_(2) end
      local after = loss()
      t.truthy(after ~= before)
      float8.forget()
      t.equal(after, loss())
    end)
  end)
end)

t.test("KeptCastsAreCountedAndFreed", function()
  float8.forget()
  t.equal(float8.kept_bytes(), 0)
  local layer = nn.Linear(32, 64)
  local layers = nn.Sequential { layer }
  float8.apply(layers)
  local x = torch.randn({ 5, 32 }):requires_grad_(true)
  torch.no_grad(function() layers(x) end)
  t.equal(float8.kept_bytes(), 32 * 64 + 4)
  layers(x):sum():backward()
  t.equal(float8.kept_bytes(), 2 * (32 * 64 + 4))
  torch.no_grad(function() layer.weight:mul_(2) end)
  layers(x)
  t.equal(float8.kept_bytes(), 32 * 64 + 4)
  float8.forget()
  t.equal(float8.kept_bytes(), 0)
  local other = nn.Sequential { nn.Linear(32, 64) }
  float8.apply(other, { keep_casts = false })
  other(x)
  t.equal(float8.kept_bytes(), 0)
  t.raises("keep_casts must be a boolean, not 1", float8.apply, tiny.model(), { keep_casts = 1 })
end)

-- A recorded step updates the weight without a version that eager code would see. Casts from before are not in it.
t.test("AGraphMakesCastsOfItsOwn", function()
  local function losses_of(keep_casts, graph_of)
    torch.manual_seed(3)
    local layers = nn.Sequential { nn.Linear(32, 64), nn.Linear(64, 32) }
    float8.apply(layers, { keep_casts = keep_casts })
    local optimizer = optim.SGD(layers:parameters(), { lr = 1e-2 })
    local run_step = graph_of(function(x)
      optimizer:zero_grad()
      for _ = 1, 2 do layers(x):pow(2):sum():backward() end
      optimizer:step()
      return layers(x):sum():detach()
    end)
    local results = {}
    for _ = 1, 5 do
      local x = torch.randn { 6, 32 }
      results[#results + 1] = torch.no_grad(function() return layers(x):sum():item() end)
      results[#results + 1] = run_step(x):item()
    end
    return results
  end
  local expected = losses_of(false, function(step) return step end)
  t.equal(losses_of(true, function(step) return step end), expected)
  t.equal(losses_of(true, lockstep.graph), expected)
end)

t.test("AdaptersAreAddedToFloat8Layers", function()
  local model, alone = tiny.model(), tiny.model()
  local float8_layer = model.model.layers[1].self_attn.q_proj
  float8.apply(model, { recipe = "rowwise" })
  t.equal(lora.apply(model, { r = 16, targets = { "q_proj", "v_proj" } }), 4)
  local first, last = tiny.train(model, 20)
  t.truthy(last < first, ("%g, then %g"):format(first, last))
  t.equal(float8_layer.weight.grad, nil)
  local folder = run.dir .. "/adapter"
  lora.save(model, folder)
  local batch = tiny.batch(1)
  local trained = tiny.loss(model, batch):item()

  float8.apply(alone, { recipe = "rowwise" })
  t.equal(lora.load(alone, folder), 4)
  t.equal(tiny.loss(alone, batch):item(), trained)
  lora.merge(alone)
  t.equal(alone.model.layers[1].self_attn.q_proj.class_name, "Float8Linear")
  t.near(tiny.loss(alone, batch):item(), trained, 0.05 * trained)

  local adapted = tiny.model()
  lora.apply(adapted)
  t.raises("the model has adapters; call this before lora.apply", float8.apply, adapted)
end)
