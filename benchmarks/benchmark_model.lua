--- The transformer that benchmarks compare with PyTorch's in benchmark_model.py.

local nn = require "lockstep.nn"
local torch = require "lockstep.torch"

local M = {}

local Block = nn.Module:subclass("Block")

function Block:init(hidden, heads)
  self.heads = heads
  -- One by one: Lua assigns a, b = ... from the right, and parameters come in the order of assignment.
  self.norm1 = nn.RMSNorm(hidden)
  self.norm2 = nn.RMSNorm(hidden)
  self.qkv = nn.Linear(hidden, 3 * hidden, { bias = false })
  self.proj = nn.Linear(hidden, hidden, { bias = false })
  self.up = nn.Linear(hidden, 4 * hidden, { bias = false })
  self.down = nn.Linear(4 * hidden, hidden, { bias = false })
end

function Block:forward(x)
  local batch, tokens, hidden = x:size(0), x:size(1), x:size(2)
  local qkv = self.qkv(self.norm1(x)):view(batch, tokens, 3, self.heads, hidden / self.heads):permute(2, 0, 3, 1, 4)
  local q, k, v = unpack(qkv:unbind(0))
  local attended = torch.scaled_dot_product_attention(q, k, v, { is_causal = true })
  local normalised, sum = self.norm2(self.proj(attended:transpose(1, 2):reshape(batch, tokens, hidden)), x)
  return sum + self.down(torch.silu(self.up(normalised)))
end

-- A model of size {vocab, hidden, layers, heads}: ids [batch, tokens] to logits [batch, tokens,
-- vocab].
local Model = nn.Module:subclass("Model")
M.Model = Model

function Model:init(size)
  self.embed = nn.Embedding(size.vocab, size.hidden)
  self.blocks = nn.ModuleList()
  for _ = 1, size.layers do self.blocks:append(Block(size.hidden, size.heads)) end
  self.norm = nn.RMSNorm(size.hidden)
  self.head = nn.Linear(size.hidden, size.vocab, { bias = false })
end

function Model:forward(ids)
  local x = self.embed(ids)
  for _, block in ipairs(self.blocks) do x = block(x) end
  return self.head(self.norm(x))
end

--- The same numbers in both programs: no generator is shared.
function M.fill(model)
  torch.no_grad(function()
    for i, p in ipairs(model:parameters()) do
      p:copy_((torch.arange(p:numel(), { dtype = torch.float64 }) * 0.7 + i):sin():mul(0.08):view(p.shape))
    end
  end)
end

return M
