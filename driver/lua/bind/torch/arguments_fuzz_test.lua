--- Calls of the library with arguments that are wrong in some place. A value that no function takes, an option that is
--- unknown and an argument that is missing are refused in every place, but for those that are listed. At random places,
--- with random values, a call returns or raises one error that is for people. Nothing crashes and nothing waits. Others
--- than those of every run:
---
---     bazel test --test_env=LOCKSTEP_FUZZ_SEED=7 //driver/lua:arguments_fuzz_test

local batching = require "lockstep.batching"
local checkpoint = require "lockstep.checkpoint"
local data = require "lockstep.data"
local log = require "lockstep.log"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local peaks = require "lockstep.watching.peaks"
local plot = require "lockstep.log.plot"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local tiled_mlp = require "lockstep.tiled_mlp"
local torch = require "lockstep.torch"

torch.set_num_threads(1)

local function parameter() return torch.ones({ 2 }, { requires_grad = true }) end

local function integers(values) return torch.tensor(values, { dtype = torch.int64 }) end

local function optimizer() return optim.AdamW({ parameter() }, { lr = 1e-3 }) end

local function loader()
  local left = 3
  return function()
    left = left - 1
    return left >= 0 and { x = torch.ones { 2 } } or nil
  end
end

--- The loop, to its end, but for a loader that has none.
local function steps(...)
  local taken = 0
  for _ in run.steps(...) do
    taken = taken + 1
    if taken == 10 then break end
  end
end

--- A graph's first calls.
local function graph(...)
  local g = lockstep.graph(...)
  for _ = 1, 3 do g(torch.ones { 2 }) end
end

--- Calls that are right, with functions that make their arguments: a call may change its arguments.
local CALLS = {
  { "torch.matmul", torch.matmul, function() return { torch.ones { 2, 3 }, torch.ones { 3, 2 } } end },
  { "torch.sum", torch.sum, function() return { torch.ones { 2, 3 }, { dim = { 1 }, keepdim = true } } end },
  { "torch.cat", torch.cat, function() return { { torch.ones { 2 }, torch.ones { 3 } }, 0 } end },
  { "torch.zeros", torch.zeros, function() return { { 2, 3 }, { dtype = torch.int64, device = "cpu" } } end },
  { "torch.tensor", torch.tensor, function() return { { { 1, 2 }, { 3, 4 } }, { dtype = torch.float64 } } end },
  { "torch.where", torch.where, function() return { torch.ones { 2 }:gt(0), torch.ones { 2 }, 0 } end },
  { "torch.embedding", torch.embedding, function() return { torch.ones { 4, 2 }, integers { 1, 3 } } end },
  { "torch.view", torch.view, function() return { torch.ones { 6 }, { 2, -1 } } end },
  { "torch.scaled_dot_product_attention", torch.scaled_dot_product_attention,
    function() return { torch.ones { 1, 1, 2, 4 }, torch.ones { 1, 1, 2, 4 }, torch.ones { 1, 1, 2, 4 } } end },
  { "torch.conv2d", torch.conv2d, function() return { torch.ones { 1, 1, 4, 4 }, torch.ones { 1, 1, 3, 3 } } end },
  { "torch.index_select", torch.index_select, function() return { torch.ones { 4 }, 0, integers { 1 } } end },
  { "torch.manual_seed", torch.manual_seed, function() return { 1 } end },
  { "torch.no_grad", torch.no_grad, function() return { function(x) return x end, 1 } end },
  { "torch.inference_mode", torch.inference_mode, function() return { function(x) return x end, 1 } end },
  { "torch.grad", torch.grad, function()
    local x = torch.ones({ 2 }, { requires_grad = true })
    return { { (x * x):sum() }, { x }, { allow_unused = true } }
  end },
  { "nn.Linear", nn.Linear, function() return { 3, 2, { bias = true } } end },
  { "nn.Linear call", function(...) return nn.Linear(3, 2)(...) end, function() return { torch.ones { 2, 3 } } end },
  { "nn.Embedding", nn.Embedding, function() return { 3, 2 } end },
  { "nn.LayerNorm", nn.LayerNorm, function() return { 3, { eps = 1e-5 } } end },
  { "nn.Dropout", nn.Dropout, function() return { 0.5 } end },
  { "nn.ModuleList", nn.ModuleList, function() return { { nn.Linear(1, 1) } } end },
  { "nn.cross_entropy", nn.cross_entropy,
    function() return { torch.ones { 2, 3 }, integers { 0, 2 }, { reduction = "sum" } } end },
  { "load_state_dict", function(...) return nn.Linear(2, 2):load_state_dict(...) end,
    function() return { nn.Linear(2, 2):state_dict() } end },
  { "optim.AdamW", optim.AdamW,
    function() return { { torch.ones({ 2 }, { requires_grad = true }) }, { lr = 1e-3, betas = { 0.9, 0.99 } } } end },
  { "optim.clip_grad_norm", optim.clip_grad_norm,
    function() return { { torch.ones({ 2 }, { requires_grad = true }) }, 1.0 } end },
  { "warmup_cosine", optim.schedule.warmup_cosine, function() return { { warmup_steps = 2, total_steps = 9 } } end },
  { "batching.prepare", batching.prepare, function()
    return { { samples = { { input_ids = { 1, 2, 3 }, loss_mask = { 0, 1, 1 } },
      { input_ids = { 4, 5 }, loss_mask = { 1, 1 } } }, seq_len = 8, ranks = 2, balance = "lockstep" } }
  end },
  { "batching.cost.transformer", batching.cost.transformer,
    function() return { { hidden_size = 8, num_hidden_layers = 2, intermediate_size = 16, vocab_size = 32,
      num_attention_heads = 2 } } end },
  { "sharding.dataset", sharding.dataset, function() return { { size = 9, rank = 0, world = 2, seed = 1 } } end },
  { "sharding.weighted_mean", sharding.weighted_mean, function() return { 3, 4 } end },
  { "sharding.pack", sharding.pack, function()
    return { { source = function() return nil end, seq_len = 4, drop_last = true } }
  end },
  { "checkpoint.new", checkpoint.new, function() return { { offload = "host", keep_last = 1, min_bytes = 16 } } end },
  { "checkpoint", function(...) return checkpoint.new {}(...) end,
    function() return { torch.relu, torch.ones { 2 } } end },
  { "checkpoint.selective", checkpoint.selective, function() return { { save = { "aten::mm" } } } end },
  { "tiled_mlp.new", tiled_mlp.new, function() return { { tile_tokens = 8 } } end },
  { "tiled_mlp", function(...) return tiled_mlp.new { tiles = 2 }(...) end,
    function() return { nn.Linear(2, 2), torch.ones { 4, 2 } } end },
  { "tiled_mlp.cross_entropy", tiled_mlp.cross_entropy, function()
    return { { hidden = torch.ones { 4, 2 }, weight = torch.ones { 3, 2 }, labels = integers { 0, 1, 2, 0 } } }
  end },
  { "data.jsonl", data.jsonl, function() return { "no such file" } end },
  { "data.safetensors", data.safetensors, function() return { "no such file" } end },
  { "log.record", log.record, function() return { "validation", { loss = 1 } } end },
  { "log.step", log.step, function() return { { loss = torch.ones({}), tokens = 8, step = 3 } } end },
  { "log.curve", log.curve, function() return { "loss.svg", { "loss" }, { title = "t", log_scale = true } } end },
  { "log.count_flops", log.count_flops, function() return { { peak = "H100 SXM" } } end },
  { "plot.svg", plot.svg, function()
    return { { { name = "a", points = { { step = 0, value = 1 }, { step = 1, value = 2 } } } }, { title = "t" } }
  end },
  { "peaks.of", peaks.of, function() return { "H100 SXM" } end },
  { "peaks.of_model", peaks.of_model, function() return { "NVIDIA A100-SXM4-40GB" } end },
  { "run.merge", run.merge, function()
    return { { steps = 3, name = "a", model = { hidden = 64, betas = { 0.9, 0.95 } } },
      { { "steps", "4" }, { "model.hidden", "8" } } }
  end },
  { "run.config", run.config, function() return { { steps = 3, model = { hidden = 64 } } } end },
  { "run:steps", steps, function() return { run, loader(), 2 } end },
  { "run:state", run.state, function()
    return { run, { weights = nn.Linear(1, 1), adam = optimizer(), best = { loss = 1 } }, { keep = 2, every = 1 } }
  end },
  { "run:save", run.save, function() return { run, { step = 3 } } end },
  { "run:resume", run.resume, function() return { run, { from = "no such folder", without = { "adam" } } } end },
  { "optimizer:load_state_dict", function(...) return optimizer():load_state_dict(...) end,
    function() return { optimizer():state_dict() } end },
  { "optimizer:step", function(...) return optimizer():step(...) end, function() return { 0.5 } end },
  { "lockstep.graph", graph, function() return { function(x) return x + 1 end, { warmup = 1 } } end },
  { "graph", function(...)
    local g = lockstep.graph(function(x, y) return x + y end, { warmup = 1 })
    g(torch.ones { 2 }, 1)
    return g(...)
  end, function() return { torch.ones { 2 }, 1 } end },
  { "lockstep.profile", lockstep.profile,
    function() return { { path = "one.json", record_shapes = true }, torch.relu, torch.ones(2) } end },
  { "profile of steps", lockstep.profile, function() return { { path = "s.json", steps = { 1000, 1002 } } } end },
  { "lockstep.span", lockstep.span, function() return { "relu", torch.relu, parameter() } end },
  { "lockstep.flops", lockstep.flops, function() return { torch.mm, torch.ones { 2, 3 }, torch.ones { 3, 2 } } end },
  { "lockstep.memory_by_line", lockstep.memory_by_line, function() return { torch.relu, parameter() } end },
  { "lockstep.scope", lockstep.scope, function() return { torch.relu, parameter() } end },
}

-- In every place --------------------------------------------------------------------------------------

--- Calls every place of `arguments` by its path, as {1, "samples", 2}: visit(path).
local function each_place(arguments, visit, path)
  path = path or {}
  local keys = {}
  for key in pairs(arguments) do keys[#keys + 1] = key end
  table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
  for _, key in ipairs(keys) do
    local place = { unpack(path) }
    place[#place + 1] = key
    visit(place)
    local below = arguments[key]
    if type(below) == "table" and not getmetatable(below) and #place < 4 then each_place(below, visit, place) end
  end
end

--- The table that holds the place, and its key there.
local function holder_of(arguments, path)
  for i = 1, #path - 1 do arguments = arguments[path[i]] end
  return arguments, path[#path]
end

local function call_with(call, path, change)
  local arguments = call[3]()
  local count = #arguments
  local holder, key = holder_of(arguments, path)
  change(holder, key)
  return pcall(call[2], unpack(arguments, 1, count))
end

t.test("TheCallsThatAreChangedAreRight", function()
  local refused = {}
  for _, call in ipairs(CALLS) do
    local ok, message = pcall(call[2], unpack(call[3]()))
    if not ok then refused[#refused + 1] = call[1] .. ": " .. message:match("[^:]+$") end
  end
  t.equal(refused, { "data.jsonl:  No such file or directory", "data.safetensors:  No such file or directory" })
end)

t.test("AValueThatNoFunctionTakesIsRefusedInEveryPlace", function()
  local accepted = {}
  for _, call in ipairs(CALLS) do
    each_place(call[3](), function(path)
      local ok = call_with(call, path, function(holder, key) holder[key] = coroutine.create(print) end)
      if ok then accepted[#accepted + 1] = call[1] .. " " .. table.concat(path, ".") end
    end)
  end
  t.equal(accepted, {
    "torch.no_grad 2", "torch.inference_mode 2", -- the function's own argument
    -- Defaults that no setting overrides; run.config refuses them.
    "run.merge 1.model.betas", "run.merge 1.model.betas.1", "run.merge 1.model.betas.2", "run.merge 1.name",
    "run:state 2.best.loss", -- the table may change until it is saved: run:save refuses it
  })
end)

t.test("AnUnknownOptionIsRefusedInEveryTable", function()
  local accepted = {}
  for _, call in ipairs(CALLS) do
    each_place(call[3](), function(path)
      local holder, key = holder_of(call[3](), path)
      local value = holder[key]
      if type(value) ~= "table" or getmetatable(value) or type(next(value)) ~= "string" then return end
      local ok = call_with(call, path, function(at, name) at[name].unknown_option = 1 end)
      if ok then accepted[#accepted + 1] = call[1] .. " " .. table.concat(path, ".") end
    end)
  end
  t.equal(accepted, {
    "log.record 2", "log.step 1", -- values to log, by names of the script's
    "plot.svg 1.1", "plot.svg 1.1.points.1", "plot.svg 1.1.points.2", -- series that carry more than is drawn
    "run.merge 1", "run.merge 1.model", "run.config 1", "run.config 1.model", -- the script's own settings
    "run:state 2.best", -- the script's own values
    "optimizer:load_state_dict 1", "optimizer:load_state_dict 1.states.1", -- a state that has more than is needed
  })
end)

t.test("AnArgumentThatIsMissingIsRefusedUnlessItHasADefault", function()
  local accepted = {}
  for _, call in ipairs(CALLS) do
    for i = 1, #call[3]() do
      local ok = call_with(call, { i }, function(holder) holder[i] = nil end)
      if ok then accepted[#accepted + 1] = call[1] .. " " .. i end
    end
  end
  t.equal(accepted, {
    "torch.sum 2", "torch.cat 2", "torch.zeros 2", "torch.tensor 2", "torch.no_grad 2", "torch.inference_mode 2",
    "torch.grad 3", "nn.Linear 3", "nn.LayerNorm 2", "nn.Dropout 1", "nn.ModuleList 1", "nn.cross_entropy 3",
    "optim.AdamW 2", "checkpoint.new 1", "tiled_mlp.new 1",
    "log.curve 3", "log.count_flops 1", "plot.svg 2", "run:steps 3", "run:state 3", "run:resume 2",
    "optimizer:step 1", "lockstep.graph 2", "lockstep.profile 1",
  })
end)

-- At random places ------------------------------------------------------------------------------------

--- Returns a value to take the place of an argument. Sizes are impossible or small: none fills the machine's memory.
local function strange()
  local values = {
    false, true, -1, 0, 1, 0.5, 1e15, -1e15, 1e300, 0 / 0, 1 / 0, "", "x", "cpu", "mean", ("a"):rep(1000), {}, { 1 },
    { 1, "a" }, { {} }, { { 1 }, { 1, 2 } }, { nil, 2 }, { -1 }, { 1e300 }, print, function() end,
    function() error("from the user's function") end, function() return nil end, coroutine.create(print),
    torch.ones({}), torch.zeros({ 0 }), torch.ones({ 2 }, { dtype = torch.int64 }), torch.ones({ 2 }):gt(0),
    torch.ones({ 2, 3 }, { dtype = torch.bfloat16 }), torch.ones { 1, 2, 3, 4 }, torch.float32, torch.int64,
    nn.Linear(1, 1), setmetatable({}, { __index = function() error("from the user's table") end }),
  }
  local i = math.random(0, #values)
  return i > 0 and values[i] or nil
end

--- One change somewhere in the arguments, at any depth of plain tables.
local function mutate(arguments, depth)
  local keys = {}
  for key in pairs(arguments) do keys[#keys + 1] = key end
  local key = keys[math.random(math.max(1, #keys))]
  local kind = math.random(6)
  local below = key ~= nil and arguments[key]
  if type(below) == "table" and not getmetatable(below) and depth < 3 and math.random() < 0.6 then
    return mutate(below, depth + 1)
  elseif kind == 1 then
    arguments[#arguments + 1] = strange()
  elseif kind == 2 and key ~= nil then
    arguments[key] = nil
  elseif kind == 3 and type(key) == "string" then
    arguments[key .. "s"] = arguments[key]
  elseif kind == 4 then
    arguments[math.random() < 0.5 and "unknown" or -1] = strange()
  elseif key ~= nil then
    arguments[key] = strange()
  end
end

local NOT_FOR_PEOPLE = { "INTERNAL ASSERT", "attempt to ", "bad_alloc", "std::", "bad argument" }

local SEED = tonumber(os.getenv("LOCKSTEP_FUZZ_SEED")) or 20261121
local ROUNDS = 26 * #CALLS

t.test("WrongArgumentsEndInOneErrorForPeople", function()
  math.randomseed(SEED)
  local refused, failures = 0, {}
  for round = 1, ROUNDS do
    local name, fn, make = unpack(CALLS[(round - 1) % #CALLS + 1])
    local arguments = make()
    local count = #arguments
    for _ = 1, math.random(3) do mutate(arguments, 0) end
    local ok, message = pcall(fn, unpack(arguments, 1, math.max(count, #arguments)))
    if not ok then
      refused = refused + 1
      local bad = type(message) ~= "string" or #message <= 10
      for _, words in ipairs(NOT_FOR_PEOPLE) do bad = bad or message:find(words, 1, true) end
      if bad then failures[#failures + 1] = ("%s, round %d: %s"):format(name, round, tostring(message)) end
    end
  end
  t.truthy(#failures == 0, ("%d errors of LOCKSTEP_FUZZ_SEED %d are not for people:\n%s"):format(#failures, SEED,
    table.concat(failures, "\n")))
  t.truthy(refused > ROUNDS / 4, ("only %d of %d calls were refused"):format(refused, ROUNDS))
end)
