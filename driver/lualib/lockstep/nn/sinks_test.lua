-- Attention with sinks against the formula in float64, one query at a time.

local nn = require "lockstep.nn"
local sinks_of = require "lockstep.nn.sinks"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

--- The formula: each query by itself. All tensors float64.
local function expected(q, k, v, sinks, o)
  local rows, start = {}, 0
  local heads, group = q:size(1), q:size(1) / k:size(1)
  for _, length in ipairs(o.seq_lens) do
    for i = start, start + length - 1 do
      local from = o.window and math.max(start, i - o.window + 1) or start
      local to = o.causal and i or o.window and math.min(start + length, i + o.window) - 1 or start + length - 1
      local of_heads = {}
      for head = 0, heads - 1 do
        local keys = k:narrow(0, from, to - from + 1):select(1, math.floor(head / group))
        local values = v:narrow(0, from, to - from + 1):select(1, math.floor(head / group))
        local scores = torch.exp(torch.matmul(keys, q[i][head]) * (o.scale or q:size(2) ^ -0.5))
        of_heads[head + 1] = torch.matmul(scores / (scores:sum() + torch.exp(sinks[head])), values)
      end
      rows[#rows + 1] = torch.stack(of_heads)
    end
    start = start + length
  end
  return torch.stack(rows)
end

local function random_case(seed)
  torch.manual_seed(seed)
  local random = math.random
  math.randomseed(seed)
  local kv_heads, dim = random(1, 3), random(1, 4) * 2
  local o = { seq_lens = {}, causal = random() < 0.7 }
  if random() < 0.5 then o.window = random(1, 6) end
  if random() < 0.5 then o.scale = 0.3 end
  local tokens = 0
  for i = 1, random(1, 4) do
    o.seq_lens[i] = random(1, 12)
    tokens = tokens + o.seq_lens[i]
  end
  local f64 = { dtype = torch.float64 }
  local heads = kv_heads * random(1, 3)
  local inputs = { torch.randn({ tokens, heads, dim }, f64), torch.randn({ tokens, kv_heads, dim }, f64),
    torch.randn({ tokens, kv_heads, dim }, f64), torch.randn({ heads }, f64) }
  for _, x in ipairs(inputs) do x:requires_grad_(true) end
  return inputs, o
end

for _, size in ipairs { 512, 3 } do
  t.test("SinksAreTheFormulaInBlocksOf_" .. size, function()
    local before = sinks_of.BLOCK
    sinks_of.BLOCK = size
    for seed = 1, 12 do
      local inputs, o = random_case(seed)
      local q, k, v, sinks = unpack(inputs)
      local y = nn.attention(q, k, v, { seq_lens = o.seq_lens, causal = o.causal, window = o.window, scale = o.scale,
        sinks = sinks })
      local reference = expected(q, k, v, sinks, o)
      local weights = torch.randn(y.shape, { dtype = torch.float64 })

      t.near(y, reference, 1e-12, "seed " .. seed)
      local gradients = torch.grad({ (y * weights):sum() }, inputs)
      for i, gradient in ipairs(torch.grad({ (reference * weights):sum() }, inputs)) do
        t.near(gradients[i], gradient, 1e-11, ("seed %d, input %d"):format(seed, i))
      end
    end
    sinks_of.BLOCK = before
  end)
end

t.test("ASinkFarBelowTheScoresChangesNothing", function()
  torch.manual_seed(1)
  local q, k, v = torch.randn { 9, 4, 8 }, torch.randn { 9, 2, 8 }, torch.randn { 9, 2, 8 }

  local y = nn.attention(q, k, v, { seq_lens = { 5, 4 }, window = 3, sinks = torch.full({ 4 }, -1e4) })

  t.near(y, nn.attention(q, k, v, { seq_lens = { 5, 4 }, window = 3 }), 1e-6)
end)

t.test("SinksOfAnotherShapeAreAnError", function()
  local q, k = torch.randn { 3, 4, 8 }, torch.randn { 3, 2, 8 }
  t.raises("sinks must be a tensor [heads] of 4 numbers, got shape {2}", nn.attention, q, k, k,
    { sinks = torch.zeros { 2 } })
  t.raises("sinks must be a tensor [heads] of 4 numbers, got a number", nn.attention, q, k, k, { sinks = 1 })
end)
