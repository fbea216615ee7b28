--- Training with lockstep.graph on the CPU: after each step weights, gradients, optimizer states and the random
--- generator have the bits that they have without a graph.

local lockstep = require "lockstep"
local checkpoint = require "lockstep.checkpoint"
local lora = require "lockstep.lora"
local mimo = require "lockstep.mimo"
local models = require "lockstep.models"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local t = require "lockstep.testing"
local tiled_mlp = require "lockstep.tiled_mlp"
local torch = require "lockstep.torch"

torch.set_num_threads(1)

local STEPS = 9

--- Numbers from 0 to 1 of step `i`, the same in each program.
local function numbers(i, shape) return torch.arange(1, 1 + 64):add(i):sin():view(shape) end

local function feed(i) return numbers(i, { 8, 8 }), torch.arange(8):add(i):remainder(4) end

--- One step of training on a model and an optimizer.
local function trains(model, optimizer, loss)
  loss = loss or function(x, y) return nn.cross_entropy(model(x):float(), y) end
  return {
    model = model, optimizer = optimizer,
    step = function(x, y)
      local value = loss(x, y)
      value:backward()
      optimizer:step()
      optimizer:zero_grad()
      return value
    end,
  }
end

local function mlp() return nn.Sequential { nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4) } end

local Tied = nn.Module:subclass("Tied")

function Tied:init()
  self.embed = nn.Embedding(4, 8)
  self.norm = nn.RMSNorm(8)
end

function Tied:forward(x)
  local ids = x:select(1, 0):abs():mul(4):to(torch.int64):remainder(4)
  return self.norm(self.embed(ids) + x):matmul(self.embed.weight:t())
end

local Packed = nn.Module:subclass("Packed")

function Packed:init()
  self.qkv = nn.Linear(8, 24)
  self.out = nn.Linear(8, 4)
end

function Packed:forward(x)
  local q, k, v = unpack(self.qkv(x):view(8, 3, 2, 4):unbind(1))
  return self.out(nn.attention(q, k, v, { seq_lens = { 3, 5 } }):reshape(8, 8))
end

local cases = {
  AdamW = function()
    local model = mlp()
    return trains(model, optim.AdamW(model:parameters(), { lr = 1e-2 }))
  end,
  ["AdamW of ATen"] = function()
    local before = nn.use_fused(false)
    local model = mlp()
    local training = trains(model, optim.AdamW(model:parameters(), { lr = 1e-2 }))
    local step = training.step
    training.step = function(...)
      nn.use_fused(false)
      local loss = step(...)
      nn.use_fused(before)
      return loss
    end
    nn.use_fused(before)
    return training
  end,
  -- Its loss looks at values on a CPU: which labels count, and whether all are of the vocabulary.
  ["a model with its own loss"] = function()
    local model = models.build { architectures = { "Qwen3ForCausalLM" }, model_type = "qwen3", hidden_size = 8,
      intermediate_size = 12, num_hidden_layers = 2, num_attention_heads = 2, num_key_value_heads = 1, head_dim = 4,
      vocab_size = 11 }
    return trains(model, optim.AdamW(model:parameters(), { lr = 1e-2 }), function(x, y)
      local mask = y:remainder(3):eq(x:select(1, 0):gt(0):to(torch.int64))
      mask[1] = true -- the tokens that count change from step to step
      local sum, count = model:loss { input_ids = y:remainder(11), loss_mask = mask, seq_lens = { 5, 3 } }
      return sum / count
    end)
  end,
  ["a tiled MLP, of whose tiles some have no loss"] = function()
    local model, tiled = mlp(), tiled_mlp.new { tiles = 4 }
    return trains(model, optim.SGD(model:parameters(), { lr = 1e-2 }), function(x, y)
      local used = y:eq(0):logical_or(y:eq(x:select(1, 0):gt(0):to(torch.int64))) -- two or more rows of eight
      return nn.cross_entropy(tiled(model, x), y:masked_fill(used:logical_not(), -100))
    end)
  end,
  momentum = function()
    local model = mlp()
    return trains(model, optim.SGD(model:parameters(), { lr = 1e-2, momentum = 0.9 }))
  end,
  Muon = function()
    local model = nn.Linear(8, 4, { bias = false })
    return trains(model, optim.Muon(model:parameters(), { lr = 1e-2 }))
  end,
  clipping = function()
    local model = mlp()
    local training = trains(model, optim.AdamW(model:parameters(), { lr = 1e-2 }))
    local step = training.optimizer.step
    training.optimizer.step = function(...)
      optim.clip_grad_norm(model:parameters(), 0.5)
      return step(...)
    end
    return training
  end,
  ["clipping in the optimizer's pass"] = function()
    local model = mlp()
    local training = trains(model, optim.AdamW(model:parameters(), { lr = 1e-2 }))
    local step = training.optimizer.step
    training.optimizer.step = function(self, factor) return step(self, factor, { max_grad_norm = 0.5 }) end
    return training
  end,
  dropout = function()
    local model = nn.Sequential { nn.Linear(8, 16), nn.Dropout(0.3), nn.Linear(16, 4) }
    return trains(model, optim.AdamW(model:parameters(), { lr = 1e-2 }))
  end,
  ["LoRA"] = function()
    local model = mlp()
    lora.apply(model, { r = 2, targets = "all-linear" })
    local trained = {}
    for _, p in ipairs(model:parameters()) do
      if p.requires_grad then trained[#trained + 1] = p end
    end
    return trains(model, optim.AdamW(trained, { lr = 1e-2 }))
  end,
  frozen = function()
    local model = mlp()
    for _, p in ipairs(model[1]:parameters()) do p:requires_grad_(false) end
    return trains(model, optim.AdamW(model:parameters(), { lr = 1e-2 }))
  end,
  ["bfloat16 with masters"] = function()
    local model = mlp()
    model:to { dtype = torch.bfloat16 }
    return trains(model, optim.AdamW(model:parameters(), { lr = 1e-2 }), function(x, y)
      return nn.cross_entropy(model(x:to(torch.bfloat16)):float(), y)
    end)
  end,
  ["bfloat16 at random"] = function()
    local model = mlp()
    model:to { dtype = torch.bfloat16 }
    return trains(model, optim.SGD(model:parameters(), { lr = 1e-2, momentum = 0.9, master = "stochastic" }),
      function(x, y) return nn.cross_entropy(model(x:to(torch.bfloat16)):float(), y) end)
  end,
  tied = function()
    local model = Tied()
    return trains(model, optim.AdamW(model:parameters(), { lr = 1e-2 }))
  end,
  ["packed attention"] = function()
    local model = Packed()
    return trains(model, optim.AdamW(model:parameters(), { lr = 1e-2 }))
  end,
  ["a checkpointed region"] = function()
    local model, region = mlp(), checkpoint.new {}
    return trains(model, optim.AdamW(model:parameters(), { lr = 1e-2 }), function(x, y)
      return nn.cross_entropy(region(function(h) return model(h) end, x), y)
    end)
  end,
  ["gradients of two parts"] = function()
    local model = mlp()
    return trains(model, optim.AdamW(model:parameters(), { lr = 1e-2 }), function(x, y)
      nn.cross_entropy(model(x), y):backward()
      return nn.cross_entropy(model(x * 2), y)
    end)
  end,
  autocast = function()
    local model = mlp()
    return trains(model, optim.AdamW(model:parameters(), { lr = 1e-2 }), function(x, y)
      return torch.autocast({ dtype = torch.bfloat16, device = "cpu" }, function()
        return nn.cross_entropy(model(x):float(), y)
      end)
    end)
  end,
}

--- Compares everything that a checkpoint of the run would hold.
local function check_same(graph, plain, what)
  t.equal(graph.model:state_dict(), plain.model:state_dict(), what .. ", weights")
  t.equal(graph.optimizer:state_dict(), plain.optimizer:state_dict(), what .. ", optimizer")
  for i, p in ipairs(graph.model:parameters()) do
    t.equal(p.grad, plain.model:parameters()[i].grad, what .. ", gradient")
  end
end

for name, make in pairs(cases) do
  t.test("EachStepHasTheBitsOfTheLoop, " .. name, function()
    torch.manual_seed(1)
    local plain, losses = make(), {}
    for i = 1, STEPS do losses[i] = plain.step(feed(i)):detach():clone() end
    local drawn = torch.rand { 3 }

    torch.manual_seed(1)
    local recorded = make()
    local graph = lockstep.graph(recorded.step, { warmup = 2 })
    for i = 1, STEPS do t.equal(graph(feed(i)), losses[i], "loss of step " .. i) end

    t.equal(torch.rand { 3 }, drawn, "the generator")
    check_same(recorded, plain, name)
    t.equal(graph.recordings, 1)
    t.truthy(graph:stats().operators > 5)
  end)
end

t.test("GradientsThatAccumulateOutsideAreTwoRecordings", function()
  local function make()
    torch.manual_seed(2)
    local model = mlp()
    return { model = model, optimizer = optim.SGD(model:parameters(), { lr = 0.1, momentum = 0.9 }) }
  end
  local plain, recorded = make(), make()
  local function backward(training)
    return function(x, y)
      local loss = nn.cross_entropy(training.model(x), y)
      loss:backward()
      return loss
    end
  end
  local loop, graph = backward(plain), lockstep.graph(backward(recorded), { warmup = 1 })

  for i = 1, 20 do
    t.equal(graph(feed(i)), loop(feed(i)):detach(), "step " .. i)
    for k, p in ipairs(plain.model:parameters()) do t.equal(recorded.model:parameters()[k].grad, p.grad) end
    for _, training in ipairs { plain, recorded } do
      if i % 2 == 0 then
        training.optimizer:step()
        training.optimizer:zero_grad()
      end
    end
  end

  check_same(recorded, plain, "accumulated")
  t.equal(graph.recordings, 2)
end)

t.test("TwoGraphsShareAModel", function()
  local function make()
    torch.manual_seed(3)
    local model = mlp()
    local optimizer = optim.AdamW(model:parameters(), { lr = 1e-2 })
    local training = trains(model, optimizer)
    training.other = trains(model, optimizer, function(x, y) return nn.cross_entropy(model(x:sin()), y) * 2 end).step
    return training
  end
  local plain, recorded = make(), make()
  local first = lockstep.graph(recorded.step, { warmup = 1 })
  local second = lockstep.graph(recorded.other, { warmup = 1 })

  for i = 1, STEPS do
    local graph, loop = first, plain.step
    if i % 3 == 0 then graph, loop = second, plain.other end
    t.equal(graph(feed(i)), loop(feed(i)):detach(), "step " .. i)
  end

  check_same(recorded, plain, "shared")
end)

t.test("ARestoredStateIsGoneOnFrom", function()
  for name in pairs { AdamW = true, momentum = true, ["bfloat16 with masters"] = true } do
    torch.manual_seed(4)
    local recorded = cases[name]()
    local graph = lockstep.graph(recorded.step, { warmup = 1 })
    for i = 1, 4 do graph(feed(i)) end
    local function copy(state)
      if torch.is_tensor(state) then return state:clone() end
      local all = {}
      for key, value in pairs(state) do all[key] = copy(value) end
      return all
    end
    local weights, states = copy(recorded.model:state_dict()), copy(recorded.optimizer:state_dict())
    local expected = {}
    for i = 5, STEPS do expected[i] = graph(feed(i)):clone() end

    recorded.model:load_state_dict(weights)
    recorded.optimizer:load_state_dict(states)

    for i = 5, STEPS do t.equal(graph(feed(i)), expected[i], name .. ", step " .. i) end
    t.equal(graph.recordings, 1)
  end
end)

t.test("WeightsThatAreThawedAreRecordedAnew", function()
  local function make()
    torch.manual_seed(5)
    local model = mlp()
    for _, p in ipairs(model[1]:parameters()) do p:requires_grad_(false) end
    return trains(model, optim.AdamW(model:parameters(), { lr = 1e-2 }))
  end
  local plain, recorded = make(), make()
  local graph = lockstep.graph(recorded.step, { warmup = 1 })

  for i = 1, STEPS do
    if i == 5 then
      for _, training in ipairs { plain, recorded } do
        for _, p in ipairs(training.model[1]:parameters()) do p:requires_grad_(true) end
      end
    end
    t.equal(graph(feed(i)), plain.step(feed(i)):detach(), "step " .. i)
  end

  check_same(recorded, plain, "thawed")
  t.equal(graph.recordings, 2)
end)

t.test("AStateThatWouldBeMadeInEachCallIsRefused", function()
  local recorded = cases.AdamW()
  local late = optim.AdamW(recorded.model:parameters(), { lr = 1e-2 })
  local calls = 0
  local graph = lockstep.graph(function(x, y)
    calls = calls + 1
    nn.cross_entropy(recorded.model(x), y):backward()
    local optimizer = calls > 1 and late or recorded.optimizer
    optimizer:step()
    optimizer:zero_grad()
  end, { warmup = 1 })
  graph(feed(1))

  local ok, err = pcall(graph, feed(2))

  t.equal(ok, false)
  t.truthy(tostring(err):find("give lockstep.graph a larger warmup", 1, true), tostring(err))
end)

t.test("ADropoutInARegionIsRefused", function()
  local region = checkpoint.new {}
  local w = torch.ones({ 8, 8 }, { requires_grad = true })
  local graph = lockstep.graph(function(x)
    region(function(h) return torch.dropout(h:matmul(w), 0.5, true) end, x):sum():backward()
  end, { warmup = 1 })
  graph((feed(1)))

  local ok, err = pcall(graph, (feed(2)))

  t.equal(ok, false)
  t.truthy(tostring(err):find("random numbers were drawn, or their generator's state was set", 1, true), tostring(err))
end)

t.test("AGraphInAGraphIsRefused", function()
  local inner = lockstep.graph(function(x) return x + 1 end)
  local outer = lockstep.graph(function(x) return inner(x) end, { warmup = 1 })
  outer(torch.ones { 2 })

  local ok, err = pcall(outer, torch.ones { 2 })

  t.equal(ok, false)
  t.truthy(tostring(err):find("a graph cannot be called while another is recorded", 1, true), tostring(err))
end)

t.test("GradientsOfARepeatedStepAreReducedAnew", function()
  local topology = mimo.topology { world_size = 1, modules = { { name = "language" } } }
  local model = nn.Linear(8, 1)
  local graph = lockstep.graph(function(x)
    local loss = model(x):sum()
    loss:backward()
    return loss
  end)

  for i = 1, STEPS do
    model:zero_grad()
    graph((feed(i)))
    mimo.reduce_gradients { topology = topology, modules = { language = model }, loss = "sum", tokens = 8 }
    t.near(model.weight.grad, feed(i):mean(0, true), 1e-6)
  end
  t.truthy(graph.hits > 0)
end)
