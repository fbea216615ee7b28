--- Graphs where something else happens: work after a capture that broke, and a graph that a loader with workers and
--- pinned copies feeds while it is recorded.

local data = require "lockstep.data"
local lockstep = require "lockstep"
local optim = require "lockstep.optim"
local timing = require "timing"
local torch = require "lockstep.torch"

local shape = timing.shape "0.6b"
shape.model.num_hidden_layers = 2
local TOKENS, STEPS = timing.size(512, 16), timing.size(40, 8)

--- Returns a training step of a new model.
local function training()
  local model = timing.model(shape)
  local optimizer = optim.AdamW(model:parameters(), { lr = 1e-4 })
  return function(ids)
    local sum, count = model:loss { input_ids = ids }
    local loss = sum / count
    loss:backward()
    optimizer:step()
    optimizer:zero_grad()
    return loss
  end
end

--- Trains on what a loader brings while its workers pin memory. Returns the losses.
local function train(step)
  local source = {}
  for i = 1, STEPS do source[i] = { ids = timing.ids(TOKENS + i, shape.model.vocab_size):cpu():slice(0, i) } end
  local losses = {}
  for sample in data.loader { source = source, workers = 2, prefetch = 4, shuffle = false, epochs = 1, rank = 0,
    world = 1, device = timing.device } do
    losses[#losses + 1] = step(sample.ids):clone()
  end
  return torch.stack(losses):float():cpu()
end

-- A value that is read cannot be recorded. On a GPU, work for the default stream breaks a recording within CUDA, too.
local function breaks(x)
  local y = x * 2
  if timing.device ~= "cpu" then
    pcall(torch.cuda.stream, torch.cuda.default_stream(), function() return x + 1 end)
    return y
  end
  return y + y:sum():item()
end
local x = torch.ones({ 1024 }, { device = timing.device })
local broken, wrong = lockstep.graph(breaks, { warmup = 1 }), 0
broken(x)
local is_recorded = pcall(broken, x) and broken.failures == 0
timing.report("broken captures that were not noticed", is_recorded and 1 or 0)
if (x + 1):sum():item() ~= 2048 then wrong = wrong + 1 end
if timing.device ~= "cpu" then torch.cuda.empty_cache() end

local graph = lockstep.graph(training())
local expected, got = train(training()), train(graph)
timing.report("results after a broken capture that are wrong", wrong)
timing.report("recordings with a loader", graph.recordings)
timing.report("replays", graph.hits)
timing.report("losses with a loader, relative error", ((got - expected):abs() / expected):max():item())

local step = training()
local loop = timing.seconds(1, 2, function() train(step) end)
timing.report("time with a loader, graph / loop", timing.seconds(1, 2, function() train(graph) end) / loop)
