--- What a training step takes, launched operator by operator and as one CUDA graph, in milliseconds: see
--- graph_benchmark.py, which runs this with the sizes as arguments.

local core = require "lockstep.core"
local dist = require "lockstep.distributed"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local torch = require "lockstep.torch"

local names = { "layers", "hidden", "heads", "batch", "tokens", "vocab", "steps", "rounds" }
local size = {}
for i, name in ipairs(names) do
  size[name] = tonumber(run.args[i]) or error("argument " .. i .. " must be the number of " .. name, 0)
end
local dtype, DEVICE = torch[run.args[#names + 1]], dist.device()
torch.set_num_threads(1)

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
  local qkv = self.qkv(self.norm1(x)):view(batch, tokens, 3, size.heads, hidden / size.heads):permute(2, 0, 3, 1, 4)
  local q, k, v = unpack(qkv:unbind(0))
  local attended = torch.scaled_dot_product_attention(q, k, v, { is_causal = true })
  x = x + self.proj(attended:transpose(1, 2):reshape(batch, tokens, hidden))
  return x + self.down(torch.silu(self.up(self.norm2(x))))
end

local Model = nn.Module:subclass("Model")

function Model:init()
  self.embed = nn.Embedding(size.vocab, size.hidden)
  self.blocks = nn.ModuleList()
  for _ = 1, size.layers do self.blocks:append(Block(size.hidden)) end
  self.norm = nn.RMSNorm(size.hidden)
  self.head = nn.Linear(size.hidden, size.vocab, { bias = false })
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

local function training_step()
  local model = Model()
  fill(model)
  model:to { device = DEVICE, dtype = dtype }
  local optimizer = optim.AdamW(model:parameters(), { lr = 1e-3 })
  return function(ids, labels)
    local loss = nn.cross_entropy(model(ids):float(), labels)
    loss:backward()
    optimizer:step()
    optimizer:zero_grad()
    return loss
  end
end

local function synchronize()
  if DEVICE ~= "cpu" then torch.cuda.synchronize() end
end

--- Prints the loss after `steps` steps, then the least time of a step over the rounds.
local function measure(name, step)
  local ids = torch.arange(size.batch * size.tokens, { device = DEVICE }):remainder(size.vocab)
  ids = ids:view(size.batch, size.tokens)
  local labels = ids:roll({ 1 }, { 1 })
  local loss, best = nil, math.huge
  for _ = 1, size.steps do loss = step(ids, labels) end
  print(("loss, %s %.6f"):format(name, loss:item()))
  for _ = 1, size.rounds do
    synchronize()
    local start = core.now()
    for _ = 1, size.steps do step(ids, labels) end
    synchronize()
    best = math.min(best, core.now() - start)
  end
  print(("%s %.6f"):format(name, 1e3 * best / size.steps))
end

measure("lockstep", training_step())
collectgarbage()
collectgarbage()
measure("lockstep.graph", lockstep.graph(training_step()))
