--- Random models, steps and options: replicas and sharded models train as one rank does on the data of all ranks.
---
--- Models have weights that are shared, frozen, thawed later, used by some ranks, and used by none. Steps accumulate
--- gradients, clip them, and update with AdamW, whose moments show a zero that should have been no gradient at all.

local dist = require "lockstep.distributed"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local RANK, WORLD = dist.rank(), dist.world_size()
torch.set_default_dtype(torch.float64)

--- Draws the same numbers on every rank.
local function drawer(seed)
  local state = seed * 7919 + 12345
  return function(n)
    state = (state * 1103515245 + 12345) % 2 ^ 31
    return math.floor(state / 65536) % n + 1
  end
end

local Layer = nn.Module:subclass("Layer")
function Layer:init(hidden, inner)
  self.up, self.down = nn.Linear(hidden, inner), nn.Linear(inner, hidden)
  self.gate = torch.ones({}):requires_grad_(true)
  self.never = nn.Linear(2, 2)
end
function Layer:forward(x) return x + self.down(torch.tanh(self.up(x))) * self.gate end

--- Layers that a pass calls in any order, and parts of the root that it may leave out.
local Net = nn.Module:subclass("Net")
function Net:init(draw)
  local hidden = 1 + draw(6)
  self.embedding = nn.Embedding(11, hidden)
  self.layers = nn.ModuleList {}
  local shared = draw(3) == 1 and draw(9)
  for _ = 1, 2 + draw(2) do self.layers:append(Layer(hidden, shared or draw(9))) end
  if shared then self.layers[2].up.weight = self.layers[1].up.weight end
  self.norm, self.projector = nn.LayerNorm(hidden), nn.Linear(3, hidden)
  self.head = nn.Linear(hidden, 11, { bias = draw(2) == 1 })
  if draw(2) == 1 then self.head.weight = self.embedding.weight end
  self.never = torch.ones({ draw(70) }):requires_grad_(true)
end
function Net:forward(pass)
  local x = self.embedding(pass.tokens)
  if pass.picture then x = x + self.projector(pass.picture) end
  for _, i in ipairs(pass.layers) do x = self.layers[i](x) end
  if pass.norm then x = self.norm(x) end
  return torch.cross_entropy_loss(self.head(x), (pass.tokens * 5 + 1):remainder(11))
end

local function build(seed)
  torch.manual_seed(seed)
  return Net(drawer(seed))
end

--- Draws the passes of each rank in each micro-batch of each step, and the parameters that each step freezes or thaws.
local function plan_of(net, seed, ranks_call_other_layers)
  local draw, steps, names = drawer(seed + 1000), {}, {}
  for name in net:named_parameters() do names[#names + 1] = name end
  for step = 1, 4 do
    local one = { clip = draw(2) == 1 and draw(20) / 10, micro_batches = {}, toggled = {} }
    for micro = 1, draw(3) do
      local passes, layers = {}, nil
      for rank = 0, WORLD - 1 do
        if not layers or ranks_call_other_layers then
          layers = {}
          for i = 1, draw(#net.layers + 1) - 1 do layers[i] = draw(#net.layers) end
        end
        torch.manual_seed(1000 * seed + 100 * step + 10 * micro + rank)
        passes[rank] = { layers = layers, norm = draw(2) == 1, picture = draw(3) == 1 and torch.randn { 4, 3 } or nil,
          tokens = torch.randint(11, { 4 }, { dtype = torch.int64 }) }
      end
      one.micro_batches[micro] = passes
    end
    for _, name in ipairs(names) do
      if draw(6) == 1 and name ~= "embedding.weight" then one.toggled[name] = true end -- each pass has a gradient
    end
    steps[step] = one
  end
  return steps
end

--- Freezes the trained ones of these parameters, and thaws the frozen ones.
local function toggle(model, names)
  for name, p in model:named_parameters() do
    if names[name] then p:requires_grad_(not p.requires_grad) end
  end
end

--- Trains what `wrap` makes of a net next to a whole net.
local function train(seed, wrap, other_layers)
  local whole, inside = build(seed), build(seed)
  local model = wrap(inside)
  local plan = plan_of(whole, seed, other_layers)
  local options = { lr = 0.03, weight_decay = 0.2 }
  local one, own = optim.AdamW(whole:parameters(), options), optim.AdamW(model:parameters(), options)
  for step, this in ipairs(plan) do
    local what = ("seed %d, step %d: "):format(seed, step)
    toggle(whole, this.toggled)
    toggle(seed % 2 == 0 and inside or model, this.toggled)
    for micro, passes in ipairs(this.micro_batches) do
      for rank = 0, WORLD - 1 do
        (whole(passes[rank]) / WORLD):backward()
      end
      local function pass(batch) model(batch):backward() end
      if micro < #this.micro_batches then model:no_sync(pass, passes[RANK]) else pass(passes[RANK]) end
    end
    if this.clip then
      local norms = {}
      for i, m in ipairs { whole, model } do norms[i] = optim.clip_grad_norm(m:parameters(), this.clip):item() end
      t.near(norms[2], norms[1], 1e-10, what .. "norm")
    end
    for _, optimizer in ipairs { one, own } do
      optimizer:step()
      optimizer:zero_grad()
    end
    local found = model:state_dict()
    for name, p in pairs(whole:state_dict()) do t.near(found[name], p, 1e-9, what .. name) end
  end
end

for seed = 1, 12 do
  t.test(("Replicas_%02d"):format(seed), function()
    local draw = drawer(seed + 2000)
    local options = { find_unused = true, bucket_mb = draw(2) == 1 and 1e-4 or 25,
      gradient_as_bucket_view = draw(2) == 1 }
    train(seed, function(net) return sharding.data_parallel(net, options) end, true)
  end)

  t.test(("Shards_%02d"):format(seed), function()
    local draw = drawer(seed + 3000)
    local joins = draw(2) == 1
    local options = { skipped = joins and "join" or "error", prefetch = draw(3) - 1,
      reshard_after_forward = draw(2) == 1, units = draw(3) == 1 and { "layers.*", "head" } or nil,
      replicas = WORLD % 2 == 0 and draw(2) or 1 }
    train(seed, function(net) return sharding.fully_shard(net, options) end, joins)
  end)
end
