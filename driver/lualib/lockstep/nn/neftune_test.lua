-- nn.neftune: the noise is what arXiv 2310.05914 says, and only in training.

local nn = require "lockstep.nn"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local Net = nn.Module:subclass("Net")
function Net:init() self.embed = nn.Embedding(9, 4) end
function Net:forward(batch) return self.embed(batch.input_ids) end

local IDS = torch.tensor({ 1, 2, 3, 4, 5, 1 }, { dtype = torch.int64 })

t.test("NoiseIsUniformAndScaledByEachSequence", function()
  local net = Net()
  local clean = net { input_ids = IDS }
  local handle = nn.neftune(net, net.embed, { alpha = 5 })
  for _, seq_lens in ipairs { { 2, 4 }, { 6 }, { 1, 0, 5 } } do
    torch.manual_seed(3)
    local noisy = net { input_ids = IDS, seq_lens = seq_lens }

    torch.manual_seed(3)
    local noise, at = torch.empty({ 6, 4 }):uniform_(-1, 1), 0
    for _, length in ipairs(seq_lens) do
      for _ = 1, length do
        noise[at] = noise[at] * (5 / math.sqrt(length * 4))
        at = at + 1
      end
    end
    t.near(noisy, clean + noise, 1e-6)
  end
  torch.manual_seed(3)
  local whole = net { input_ids = IDS }
  torch.manual_seed(3)
  t.equal(whole, net { input_ids = IDS, seq_lens = { 6 } })
  net { input_ids = IDS }:sum():backward()
  t.equal(net.embed.weight.grad[1]:totable(), { 2, 2, 2, 2 }) -- the noise has no gradient

  net:eval()
  t.equal(net { input_ids = IDS, seq_lens = { 6 } }, clean)
  net:train()
  handle:remove()
  t.equal(net { input_ids = IDS, seq_lens = { 6 } }, clean)
end)

t.test("AlphaMustBeAboveZero", function()
  local net = Net()
  t.raises("nn.neftune: alpha must be a number above 0, not 0", nn.neftune, net, net.embed, { alpha = 0 })
end)
