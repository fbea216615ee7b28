--- lockstep.tiled_mlp under sharding.data_parallel, in all its modes. Every rank computes the expected values from all
--- ranks' data, untiled.

local dist = require "lockstep.distributed"
local nn = require "lockstep.nn"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local tiled_mlp = require "lockstep.tiled_mlp"
local torch = require "lockstep.torch"

local RANK, WORLD = dist.rank(), dist.world_size()
torch.set_default_dtype(torch.float64)

local Mlp = nn.Module:subclass("Mlp")

function Mlp:init(hidden, wide) self.up, self.down = nn.Linear(hidden, wide), nn.Linear(wide, hidden) end

function Mlp:forward(x) return self.down(torch.silu(self.up(x))) end

--- Tokens whose first feature is positive go to the second expert too.
local Experts = nn.Module:subclass("Experts")

function Experts:init(hidden) self.all, self.some = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden) end

function Experts:forward(x)
  local y = self.all(x)
  local chosen = torch.nonzero(x:detach():select(1, 0):gt(0)):flatten()
  if chosen:numel() == 0 then return y end
  return y:index_add(0, chosen, torch.tanh(self.some(x:index_select(0, chosen))))
end

--- Two tiled layers, the experts between them and the loss. `new` makes the function that runs a layer.
local Net = nn.Module:subclass("Net")

function Net:init(run)
  self.run = run
  self.first, self.second, self.experts = Mlp(6, 10), Mlp(6, 10), Experts(6)
end

function Net:forward(x)
  local y = x + self.run(self.first, x)
  y = y + self.run(self.second, y)
  return self.run(self.experts, torch.cat({ x:narrow(1, 0, 1), y:narrow(1, 1, 5) }, 1))
end

local function net(run)
  torch.manual_seed(1)
  return Net(run or function(module, x) return module(x) end)
end

--- Tokens of `rank` in `step`; the experts' are all in the first tile.
local function tokens(rank, step)
  torch.manual_seed(1000 * step + rank)
  local x = torch.randn({ 100 + 7 * rank, 6 })
  x:select(1, 0):fill_(-1)
  x:select(1, 0):narrow(0, 0, 4):fill_(1)
  return x
end

local function loss_of(y) return (y * torch.sin(torch.arange(y:numel()):view(y.shape))):sum() end

--- By name, the mean over ranks of the gradients summed over the steps.
local function expected_gradients(steps)
  local module, mean = net(), {}
  for rank = 0, WORLD - 1 do
    for _, step in ipairs(steps) do torch.mul(loss_of(module(tokens(rank, step))), 1 / WORLD):backward() end
  end
  for name, p in module:named_parameters() do mean[name] = p.grad end
  return mean
end

local function expect_gradients(replicas, expected)
  for name, p in replicas:named_parameters() do
    t.truthy(p.grad, name .. " has no gradient")
    t.near(p.grad, expected[name], 1e-12, name)
  end
end

--- A number of tiles that differs by rank and step.
local step_now = 0
local function varying(module, x) return tiled_mlp.new { tiles = 1 + (3 * RANK + 2 * step_now) % 7 }(module, x) end

local MODES = { { "plain", {} }, { "find_unused", { find_unused = true } }, { "static_graph", { static_graph = true } },
  { "small_buckets", { bucket_mb = 1e-4 } } }

for _, entry in ipairs(MODES) do
  local name, mode = entry[1], entry[2]
  t.test("GradientsAreTheMeanOverRanks(" .. name .. ")", function()
    local replicas = sharding.data_parallel(net(varying), mode)
    for step = 1, 4 do
      step_now = step
      replicas:zero_grad()
      loss_of(replicas(tokens(RANK, step))):backward()
      expect_gradients(replicas, expected_gradients { step })
    end
  end)

  t.test("NoSyncAddsUpAndTheNextPassAverages(" .. name .. ")", function()
    local replicas = sharding.data_parallel(net(varying), mode)
    for _ = 1, 2 do
      replicas:zero_grad()
      replicas:no_sync(function()
        for step = 1, 2 do
          step_now = step
          loss_of(replicas(tokens(RANK, step))):backward()
        end
      end)
      step_now = 3
      loss_of(replicas(tokens(RANK, 3))):backward()
      expect_gradients(replicas, expected_gradients { 1, 2, 3 })
    end
  end)
end

t.test("TheBuiltInMlpIsAveragedToo", function()
  local replicas = sharding.data_parallel(net(function(module, x)
    if not module.up then return module(x) end
    return tiled_mlp.new { tiles = 3 + RANK }:dense { x = x, up = module.up.weight, up_bias = module.up.bias,
      down = module.down.weight, down_bias = module.down.bias }
  end), { find_unused = true })

  loss_of(replicas(tokens(RANK, 1))):backward()

  expect_gradients(replicas, expected_gradients { 1 })
end)

t.test("OneRankMayRunUntiled", function()
  local replicas = sharding.data_parallel(net(function(module, x)
    return tiled_mlp.new(RANK == 0 and { tiles = 5 } or {})(module, x)
  end))

  loss_of(replicas(tokens(RANK, 1))):backward()

  expect_gradients(replicas, expected_gradients { 1 })
end)

--- A head tied to the embedding, trained through the tiled loss.
local Tied = nn.Module:subclass("Tied")

function Tied:init() self.embed = nn.Embedding(31, 6) end

function Tied:forward(ids, labels)
  return (tiled_mlp.cross_entropy { hidden = torch.tanh(self.embed(ids)), weight = self.embed.weight, labels = labels,
    tile_tokens = 5, over_ranks = true })
end

t.test("CrossEntropyOverRanksIsTheMeanOverAllLabels", function()
  -- Rank 0 counts three times as many labels as rank 1.
  local ids, labels, truth = {}, {}, nn.Embedding(31, 6)
  for rank = 0, WORLD - 1 do
    torch.manual_seed(rank)
    ids[rank] = torch.randint(31, { 12 }, { dtype = torch.int64 })
    labels[rank] = torch.randint(31, { 12 }, { dtype = torch.int64 })
    labels[rank]:narrow(0, 0, rank == 0 and 3 or 9):fill_(-100)
  end
  torch.manual_seed(1)
  local replicas = sharding.data_parallel(Tied())
  truth:load_state_dict(replicas.module.embed:state_dict())
  local sum, count = 0, 0
  for rank = 0, WORLD - 1 do
    local logits = torch.linear(torch.tanh(truth(ids[rank])), truth.weight)
    sum = sum + nn.cross_entropy(logits, labels[rank], { reduction = "sum" })
    count = count + labels[rank]:ne(-100):sum():item()
  end
  local mean = sum / count
  mean:backward()

  local loss = replicas(ids[RANK], labels[RANK])
  loss:backward()

  local reported = loss:detach():clone()
  dist.all_reduce(reported, "avg")
  t.near(reported, mean, 1e-12)
  t.near(replicas.module.embed.weight.grad, truth.weight.grad, 1e-12)
end)
