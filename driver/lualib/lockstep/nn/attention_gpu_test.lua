-- nn.attention on a GPU: FlashAttention in bfloat16 against the loop in float32.

local nn = require "lockstep.nn"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

for name, o in pairs {
  Packed = { seq_lens = { 300, 1, 211 } },
  WithAWindow = { seq_lens = { 300, 212 }, window = 64 },
  WithoutCausalMask = { seq_lens = { 300, 212 }, causal = false },
  WithAWindowAndWithoutCausalMask = { seq_lens = { 300, 212 }, window = 64, causal = false },
} do
  t.test("FlashAttentionIsTheLoop" .. name, function()
    torch.manual_seed(1)
    local function random(heads)
      return torch.randn({ 512, heads, 64 }, { device = "cuda" }):bfloat16():requires_grad_(true)
    end
    local q, k, v, weights = random(8), random(2), random(2), random(8):detach()

    local y = nn.attention(q, k, v, o)
    local expected = nn.attention(q:float(), k:float(), v:float(), o)

    t.equal(y.dtype, torch.bfloat16)
    t.near(y:float(), expected, 0.03)
    local gradients = torch.grad({ (y * weights):sum() }, { q, k, v })
    for i, gradient in ipairs(torch.grad({ (expected * weights):sum() }, { q, k, v })) do
      t.near(gradients[i]:float() / gradient:float():abs():max(), gradient:float() / gradient:float():abs():max(), 0.03)
    end
  end)
end
