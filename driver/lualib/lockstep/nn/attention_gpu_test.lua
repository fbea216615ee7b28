-- nn.attention on a GPU: the kernels of the table in bfloat16 against one call for each sequence in float32.

local nn = require "lockstep.nn"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

for name, o in pairs {
  OneSequence = {},
  ABatch = { seq_lens = { 256, 256 } },
  WithSinks = { seq_lens = { 300, 212 }, sinks = true },
  WithSinksAndAWindow = { seq_lens = { 300, 212 }, sinks = true, window = 64 },
  Packed = { seq_lens = { 300, 1, 211 } },
  WithAWindow = { seq_lens = { 300, 212 }, window = 64 },
  WithoutCausalMask = { seq_lens = { 300, 212 }, causal = false },
  WithAWindowAndWithoutCausalMask = { seq_lens = { 300, 212 }, window = 64, causal = false },
} do
  t.test("ItIsRight" .. name, function()
    torch.manual_seed(1)
    local function random(heads)
      return torch.randn({ 512, heads, 64 }, { device = "cuda" }):bfloat16():requires_grad_(true)
    end
    local q, k, v, weights = random(8), random(2), random(2), random(8):detach()

    local sinks = o.sinks and torch.randn({ 8 }, { device = "cuda" }):requires_grad_(true)
    local opts = { seq_lens = o.seq_lens, window = o.window, causal = o.causal, sinks = sinks or nil }

    local y = nn.attention(q, k, v, opts)
    local expected = nn.attention(q:float(), k:float(), v:float(), opts)

    t.equal(y.dtype, torch.bfloat16)
    t.near(y:float(), expected, 0.03)
    local inputs = { q, k, v, sinks or nil }
    local gradients = torch.grad({ (y * weights):sum() }, inputs)
    for i, gradient in ipairs(torch.grad({ (expected * weights):sum() }, inputs)) do
      t.near(gradients[i]:float() / gradient:float():abs():max(), gradient:float() / gradient:float():abs():max(), 0.03)
    end
  end)
end
