--- What a module call and a training step cost from Lua, in microseconds: see step_benchmark.py, which runs this.

local core = require "lockstep.core"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local torch = require "lockstep.torch"

local LAYERS, VOCAB, HEADS = 6, 64, 4
torch.set_num_threads(1)

--- Prints the least time per call over the rounds.
local function measure(name, calls, rounds, call)
  local best = math.huge
  for _ = 1, rounds do
    local start = core.now()
    for _ = 1, calls do call() end
    best = math.min(best, core.now() - start)
  end
  print(("%s %.4f"):format(name, 1e6 * best / calls))
end

local Relu = nn.Module:subclass("Relu")
function Relu.forward(_, x) return torch.relu(x) end

local Block = nn.Module:subclass("Block")

function Block:init(hidden)
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
  local qkv = self.qkv(self.norm1(x)):view(batch, tokens, 3, HEADS, hidden / HEADS):permute(2, 0, 3, 1, 4)
  local q, k, v = unpack(qkv:unbind(0))
  local attended = torch.scaled_dot_product_attention(q, k, v, { is_causal = true })
  x = x + self.proj(attended:transpose(1, 2):reshape(batch, tokens, hidden))
  return x + self.down(torch.silu(self.up(self.norm2(x))))
end

local Model = nn.Module:subclass("Model")

function Model:init(hidden)
  self.embed = nn.Embedding(VOCAB, hidden)
  self.blocks = nn.ModuleList()
  for _ = 1, LAYERS do self.blocks:append(Block(hidden)) end
  self.norm = nn.RMSNorm(hidden)
  self.head = nn.Linear(hidden, VOCAB, { bias = false })
end

function Model:forward(ids)
  local x = self.embed(ids)
  for _, block in ipairs(self.blocks) do x = block(x) end
  return self.head(self.norm(x))
end

--- The same numbers in both programs: no generator is shared.
local function fill(model)
  torch.no_grad(function()
    for i, p in ipairs(model:parameters()) do
      p:copy_((torch.arange(p:numel(), { dtype = torch.float64 }) * 0.7 + i):sin():mul(0.08):view(p.shape))
    end
  end)
end

local function training_step(name, hidden, batch, tokens, calls, rounds)
  local model = Model(hidden)
  fill(model)
  local optimizer = optim.AdamW(model:parameters(), { lr = 1e-3 })
  local ids = torch.arange(batch * tokens):remainder(VOCAB):view(batch, tokens)
  local labels = ids:roll({ 1 }, { 1 })
  local loss
  local function step()
    loss = nn.cross_entropy(model(ids), labels)
    loss:backward()
    optimizer:step()
    optimizer:zero_grad()
  end
  for _ = 1, 20 do step() end
  print(("loss after 20 steps, %s %.6f"):format(name, loss:item()))
  measure(name, calls, rounds, step)
  measure(name .. ", forward", calls, rounds, function() nn.cross_entropy(model(ids), labels) end)
  loss = nn.cross_entropy(model(ids), labels)
  loss:backward()
  measure(name .. ", optimizer", calls, rounds, function() optimizer:step() end)
end

-- What a call adds: a module around an operator, less the operator. Interpreted, since a loop around one call is
-- compiled to nothing; each keeps its last result, so that neither is skipped.
local relu, x, kept = Relu(), torch.ones({ 4 }), nil
jit.off()
torch.no_grad(function()
  measure("module around an operator", 200000, 5, function() kept = relu(x) end)
  measure("the operator alone", 200000, 5, function() kept = torch.relu(x) end)
end)
jit.on()
assert(torch.equal(kept, x))
training_step("hidden 32, 1 x 16", 32, 1, 16, 50, 6)
training_step("hidden 128, 4 x 64", 128, 4, 64, 8, 4)
