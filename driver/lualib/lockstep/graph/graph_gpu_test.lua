--- lockstep.graph, streams and events on a GPU.

local float8 = require "lockstep.float8"
local lockstep = require "lockstep"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local DEVICE = "cuda:0"

local function training()
  torch.manual_seed(1)
  local model = nn.Sequential { nn.Linear(16, 32), nn.Dropout(0.1), nn.Linear(32, 4) }
  model:to { device = DEVICE }
  local optimizer = optim.AdamW(model:parameters(), { lr = 1e-2 })
  return model, function(x, y, factor)
    local loss = nn.cross_entropy(model(x), y)
    loss:backward()
    optimizer:step(factor)
    optimizer:zero_grad()
    return loss
  end
end

local function batch(step)
  local x = torch.arange(128, { device = DEVICE }):view(8, 16):add(step):sin()
  local y = torch.arange(8, { device = DEVICE }):add(step):remainder(4)
  return x, y, torch.full({}, 1 / (step + 1), { device = DEVICE })
end

t.test("AGraphTrainsAsTheLoopDoes", function()
  local plain_model, plain = training()
  plain_model:eval() -- without dropout, whose draws differ in a graph
  local graph_model, fn = training()
  graph_model:eval()
  local graph = lockstep.graph(fn)

  for step = 0, 9 do t.near(graph(batch(step)):item(), plain(batch(step)):item(), 1e-5, "step " .. step) end

  t.equal(graph.captured, true)
  t.near(graph_model[1].weight:cpu(), plain_model[1].weight:cpu(), 1e-5)
end)

-- A replay changes weights, and not their versions. No cast from before may serve after it.
t.test("AFloat8LayerOutsideOfAGraphSeesWhatAReplayWrote", function()
  torch.manual_seed(1)
  local layers = nn.Sequential { nn.Linear(32, 64, { bias = false }) }
  layers:to { device = DEVICE, dtype = torch.bfloat16 }
  float8.apply(layers)
  local x = torch.ones({ 16, 32 }, { device = DEVICE, dtype = torch.bfloat16 })
  local graph = lockstep.graph(function()
    torch.no_grad(function() layers[1].weight:mul_(2) end)
    return layers(x):detach()
  end, { warmup = 1 })
  local function evaluated() return torch.no_grad(function() return layers(x):cpu() end) end

  local y = evaluated()
  for _ = 1, 4 do
    y = y * 2
    t.equal(graph():cpu(), y)
    t.equal(evaluated(), y)
  end
end)

t.test("EachReplayDrawsAnew", function()
  local graph = lockstep.graph(function(x) return torch.dropout(x, 0.5, true) end, { warmup = 1 })
  local x = torch.ones({ 1000 }, { device = DEVICE })
  graph(x)

  local first = graph(x):clone()

  t.equal(torch.equal(first, graph(x)), false)
end)

t.test("AnOperationThatCannotBeRecordedIsNamedAndLeavesTheDeviceUsable", function()
  local graph = lockstep.graph(function(x) return x:nonzero() end, { warmup = 1 })
  local x = torch.ones({ 4 }, { device = DEVICE })
  graph(x)

  t.equal(pcall(graph, x), false)
  t.equal((x + 1):sum():item(), 8)
end)

-- Work for the default stream breaks a recording; the function catches the error that it gets.
t.test("ABrokenRecordingIsFollowedByWorkAndByAnotherGraph", function()
  local breaks = false
  local graph = lockstep.graph(function(x)
    local y = torch.dropout(x, 0.5, true) + 1
    if breaks then
      pcall(torch.cuda.stream, torch.cuda.default_stream(), function() return x + 1 end)
    end
    return y
  end, { warmup = 1 })
  local x = torch.ones({ 1024 }, { device = DEVICE })
  graph(x)
  breaks = true
  graph(x)
  t.equal(graph.failures, 1)

  torch.dropout(x, 0.5, true) -- the generator counts no longer for a recording
  torch.cuda.empty_cache()
  local _, train = training()
  local other = lockstep.graph(train)
  local inputs, labels = torch.randn({ 8, 16 }, { device = DEVICE }), torch.zeros({ 8 }, { device = DEVICE }):long()
  for _ = 1, 6 do other(inputs, labels, torch.ones({}, { device = DEVICE })) end
  t.equal({ other.recordings, other.failures, other.hits }, { 1, 0, 2 })
end)

t.test("AStreamWaitsForAnother", function()
  local side, main = torch.cuda.Stream(), torch.cuda.current_stream()
  local x = torch.ones({ 1024, 1024 }, { device = DEVICE })

  side:wait_stream(main)
  local y = torch.cuda.stream(side, function()
    local product = x
    for _ = 1, 20 do product = product:matmul(x) / 1024 end
    return product
  end)
  main:wait_stream(side)

  t.near(y:mean():item(), 1, 1e-3)
end)

t.test("EventsMeasureMilliseconds", function()
  local begin, finish = torch.cuda.Event(true), torch.cuda.Event(true)
  begin:record()
  torch.ones({ 4096, 4096 }, { device = DEVICE }):matmul(torch.ones({ 4096, 4096 }, { device = DEVICE }))
  finish:record()
  finish:synchronize()

  t.truthy(begin:elapsed_time(finish) > 0)
  t.equal(finish:query(), true)
end)
