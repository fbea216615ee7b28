-- Layers that read one input: by one node of autograd where they are plain, by their own calls elsewhere.

local decoder = require "lockstep.models.decoder"
local lora = require "lockstep.lora"
local nn = require "lockstep.nn"
local one_input = require "lockstep.nn.one_input"
local qwen3 = require "lockstep.models.qwen3"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local Three = nn.Module:subclass("Three")
function Three:init(bias)
  for i, name in ipairs { "q_proj", "k_proj", "v_proj" } do self[name] = nn.Linear(6, 2 + i, { bias = bias }) end
end
function Three:forward(x) return one_input.linears(x, self.q_proj, self.k_proj, self.v_proj) end

--- Returns three outputs, and the gradients of x and of the parameters.
local function results_of(call, net, x)
  local input = x:detach():requires_grad_(true)
  net:zero_grad()
  local q, k, v = call(input)
  ;(q:sin():sum() + k:cos():sum() + v:square():sum()):backward()
  local results = { q:detach(), k:detach(), v:detach(), input.grad }
  for _, p in ipairs(net:parameters()) do results[#results + 1] = p.grad end
  return results
end

--- Compares with calls of each layer.
local function expect_same(net, x)
  local actual = results_of(net, net, x)
  local expected = results_of(function(input) return net.q_proj(input), net.k_proj(input), net.v_proj(input) end,
    net, x)
  t.equal(#actual, #expected)
  for i, tensor in ipairs(expected) do t.near(actual[i], tensor, 1e-5) end
end

--- Counts how often linear layers are called one by one.
local function count_calls(fn)
  local forward, count = nn.Linear.forward, 0
  nn.Linear.forward = function(...)
    count = count + 1
    return forward(...)
  end
  fn()
  nn.Linear.forward = forward
  return count
end

t.test("PlainLayersAreCalledTogether", function()
  torch.manual_seed(1)
  local x = torch.randn { 5, 6 }
  for _, bias in ipairs { true, false } do
    local net = Three(bias)
    expect_same(net, x)
    t.equal(count_calls(function() net(x) end), 0)
    net.k_proj:requires_grad_(false)
    expect_same(net, x)
    net:requires_grad_(false)
    expect_same(net, x)
  end
  local before = nn.use_fused(false)
  local net = Three(true)
  t.equal(count_calls(function() net(x) end), 3)
  nn.use_fused(before)
end)

t.test("LayersThatAreNotPlainAreCalledOneByOne", function()
  torch.manual_seed(2)
  local x = torch.randn { 16, 6 }
  local changes = {
    adapter = function(net) lora.apply(net, { r = 2, targets = { "k_proj" } }) end,
    hook = function(net) net.k_proj:register_forward_hook(function(_, _, y) return y * 2 end) end,
    forward = function(net)
      net.v_proj.forward = function(layer, input) return nn.linear(input, layer.weight * 2) end
    end,
    bias_of_the_second = function(net) net.k_proj = nn.Linear(6, 4, { bias = false }) end,
    bias_of_the_last = function(net) net.v_proj = nn.Linear(6, 5, { bias = false }) end,
    class = function(net) net.q_proj = nn.Linear:subclass("Other")(6, 3) end,
  }
  for name, change in pairs(changes) do
    local net = Three(true)
    change(net)
    expect_same(net, x)
    t.truthy(count_calls(function() net(x) end) >= 1, name)
  end
end)

t.test("ANormThatIsNotPlainIsCalled", function()
  local x, norm = torch.randn({ 3, 6 }):requires_grad_(true), nn.RMSNorm(6)
  local y, same = one_input.norm(norm, x)
  t.equal(y, norm(x))
  t.equal(same, x)
  norm:register_forward_hook(function(_, _, result) return result * 2 end)
  t.equal(one_input.norm(norm, x), y * 2)
  local other = nn.LayerNorm(6)
  t.equal(one_input.norm(other, x), other(x))
end)

--- Returns the gradients of a model's parameters by their names.
local function train(change)
  torch.manual_seed(3)
  local net = qwen3.Qwen3 { architectures = { "Qwen3ForCausalLM" }, vocab_size = 40, hidden_size = 16,
    intermediate_size = 24, num_hidden_layers = 3, num_attention_heads = 4, num_key_value_heads = 2, head_dim = 4 }
  if change then change(net) end
  local results = {}
  net:loss({ input_ids = torch.arange(30), seq_lens = { 10, 20 } }):backward()
  for name, p in net:named_parameters() do results[name] = p.grad end
  return results
end

local function expect_gradients(actual, expected, tolerance)
  for name, gradient in pairs(expected) do
    if tolerance then t.near(actual[name], gradient, tolerance) else t.equal(actual[name], gradient, name) end
  end
end

t.test("AModelHasTheGradientsOfItsSingleLayers", function()
  local together = train()

  local linears, norm = one_input.linears, one_input.norm
  one_input.linears = function(x, a, b, c)
    if c then return a(x), b(x), c(x) end
    return a(x), b(x)
  end
  one_input.norm = function(layer, x) return layer(x), x end
  local single = train()
  one_input.linears, one_input.norm = linears, norm
  expect_gradients(together, single, 1e-5)
end)

--- Returns how many norms of layers made the sum of the layer before.
local function count_sums(fn)
  local without_last_sum, count = decoder.Layer.without_last_sum, 0
  decoder.Layer.without_last_sum = function(layer, y, ...)
    if y then count = count + 1 end
    return without_last_sum(layer, y, ...)
  end
  fn()
  decoder.Layer.without_last_sum = without_last_sum
  return count
end

t.test("ALastSumIsLeftToTheNextNormUnlessItIsSeen", function()
  local expected, outputs = nil, {}
  t.equal(count_sums(function() expected = train() end), 2)
  local changes = {
    { 0, function(net) net.checkpoint = {} end },
    { 1, function(net) net.model.layers[1]:register_forward_hook(function(_, _, y) outputs[1] = y end) end },
    { 0, function(net) net.model.layers[2]:register_forward_hook(function(_, _, y) outputs[2] = y end) end },
    { 2, function(net) net.model.norm:register_forward_hook(function(_, inputs) outputs.last = inputs[1] end) end },
    { 0, function(net) net.model.layers[2].input_layernorm:register_forward_hook(function() end) end },
  }
  for i, change in ipairs(changes) do
    local actual
    t.equal(count_sums(function() actual = train(change[2]) end), change[1], tostring(i))
    expect_gradients(actual, expected)
  end
  t.equal(outputs.last.shape, { 30, 16 })
  t.truthy((outputs[2] - outputs[1]):abs():max():item() > 0)
end)

-- A norm adds tensors of one shape alone.
t.test("AnMlpMayReturnWhatIsBroadcast", function()
  local mlps = {
    number = function() return 0 end,
    no_dimension = function(_, x) return x:sum() end,
    one_row = function(_, x) return x:mean(0, true) end,
    one_column = function(_, x) return x:mean(1, true) end,
  }
  for name, forward in pairs(mlps) do
    for _, index in ipairs { 1, 3 } do
      local function change(net) net.model.layers[index].mlp.forward = forward end
      local function with_hooks(net)
        change(net)
        for _, layer in ipairs(net.model.layers) do layer:register_forward_hook(function() end) end
      end
      local actual, expected
      t.equal(count_sums(function() actual = train(change) end), 2 - (index == 1 and 1 or 0), name)
      t.equal(count_sums(function() expected = train(with_hooks) end), 0, name)
      t.truthy(next(expected))
      expect_gradients(actual, expected)
    end
  end
end)

t.test("TheNormAfterTheAttentionMayBeOfTheUser", function()
  local inputs
  local changes = {
    hook = function(norm) norm:register_forward_hook(function(_, seen, y)
      inputs = seen
      return y * 2
    end) end,
    forward = function(norm) norm.forward = function(_, x) return nn.RMSNorm.forward(norm, x) * 2 end end,
    weight = function(norm) torch.no_grad(function() norm.weight:mul_(2) end) end,
  }
  local found = {}
  for name, change in pairs(changes) do
    found[name] = train(function(net) change(net.model.layers[2].post_attention_layernorm) end)
    found[name]["model.layers.1.post_attention_layernorm.weight"] = nil -- half as large with a doubled weight
  end
  expect_gradients(found.hook, found.weight, 1e-6)
  expect_gradients(found.forward, found.weight, 1e-6)
  t.equal(inputs.n, 1) -- the sum
  t.truthy(train(function(net) net.model.layers[2].post_attention_layernorm = nn.LayerNorm(16) end))
  t.truthy(train(function(net) net.model.layers[2].self_attn.forward = function() return 0 end end))
end)
