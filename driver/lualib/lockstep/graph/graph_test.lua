--- lockstep.graph on the CPU: the same results, and what cannot be recorded is refused. See graph_training_test.lua and
--- graph_gpu_test.lua.

local dist = require "lockstep.distributed"
local lockstep = require "lockstep"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

torch.set_num_threads(1)

--- A model, its optimizer, and a step of training, all from one seed.
local function training()
  torch.manual_seed(1)
  local model = nn.Linear(4, 3)
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
  return torch.arange(8):view(2, 4):add(step):sin(), torch.tensor({ step % 3, 1 }, { dtype = torch.int64 })
end

local function fails(message, fn, ...)
  local ok, err = pcall(fn, ...)
  t.equal(ok, false, message)
  t.truthy(tostring(err):find(message, 1, true), tostring(err))
end

t.test("EveryCallIsOneStepOfTheSameBits", function()
  local plain_model, plain = training()
  local graph_model, fn = training()
  local graph = lockstep.graph(fn, { warmup = 2 })

  for step = 0, 5 do
    local x, y = batch(step)
    local factor = 1 / (step + 1)
    local expected = plain(x, y, factor)
    t.equal(graph(x, y, torch.tensor(factor)), expected:detach(), "step " .. step)
  end

  for name, p in pairs(plain_model:state_dict()) do t.near(graph_model:state_dict()[name], p, 1e-7, name) end
  t.equal(graph.calls, 6)
  t.equal(graph.captured, true)
end)

t.test("AnOperationThatReadsAValueCannotBeRecorded", function()
  for name, read in pairs {
    item = function(x) return x:sum():item() end, totable = function(x) return x:totable() end, tostring = tostring,
  } do
    local graph = lockstep.graph(function(x)
      read(x)
      return x
    end, { warmup = 1 })
    graph(torch.ones { 2 }) -- warm-up runs as it is

    fails(name .. ": a graph is being recorded", graph, torch.ones { 2 })
    fails("graph_test.lua:", graph, torch.ones { 2 })
  end
  t.equal(torch.ones({}):item(), 1) -- the rule ends with the recording, an error or not
end)

t.test("AnOperatorThatWaitsForTheDeviceIsNamedWithItsLine", function()
  for name, wait in pairs {
    nonzero = function(x) return x:nonzero() end,
    masked_select = function(x) return x:masked_select(x:gt(0)) end,
    equal = function(x) return x:equal(x * 1) end,
    _unique2 = function(x) return torch.unique_dim(x, 0), torch._unique2(x) end,
    bincount = function(x) return x:to(torch.int64):bincount() end,
  } do
    local graph = lockstep.graph(function(x)
      local y = x * 2
      wait(y)
      return y
    end, { warmup = 1 })
    graph(torch.ones { 2 })

    local operator = name == "_unique2" and "unique_dim" or name
    fails(operator .. " at driver/lualib/lockstep/graph/graph_test.lua:", graph, torch.ones { 2 })
  end
end)

t.test("AnIndexOfBooleansIsSeenToWait", function()
  local graph = lockstep.graph(function(x) return x[x:gt(0)] end, { warmup = 1 })
  graph(torch.ones { 2 })

  fails("nonzero at driver/lualib/lockstep/graph/graph_test.lua:", graph, torch.ones { 2 })
  fails("use torch.where or masked_fill", graph, torch.ones { 2 })
  t.equal(torch.ones({ 2 }):nonzero().shape[1], 2) -- the rule ends with the recording
end)

t.test("ATensorFromTheHostIsMadeOutside", function()
  local graph = lockstep.graph(function(x) return x + torch.tensor { 1, 2 } end, { warmup = 1 })
  graph(torch.ones { 2 })

  fails("torch.tensor: a graph is being recorded", graph, torch.ones { 2 })
end)

t.test("ATransformerWithClippingAndFusedAdamWWaitsForNothing", function()
  torch.manual_seed(3)
  local attention, mlp, norm = nn.Linear(8, 24), nn.Linear(8, 8), nn.LayerNorm(8)
  local parameters = {}
  for _, module in ipairs { attention, mlp, norm } do
    for _, p in ipairs(module:parameters()) do parameters[#parameters + 1] = p end
  end
  local adam = optim.AdamW(parameters, { lr = 1e-2 })
  local graph = lockstep.graph(function(x, y, factor)
    local q, k, v = unpack(attention(norm(x)):view(2, 4, 3, 1, 8):unbind(2))
    local h = torch.scaled_dot_product_attention(q:transpose(1, 2), k:transpose(1, 2), v:transpose(1, 2),
      { is_causal = true }):transpose(1, 2):reshape(2, 4, 8)
    h = torch.where(h:gt(0), h, h:masked_fill(h:lt(-1), 0))
    local loss = nn.cross_entropy(mlp(h):view(8, 8), y)
    loss:backward()
    optim.clip_grad_norm(parameters, 1.0)
    adam:step(factor)
    adam:zero_grad()
    return loss
  end, { warmup = 1 })

  for _ = 1, 3 do
    local loss = graph(torch.randn { 2, 4, 8 }, torch.zeros({ 8 }, { dtype = torch.int64 }), torch.tensor(1))
    t.truthy(loss:item() > 0)
  end
end)

t.test("ANumberAsTheOptimizersFactorWouldBeKeptForEver", function()
  local _, step = training()
  local graph = lockstep.graph(function(x, y) return step(x, y, 0.5) end, { warmup = 1 })
  graph(batch(0))

  fails("the factor is a number, and a graph is being recorded", graph, batch(0))
end)

t.test("AnotherShapeDtypeOrPlainValueIsAnError", function()
  local function fresh()
    local graph = lockstep.graph(function(x, flag) return flag and x or x * 2 end, { warmup = 1 })
    graph(torch.ones { 2, 3 }, true)
    return graph
  end

  fails("argument 1 is torch.float32 {3, 2} on cpu, but was torch.float32 {2, 3} on cpu", fresh(), torch.ones { 3, 2 },
    true)
  fails("argument 1 is torch.int64 {2, 3}", fresh(), torch.ones({ 2, 3 }, { dtype = torch.int64 }), true)
  fails("argument 2 is false, but was true", fresh(), torch.ones { 2, 3 }, false)
  fails("argument 1 is nil", fresh(), nil, true)
  fails("called with 1 arguments, but with 2 before", fresh(), torch.ones { 2, 3 })
end)

t.test("ACollectiveCannotBeRecorded", function()
  local graph = lockstep.graph(function(x) dist.all_reduce(x) end, { warmup = 1 })
  graph(torch.ones { 2 })

  fails("a collective: a graph is being recorded", graph, torch.ones { 2 })
end)

t.test("TheCollectivesOfAWrappedModelAreRefusedOnOneRankToo", function()
  local model = sharding.data_parallel(nn.Linear(4, 3))
  local graph = lockstep.graph(function(x) model(x):sum():backward() end)

  t.raises("c10d::allreduce_ is a collective, which a graph cannot repeat", function()
    for _ = 1, 4 do graph(torch.ones { 2, 4 }) end
  end)
end)

t.test("EachBucketHasARecordingAndTheRestRunsAsItIs", function()
  local runs = 0
  local graph = lockstep.graph(function(x, lengths)
    runs = runs + 1
    return x:sum() * #lengths
  end, { warmup = 2, buckets = 2 })
  local function call(size, lengths) return graph(torch.ones { size }, lengths):item() end

  for _ = 1, 4 do t.equal(call(3, { 1, 2 }), 6) end
  t.equal({ runs, graph.hits, graph.calls }, { 3, 1, 4 }, "two warm-ups and a recording")
  for _ = 1, 4 do t.equal(call(3, { 3 }), 3) end
  t.equal({ runs, graph.hits, graph.calls }, { 5, 3, 8 }, "another array is another bucket: one warm-up")
  for _ = 1, 4 do t.equal(call(4, { 4 }), 4) end
  t.equal({ runs, graph.hits, graph.calls }, { 9, 3, 12 }, "a third bucket is one too many")
  t.equal(call(3, { 1, 2 }), 6)
  t.equal({ graph.hits, graph.recordings, graph:stats().buckets }, { 4, 2, 2 })
end)

t.test("InputsAreCopiedSoThatTheCallersStayTheirOwn", function()
  local graph = lockstep.graph(function(x) return x:mul_(2) end, { warmup = 1 })
  local x = torch.ones { 2 }

  t.equal(graph(x):totable(), { 2, 2 })
  t.equal(graph(x):totable(), { 2, 2 })
  t.equal(x:totable(), { 1, 1 })
end)

t.test("WrongArgumentsAreNamed", function()
  fails("the first argument must be a function, not a table", lockstep.graph, {})
  fails("warmup must be a whole number of at least 1, not 0", lockstep.graph, print, { warmup = 0 })
  fails("buckets must be a whole number of at least 1, not 1.5", lockstep.graph, print, { buckets = 1.5 })
  fails('did you mean "warmup"?', lockstep.graph, print, { warm_up = 1 })
end)

t.test("AFactorMayBeATensor", function()
  local number_model, number_step = training()
  local tensor_model, tensor_step = training()

  for step = 0, 3 do
    local x, y = batch(step)
    number_step(x, y, 0.25)
    tensor_step(x, y, torch.tensor(0.25))
  end

  t.near(tensor_model.weight, number_model.weight, 1e-7)
  fails("must be a number, as a schedule returns, or a tensor of one element, not one of shape {2}", number_step,
    torch.ones { 2, 4 }, torch.zeros({ 2 }, { dtype = torch.int64 }), torch.ones { 2 })
end)

t.test("WithoutAGpuTorchCudaReportsIt", function()
  if torch.cuda.is_available() then return end
  for _, name in ipairs { "Stream", "Event", "current_stream", "default_stream", "memory_stats", "memory_reserved",
    "max_memory_reserved", "reset_peak_memory_stats", "empty_cache", "synchronize" } do
    fails("this machine has no GPU that the driver can use", torch.cuda[name])
  end
  t.equal(torch.cuda.device_count(), 0)
  t.equal(torch.cuda.is_current_stream_capturing(), false)
end)
