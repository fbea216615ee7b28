-- Attention and transformers against PyTorch's, in random cases: tests/torch/make_sequence_numbers.py writes the
-- numbers.

local core = require "lockstep.core"
local data = require "lockstep.data"
local nn = require "lockstep.nn"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local numbers, metadata = data.safetensors("tests/torch/sequence_numbers.safetensors")
local cases = core.json_decode(metadata.cases).transformer

local function weighted(x)
  return (x * torch.arange(x:numel(), { dtype = x.dtype }):reshape(x.shape):cos()):sum()
end

local function build(case)
  local of_layers = case.num_layers and nn[case.kind .. "Layer"](case.size, case.heads, case.options)
  if not of_layers then return nn[case.kind](case.size, case.heads, case.options) end
  return nn[case.kind](of_layers, case.num_layers, { norm = case.norm and nn.LayerNorm(case.size) or nil })
end

t.test("FirstValuesResultsAndGradientsAreThoseOfPyTorch", function()
  t.equal(#cases, 64)
  for _, case in ipairs(cases) do
    local text = core.json_encode(case)
    local function number(key) return numbers[("transformer.%d.%s"):format(case.seed, key)] end
    torch.manual_seed(case.seed)
    local module = build(case):train(case.train)
    local inputs, call = {}, {}
    for i, size in ipairs(case.inputs) do inputs[i] = torch.randn(size):requires_grad_(true) end
    for name, value in pairs(case.call) do
      if value == "a tensor" then call[name] = number("call." .. name) else call[name] = value end
    end

    torch.manual_seed(2000 + case.seed)
    local outputs
    if case.kind == "MultiheadAttention" then
      outputs = { module(inputs[1], inputs[case.is_self and 1 or 2], inputs[case.is_self and 1 or 3], call) }
    elseif #inputs == 1 then
      outputs = { module(inputs[1], call) }
    else
      outputs = { module(inputs[1], inputs[2], call) }
    end
    local sum = 0
    for _, y in ipairs(outputs) do sum = sum + weighted(y) end
    sum:backward()

    for i, y in ipairs(outputs) do t.near(y:detach(), number("y" .. i - 1), 1e-5, text) end
    t.equal(number("y" .. #outputs), nil, text)
    for i, x in ipairs(inputs) do t.near(x.grad, number(("x%d_grad"):format(i - 1)), 1e-4, text) end
    local names = 0
    for key, p in module:named_parameters() do
      local gradient = p.grad or torch.zeros_like(p)
      t.near(torch.stack { weighted(p:detach()), weighted(gradient) }, number(key), 2e-4, text .. key)
      names = names + 1
    end
    for key in pairs(numbers) do
      local own = key:match(("^transformer%%.%d%%.(.*)$"):format(case.seed))
      if own and (own:find("weight") or own:find("bias")) and not own:find("^call") then names = names - 1 end
    end
    t.equal(names, 0, text)
  end
end)

t.test("WithAndWithoutWeightsTheResultIsTheSame", function()
  for seed = 1, 30 do
    torch.manual_seed(seed)
    local function chance() return torch.rand({}):item() < 0.5 end
    local heads, batch, time, keys = seed % 3 + 1, seed % 2 + 1, 4, chance() and 4 or 3
    local attention = nn.MultiheadAttention(2 * heads, heads, { add_bias_kv = chance(), add_zero_attn = chance(),
      batch_first = true })
    local q, kv = torch.randn { batch, time, 2 * heads }, torch.randn { batch, keys, 2 * heads }
    local o = { is_causal = chance() }
    if chance() then o.attn_mask = torch.rand { time, keys }:gt(0.6):logical_and(torch.arange(keys):gt(0)) end
    if chance() then o.key_padding_mask = torch.rand { batch, keys }:gt(0.6):logical_and(torch.arange(keys):gt(0)) end

    local y, weights = attention(q, kv, kv, o)
    o.need_weights = false
    local same, none = attention(q, kv, kv, o)
    t.near(same, y, 1e-5, seed)
    t.equal(none, nil)
    t.near(weights:sum(-1), torch.ones { batch, time }, 1e-5, seed)
    if not o.attn_mask and o.is_causal then
      o.is_causal, o.attn_mask = nil, torch.ones({ time, keys }, { dtype = torch.bool }):triu(1)
      t.near((attention(q, kv, kv, o)), y, 1e-5, seed)
    end
  end
end)

t.test("CausalLayersDoNotSeeLaterTokens", function()
  torch.manual_seed(1)
  local model = nn.Transformer(6, 2, { num_encoder_layers = 2, num_decoder_layers = 2, dim_feedforward = 8,
    batch_first = true }):eval()
  local src, tgt = torch.randn { 2, 5, 6 }, torch.randn { 2, 4, 6 }
  local y = model(src, tgt, { tgt_is_causal = true })
  local shorter = model(src, tgt:narrow(1, 0, 3), { tgt_is_causal = true })
  t.near(y:narrow(1, 0, 3), shorter, 1e-5)
  t.truthy((model(src, tgt):narrow(1, 0, 3) - shorter):abs():max():item() > 1e-3)
  local layer = nn.TransformerEncoderLayer(6, 2, { batch_first = true }):eval()
  t.near(layer(src, { is_causal = true }):narrow(1, 0, 2), layer(src:narrow(1, 0, 2), { is_causal = true }), 1e-5)
end)

t.test("TheStateHasPyTorchsKeys", function()
  local function keys(module)
    local names = {}
    for name in pairs(module:state_dict()) do names[#names + 1] = name end
    table.sort(names)
    return table.concat(names, " ")
  end
  t.equal(keys(nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2), 1, { norm = nn.LayerNorm(4) })),
    "layers.0.linear1.bias layers.0.linear1.weight layers.0.linear2.bias layers.0.linear2.weight layers.0.norm1.bias "
    .. "layers.0.norm1.weight layers.0.norm2.bias layers.0.norm2.weight layers.0.self_attn.in_proj_bias "
    .. "layers.0.self_attn.in_proj_weight layers.0.self_attn.out_proj.bias layers.0.self_attn.out_proj.weight "
    .. "norm.bias norm.weight")
  t.equal(keys(nn.MultiheadAttention(4, 2, { kdim = 3, bias = false, add_bias_kv = true })),
    "bias_k bias_v k_proj_weight out_proj.weight q_proj_weight v_proj_weight")
  local layer = nn.TransformerDecoderLayer(4, 2, { bias = false, dim_feedforward = 3 })
  local stack = nn.TransformerDecoder(layer, 2)
  t.equal(stack.layers[2].multihead_attn.in_proj_weight, layer.multihead_attn.in_proj_weight)
  t.truthy(stack.layers[2].multihead_attn.in_proj_weight ~= layer.multihead_attn.in_proj_weight)
  t.equal(#stack:parameters(), 2 * #layer:parameters())
end)

t.test("LayersAreBuiltWithoutMemory", function()
  local model = require("lockstep.nn.parameter").on_meta(nn.Transformer, 512, 8)
  t.equal(model:num_parameters(), 44140544)
  for _, p in ipairs(model:parameters()) do t.equal(p.device, "meta") end
end)

t.test("ACopyHasItsOwnTensorsAndSharesThemAsTheOriginalDoes", function()
  local Tied = nn.Module:subclass("Tied")
  function Tied:init()
    self.list = nn.ModuleList { nn.Linear(2, 3), nn.Dropout(0.5) }
    self.weight = self.list[1].weight
    self.mean = torch.zeros { 2 }
    self.sizes = { 2, { 3 } }
    self.shown = torch.relu
  end
  local original = Tied()
  original.list[1].bias:requires_grad_(false)
  local handle = original:register_forward_hook(function() error("never") end)
  local copied = nn.copy(original)
  original.sizes[2][1] = 4
  torch.no_grad(function() original.weight:fill_(9) end)
  original.mean:fill_(9)

  t.equal(tostring(copied), tostring(original))
  t.truthy(copied.weight == copied.list[1].weight and copied.weight ~= original.weight)
  t.truthy(copied.weight:max():item() < 9 and copied.mean:max():item() == 0)
  t.equal(copied.sizes, { 2, { 3 } })
  t.equal(copied.list[1].bias.requires_grad, false)
  t.equal(#copied:parameters(), 2)
  function Tied:forward(x) return self.list[1](x) end
  t.equal(copied(torch.zeros { 1, 2 }).shape, { 1, 3 })
  handle:remove()
  t.raises("nn.copy: expected a module, not a number", nn.copy, 3)
end)

t.test("MistakesAreErrors", function()
  local x, y = torch.zeros { 2, 5, 4 }, torch.zeros { 2, 3, 4 }
  local attention = nn.MultiheadAttention(4, 2, { batch_first = true })
  local layer = nn.TransformerEncoderLayer(4, 2, { batch_first = true })
  for _, case in ipairs {
    { "nn.MultiheadAttention: embed_dim 5 must be a multiple of num_heads 2",
      function() nn.MultiheadAttention(5, 2) end },
    { "nn.MultiheadAttention: num_heads must be a whole number of at least 1, not 0",
      function() nn.MultiheadAttention(4, 0) end },
    { "nn.MultiheadAttention: dropout must be a number from 0 to 1, not -1",
      function() nn.MultiheadAttention(4, 2, { dropout = -1 }) end },
    { 'unknown option "batchfirst"; did you mean "batch_first"?',
      function() nn.MultiheadAttention(4, 2, { batchfirst = true }) end },
    { "nn.MultiheadAttention: key must be a tensor, not a nil", function() attention(x) end },
    { "nn.MultiheadAttention: query must be [batch, time, 4] or [time, 4], with as many dimensions as the query, got "
      .. "{2, 5, 3}", function() attention(x:narrow(2, 0, 3), y, y) end },
    { "nn.MultiheadAttention: key and value must have one batch and one time, got {2, 5, 4} and {2, 3, 4}",
      function() attention(x, x, y) end },
    { "nn.MultiheadAttention: query and key must have one batch, got {2, 5, 4} and {1, 3, 4}",
      function() attention(x, y:narrow(0, 0, 1), y:narrow(0, 0, 1)) end },
    { "nn.MultiheadAttention: attn_mask must have shape {5, 3} or {4, 5, 3}, got {3, 5}",
      function() attention(x, y, y, { attn_mask = torch.zeros { 3, 5 } }) end },
    { "nn.MultiheadAttention: key_padding_mask must have shape {2, 3}, got {2, 5}",
      function() attention(x, y, y, { key_padding_mask = torch.zeros { 2, 5 } }) end },
    { "attn_mask must be of booleans or floating-point numbers, not torch.int64",
      function() attention(x, y, y, { attn_mask = torch.zeros({ 5, 3 }, { dtype = torch.int64 }) }) end },
    { "nn.MultiheadAttention: attn_mask must be a tensor, not a string",
      function() attention(x, y, y, { attn_mask = "causal" }) end },
    { 'nn.TransformerEncoderLayer: activation must be "relu", "gelu" or a function, not tanh',
      function() nn.TransformerEncoderLayer(4, 2, { activation = "tanh" }) end },
    { "nn.TransformerDecoderLayer: dim_feedforward must be a whole number of at least 1, not 0",
      function() nn.TransformerDecoderLayer(4, 2, { dim_feedforward = 0 }) end },
    { 'nn.TransformerEncoderLayer: unknown option "mask"', function() layer(x, { mask = torch.zeros { 5, 5 } }) end },
    { "nn.TransformerEncoder: encoder_layer must be a module, not a number",
      function() nn.TransformerEncoder(4, 2) end },
    { "nn.TransformerEncoder: num_layers must be a whole number of at least 1, not nil",
      function() nn.TransformerEncoder(layer) end },
    { "nn.TransformerDecoder: norm must be a module, not a string",
      function() nn.TransformerDecoder(layer, 1, { norm = "layer" }) end },
  } do
    t.raises(case[1], case[2])
  end
end)

t.test("AnActivationMayBeAFunction", function()
  torch.manual_seed(1)
  local layer = nn.TransformerEncoderLayer(4, 2, { activation = torch.gelu }):eval()
  torch.manual_seed(1)
  local named = nn.TransformerEncoderLayer(4, 2, { activation = "gelu" }):eval()
  local x = torch.randn { 3, 1, 4 }
  t.equal(layer(x), named(x))
end)
