-- mimo.step: every order gives the gradients of one process that runs all modules.

local dist = require "lockstep.distributed"
local fixture = require "mimo_fixture"
local mimo = require "lockstep.mimo"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local rank, world = dist.rank(), dist.world_size()
local MICRO_BATCHES, SAMPLES = 5, 4

--- The modules of a model, the same on every rank.
local function build()
  torch.manual_seed(3)
  torch.set_default_dtype(torch.float64)
  local modules = { vision = nn.Linear(3, 6), middle = nn.Linear(6, 6), language = nn.Linear(6, 2) }
  torch.set_default_dtype(torch.float32)
  return modules
end

--- The micro-batch of a number: the same on every rank.
local function batch_of(number)
  torch.manual_seed(100 + number)
  return { ids = torch.arange(SAMPLES) + number * SAMPLES, x = torch.randn({ SAMPLES, 3 }, { dtype = torch.float64 }),
    y = torch.randn({ SAMPLES, 2 }, { dtype = torch.float64 }) }
end

local function loader_of(count)
  local number = 0
  return function()
    number = number + 1
    if number > count then return nil end
    return batch_of(number), { samples = batch_of(number).ids, rows_per_sample = { 1, 1, 1, 1 } }
  end
end

--- Returns what each module computes. `trace` gets the forwards and backwards of this rank.
local function functions_of(modules, trace)
  local function noted(x, text)
    trace[#trace + 1] = "F"
    if x.requires_grad then
      x:register_hook(function() trace[#trace + 1] = text end)
    end
    return x
  end
  return {
    vision = function(part) return noted(torch.tanh(modules.vision(part.x)), "B") end,
    middle = function(_, x) return noted(torch.tanh(modules.middle(x)), "B") end,
    language = function(part, x) return noted((modules.language(x) - part.y):square():sum(), "B") end,
  }
end

--- The losses and gradients of one process, without topology.
local function reference(names, count)
  local modules, losses = build(), {}
  local fns = functions_of(modules, {})
  for i = 1, count do
    local x = nil
    for _, name in ipairs(names) do x = fns[name](batch_of(i), x) end
    losses[i] = x:item()
    x:backward()
  end
  return losses, modules
end

local function edges(names)
  local list = {}
  for i = 1, #names - 1 do list[i] = { from = names[i], to = names[i + 1] } end
  return list
end

local function check(names, sizes, order, expected_trace)
  local placed, first = {}, 0
  for i, name in ipairs(names) do
    placed[i] = { name = name, first_rank = first, dp = sizes[i] }
    first = first + sizes[i]
  end
  if first ~= world then return end
  local topology = mimo.topology { modules = placed, edges = edges(names) }
  local bridges = {} -- with holes
  for i, edge in ipairs(edges(names)) do
    local is_mine = topology:module() == edge.from or topology:module() == edge.to
    bridges[i] = is_mine and mimo.bridge { topology = topology, from = edge.from, to = edge.to } or nil
  end
  local modules, trace = build(), {}
  local name = topology:module()
  local step = mimo.step { topology = topology, modules = { [name] = functions_of(modules, trace)[name] },
    bridges = bridges, order = order, micro_batches = MICRO_BATCHES, slice = { uneven = true, batch_size = SAMPLES } }
  local expected, plain = reference(names, MICRO_BATCHES)

  local loader = loader_of(MICRO_BATCHES)
  local losses = step(loader)

  local sums = torch.zeros({ MICRO_BATCHES }, { dtype = torch.float64 })
  for i, loss in ipairs(losses) do sums[i - 1] = loss end
  t.equal(#losses, name == "language" and MICRO_BATCHES or 0)
  t.near(dist.all_reduce(sums), torch.tensor(expected, { dtype = torch.float64 }), 1e-12)
  for _, field in ipairs { "weight", "bias" } do
    local grad = modules[name][field].grad
    local group = topology:group(name, "dp")
    if group then dist.all_reduce(grad, "sum", { group = group }) end
    t.near(grad, plain[name][field].grad, 1e-12, name .. "." .. field)
  end
  if expected_trace then t.equal(table.concat(trace), expected_trace[name]) end
  t.equal(step(loader), nil)
end

for _, order in ipairs { "sequential", "all_forwards_first", "1f1b" } do
  for _, sizes in ipairs { { 1, 1 }, { 2, 1 }, { 1, 2 }, { 3, 1 }, { 2, 2 }, { 1, 3 } } do
    t.test(("GradientsAreThoseOfOneProcess_%s_%d_to_%d"):format(order, sizes[1], sizes[2]), function()
      local traces = sizes[1] + sizes[2] == 2 and { sequential = { vision = "FBFBFBFBFB", language = "FBFBFBFBFB" },
        all_forwards_first = { vision = "FFFFFBBBBB", language = "FFFFFBBBBB" },
        ["1f1b"] = { vision = "FFBFBFBFBB", language = "FBFBFBFBFB" } }
      check({ "vision", "language" }, sizes, order, traces and traces[order])
    end)
  end

  for _, sizes in ipairs { { 1, 1, 1 }, { 1, 2, 1 }, { 2, 1, 1 } } do
    t.test(("AChainOfThreeModules_%s_%d_%d_%d"):format(order, unpack(sizes)), function()
      check({ "vision", "middle", "language" }, sizes, order, order == "1f1b" and sizes[1] + sizes[2] == 2
        and { vision = "FFFBFBFBBB", middle = "FFBFBFBFBB", language = "FBFBFBFBFB" } or nil)
    end)
  end
end

t.test("ColocatedModulesRunInOneProcess", function()
  if world > 1 then return end
  local topology = mimo.topology { modules = { { name = "vision" }, { name = "language" } } }
  local bridge = mimo.bridge { topology = topology, from = "vision", to = "language" }
  local modules = build()
  local fns = functions_of(modules, {})
  fns.middle = nil
  t.raises('order = "1f1b" is for modules on separate ranks, or for one module in stages and the towers that feed it, '
    .. "on the same ranks; here no module has stages", mimo.step, { topology = topology,
    modules = fns, bridges = { bridge }, micro_batches = 2 })
  t.raises("bridges[3] is there twice", mimo.step, { topology = topology, modules = fns, micro_batches = 2,
    order = "sequential", bridges = { bridge, nil, bridge } })
  for _, order in ipairs { "sequential", "all_forwards_first" } do
    for _, module in pairs(modules) do module:zero_grad() end
    local step = mimo.step { topology = topology, modules = { vision = fns.vision, language = fns.language },
      bridges = { bridge }, order = order, micro_batches = MICRO_BATCHES }
    local expected, plain = reference({ "vision", "language" }, MICRO_BATCHES)

    local losses = step(loader_of(MICRO_BATCHES))

    for i, loss in ipairs(losses) do t.near(loss:item(), expected[i], 1e-12) end
    t.near(modules.vision.weight.grad, plain.vision.weight.grad, 1e-12)
  end
end)

t.test("FurtherResultsComeBackAndOnesWithAGraphAreTrainedOnOrRefused", function()
  if world > 1 then return end
  local w = torch.ones({}):requires_grad_(true)
  local function run(vision, language)
    local topology = mimo.topology { modules = { { name = "vision" }, { name = "language" } } }
    local bridge = mimo.bridge { topology = topology, from = "vision", to = "language" }
    local step = mimo.step { topology = topology, bridges = bridge, order = "sequential", micro_batches = 2,
      modules = { vision = vision, language = language } }
    w.grad = nil
    return step(function() return { x = torch.ones { 3, 1 } } end)
  end
  local function tower(part) return part.x * w end
  local function loss_of(_, x) return x:sum() end

  local losses, more = run(function(part) return part.x * w, w * 10, "note", nil, 7 end,
    function(_, x) return x:sum(), 3, { logits = x:detach() } end)

  t.equal({ losses[1]:item(), losses[2]:item() }, { 3, 3 })
  t.equal(w.grad:item(), 2 * (3 + 10))
  t.equal(more.vision[2][1]:item(), 10)
  t.equal(more.vision[2][1].requires_grad, false)
  t.equal({ more.vision[2][2], more.vision[2][3], more.vision[2][4] }, { "note", nil, 7 })
  t.equal(more.language[1][1], 3)
  t.equal(more.language[1][2].logits:size(0), 3)

  t.raises('result 2 of "vision" is a tensor of 3 with a graph, but only its results for 1 bridges, and a loss of its '
    .. "own after them, one number, are trained on", run, function(part) return part.x * w, part.x * w end, loss_of)
  t.raises('result 3 of "vision" is a tensor of 1 with a graph', run,
    function(part) return part.x * w, w * 10, w * 20 end, loss_of)
  t.raises('result 2 of "vision" is a table with a graph', run,
    function(part) return part.x * w, { balance = w * 10 } end, loss_of)
  t.raises('result 2 of "language" is a tensor of 1 with a graph, but only the first result, the loss, is trained on',
    run, tower, function(_, x) return x:sum(), x:sum() end)
end)

t.test("AFrozenTowerSendsNoGradient", function()
  if world ~= 2 then return end
  local topology = mimo.topology { modules = { { name = "vision" }, { name = "language", first_rank = 1 } } }
  local bridge = mimo.bridge { topology = topology, from = "vision", to = "language" }
  local modules = build()
  modules.vision:requires_grad_(false)
  local name = topology:module()
  local step = mimo.step { topology = topology, bridges = bridge, micro_batches = MICRO_BATCHES,
    modules = { [name] = functions_of(modules, {})[name] } }

  step(loader_of(MICRO_BATCHES))

  t.equal(modules.vision.weight.grad, nil)
  if name == "language" then
    local _, plain = reference({ "vision", "language" }, MICRO_BATCHES)
    t.near(modules.language.weight.grad, plain.language.weight.grad, 1e-12)
  end
end)

local Split = nn.Module:subclass("Split")
function Split:init() self.up, self.down = nn.Linear(6, 8), nn.Linear(8, 2) end
function Split:forward(x) return self.down(torch.tanh(self.up(x))) end

t.test("AModuleInPartsTakesPart", function()
  if world ~= 3 then return end
  local topology = mimo.topology { modules = { { name = "vision" }, { name = "language", first_rank = 1, tp = 2 } } }
  local bridge = mimo.bridge { topology = topology, from = "vision", to = "language", audit = true }
  local name, sets = topology:module(), {}
  for i = 1, 2 do
    torch.manual_seed(2)
    sets[i] = { vision = nn.Linear(3, 6):to { dtype = torch.float64 }, language = Split():to { dtype = torch.float64 } }
  end
  local modules, plain = unpack(sets)
  if name == "language" then
    sharding.tensor_parallel(modules.language, { group = topology:group("language", "tp"),
      plan = { up = "column", down = "row" } })
  end
  local step = mimo.step { topology = topology, bridges = { bridge }, micro_batches = MICRO_BATCHES, modules = {
    vision = function(batch) return modules.vision(batch.x) end,
    language = function(batch, x) return (modules.language(x) - batch.y):square():sum() end } }
  for i = 1, MICRO_BATCHES do
    local batch = batch_of(i)
    ;(plain.language(plain.vision(batch.x)) - batch.y):square():sum():backward()
  end
  local all = { plain.vision.weight, plain.vision.bias }
  for _, p in ipairs(plain.language:parameters()) do all[#all + 1] = p end

  step(loader_of(MICRO_BATCHES))
  mimo.reduce_gradients { topology = topology, modules = { [name] = modules[name] }, loss = "sum", tokens = 1 }

  t.near(mimo.clip_grad_norm { topology = topology, modules = { [name] = modules[name] }, max_norm = 1e9 }:item(),
    optim.clip_grad_norm(all, 1e9):item(), 1e-9)
end)

t.test("MistakesAreNamed", function()
  local topology = mimo.topology { modules = { { name = "language", dp = world } }, edges = {} }
  local function options(more)
    local o = { topology = topology, modules = { language = print }, bridges = {}, micro_batches = 2 }
    for key, value in pairs(more) do o[key] = value end
    return o
  end
  for _, case in ipairs {
    { { order = "zigzag" }, 'order must be "sequential", "all_forwards_first" or "1f1b", not "zigzag"' },
    { { micro_batches = 0.5 }, "micro_batches must be a whole number of at least 1, not 0.5" },
    { { modules = {} }, ('rank %d runs "language", which must be a module or a function, not a nil'):format(rank) },
    { { modules = { language = print, audio = print } }, 'the topology has no module "audio"' },
    { { bridges = { 3 } }, "bridges[1] must be what mimo.bridge returned for this topology, not a number" },
    { { topology = 3 }, "topology must come from mimo.topology, not a number" },
    { { steps = 3 }, 'unknown option "steps"' },
  } do
    t.raises(case[2], mimo.step, options(case[1]))
  end
  t.raises("the loader must be a function, not a nil", mimo.step(options {}))
  for _, case in ipairs { { 1, "number" }, { torch.ones { 3 }, "tensor of 3" } } do
    local step = mimo.step(options { modules = { language = function() return case[1] end } })
    t.raises('"language" must return the loss of the micro-batch, a tensor of one number, not a ' .. case[2], step,
      function() return { x = torch.ones { world } } end)
  end
  local fine = mimo.step(options { modules = { language = function(part) return part.x:sum() end } })
  local given = 0
  t.raises("the loader ended after 1 of the step's 2 micro-batches", fine, function()
    given = given + 1
    return given == 1 and { x = torch.ones({ world }):requires_grad_(true) } or nil
  end)
end)

-- Each rank would compute with the rows of all.
t.test("AMicroBatchThatCannotBeCutIsAnError", function()
  if world == 1 then return end
  local topology = mimo.topology { modules = { { name = "language", dp = world } }, edges = {} }
  local o = { topology = topology, bridges = {}, micro_batches = 1,
    modules = { language = function(x) return x:sum() end } }
  local function source() return torch.ones({ world }):requires_grad_(true) end

  t.raises(("a micro-batch that is not a table cannot be cut: it is a userdata"), mimo.step(o), source)

  o.slice = false -- each rank has its own
  t.equal(mimo.step(o)(source)[1], torch.tensor(world))
end)

--- Two modules, on one rank and the others.
local function one_to_many()
  local topology = mimo.topology { modules = { { name = "vision" },
    { name = "language", first_rank = 1, dp = world - 1 } } }
  return topology, mimo.bridge { topology = topology, from = "vision", to = "language" }
end

t.test("AModuleNeedNotUseWhatCame", function()
  if world == 1 then return end
  for _, order in ipairs { "sequential", "all_forwards_first", "1f1b" } do
    local topology, bridge = one_to_many()
    local w, number = torch.ones({ 3, 2 }):requires_grad_(true), 0
    local function language(part, x) -- only the second micro-batch of the step has an image
      if part.rows[1] == 0 then return (part.y * 2):sum() end
      return (x * part.y):sum()
    end
    local step = mimo.step { topology = topology, bridges = bridge, order = order, micro_batches = 3, modules = {
      [topology:module()] = topology:module() == "vision" and function(part) return torch.matmul(part.x, w) end
        or language },
      slice = function(batch) return { batch_size = world - 1, rows_per_sample = { x = batch.rows } } end,
      call = function(batch) return { rows_per_sample = batch.rows } end }

    step(function()
      number = number + 1
      local rows = {}
      for i = 1, world - 1 do rows[i] = number == 2 and 1 or 0 end
      return { rows = rows, x = torch.ones { number == 2 and world - 1 or 0, 3 }, y = torch.ones { world - 1, 1 } }
    end)

    if rank == 0 then t.equal(w.grad, torch.full({ 3, 2 }, world - 1)) end
  end
end)

t.test("EachBridgeHasItsOwnRows", function()
  if world < 3 then return end
  local topology = mimo.topology { modules = { { name = "vision" }, { name = "audio", first_rank = 1 },
    { name = "language", first_rank = 2, dp = world - 2 } } }
  local name, bridges = topology:module(), {}
  for _, from in ipairs { "vision", "audio" } do
    if name == from or name == "language" then
      bridges[#bridges + 1] = mimo.bridge { topology = topology, from = from, to = "language" }
    end
  end
  local w = torch.ones({}):requires_grad_(true)
  local function language(_, x, y) return x:sum() * 10 + y:sum() end
  local rows = { vision = { 2, 1 }, audio = { 0, 3 } }
  local step = mimo.step { topology = topology, bridges = bridges, micro_batches = 2,
    modules = { [name] = name == "language" and language or function(part) return part[name] * w end },
    slice = { batch_size = 2, rows_per_sample = rows },
    call = function(_, _, bridge) return { rows_per_sample = rows[bridge.from] } end }

  step(function() return { vision = torch.ones { 3, 1 }, audio = torch.ones { 3, 1 } } end)

  if name ~= "language" then t.equal(w.grad, torch.tensor(name == "vision" and 60 or 6)) end
end)

t.test("RanksThatWouldRunDifferentStepsGetAnError", function()
  if world == 1 then return end
  local topology, bridge = one_to_many()
  local function step(order, micro_batches)
    return mimo.step { topology = topology, bridges = bridge, order = order, micro_batches = micro_batches,
      modules = { [topology:module()] = print } }
  end
  local message = t.raises("mimo.step: the ranks of one step give different options: ", step, "1f1b",
    rank == 0 and 3 or 4)
  t.truthy(message:find('order = "1f1b", micro_batches = 3: rank 0; order = "1f1b", micro_batches = 4: rank', 1, true),
    message)
  t.raises('order = "sequential", micro_batches = 2: rank 0; order = "1f1b"', step,
    rank == 0 and "sequential" or "1f1b", 2)
  if world < 4 then return end
  topology = mimo.topology { modules = { { name = "vision" }, { name = "audio", first_rank = 1 },
    { name = "language", first_rank = 2, dp = 2 } } }
  local own = {}
  for _, from in ipairs { "vision", "audio" } do
    if rank > 1 or topology:module() == from then
      table.insert(own, mimo.bridge { topology = topology, from = from, to = "language" })
    end
  end
  if rank == 3 then own = { own[2], own[1] } end
  t.raises("audio -> language: rank 2; bridges audio -> language, vision -> language: rank 3", mimo.step,
    { topology = topology, bridges = own, micro_batches = 2, modules = { [topology:module()] = print } })
end)

t.test("AnErrorOfOneModuleIsAnErrorOfAllThatWait", function()
  if world == 1 then return end
  -- On NCCL rows for two ranks are one batch: one of them waits for the other's program to end.
  for failing = 0, world == 2 and 1 or 0 do
    local topology, bridge = one_to_many()
    local w, calls = torch.ones({ 1, 2 }):requires_grad_(true), 0
    local step = mimo.step { topology = topology, bridges = bridge, micro_batches = 4,
      modules = { [topology:module()] = function(part, x)
        calls = calls + 1
        if calls == 3 and rank == failing then error("too bright", 0) end
        return rank == 0 and part.x * w or (x * w):sum()
      end } }

    local _, message = pcall(step, function() return { x = torch.ones { world - 1, 2 } } end)

    if rank == failing then t.equal(message, "too bright") end
    if rank ~= failing then
      local place = ("rank %d (%s) failed: too bright"):format(failing, failing == 0 and "vision" or "language")
      t.truthy(tostring(message):find(place, 1, true), tostring(message))
    end
    t.raises("too bright", mimo.reduce_gradients, { topology = topology, loss = "sum", tokens = 1,
      modules = { [topology:module()] = nn.Linear(1, 1) } })
  end
end)

local function micro_batch(i) return { x = torch.ones({ world - 1, 3 }, { dtype = torch.float64 }) * i } end

--- Calls fn for each order, with a step of three micro-batches, their source, and on the tower's ranks the tower as
--- `wrap` replicates or shards it.
local function each_order_with_a_wrapped_tower(wrap, fn)
  if world < 3 then return end
  local topology = mimo.topology { modules = { { name = "vision", dp = world - 1 },
    { name = "language", first_rank = world - 1 } } }
  local name = topology:module()
  for _, order in ipairs { "sequential", "1f1b", "all_forwards_first" } do
    local bridge = mimo.bridge { topology = topology, from = "vision", to = "language" }
    local modules, number = build(), 0
    local tower = name == "vision" and wrap(modules.vision, topology)
    local functions = { vision = function(part) return tower(part.x) end,
      language = function(_, x) return modules.language(x):square():sum() end }
    local step = mimo.step { topology = topology, bridges = bridge, order = order, micro_batches = 3,
      modules = { [name] = functions[name] } }
    fn({ order = order, step = step, modules = modules, tower = tower, topology = topology, name = name,
      source = function()
        number = number + 1
        return micro_batch(number)
      end })
  end
end

--- Returns the modules after the three micro-batches on this rank alone.
local function trained_alone()
  local plain = build()
  for i = 1, 3 do plain.language(plain.vision(micro_batch(i).x)):square():sum():backward() end
  return plain
end

-- Gradients are right where each backward follows its forward. Otherwise only those of one micro-batch were averaged.
t.test("DataParallelReplicasRunOneMicroBatchAtATime", function()
  each_order_with_a_wrapped_tower(function(vision, topology)
    return sharding.data_parallel(vision, { group = topology:group("vision", "dp") })
  end, function(of)
    if of.order ~= "sequential" then
      t.raises("sharding.data_parallel would average the first of these alone", of.step, of.source)
      return
    end
    of.step(of.source)
    local plain = trained_alone()
    if of.tower then t.near(of.modules.vision.weight.grad * (world - 1), plain.vision.weight.grad, 1e-12) end
  end)
end)

-- Every backward leaves the shards of its micro-batch, which add up, whatever the order.
t.test("ShardedModulesRunInEveryOrder", function()
  each_order_with_a_wrapped_tower(function(vision, topology)
    return sharding.fully_shard(vision, { group = topology:group("vision", "dp-cp") })
  end, function(of)
    of.step(of.source)
    local one = of.tower or of.modules.language
    mimo.reduce_gradients { topology = of.topology, loss = "sum", tokens = of.name == "language" and 1 or nil,
      modules = { [of.name] = one } }
    local plain = trained_alone()
    for parameter, gradient in pairs(fixture.gradients_of(one)) do
      for other, p in plain[of.name]:named_parameters() do
        if other == parameter then t.near(gradient, p.grad, 1e-12) end
      end
    end
  end)
end)

-- The loader's own dp_info says that nothing is left to cut, in a function around it too.
t.test("PartsThatALoaderHasReadAreNotCutAgain", function()
  if world ~= 3 then return end
  local topology, bridge = one_to_many()
  local dp_rank, dp_size = topology:sampling_info(nil, true)
  local number, seen = 0, {}
  local reader = mimo.loader { topology = topology, scalable_reads = true, ownership = "rows", micro_batches = 2,
    source = function()
      number = number + 1
      local part, size = { samples = {}, rows = {} }, 4 / dp_size
      for i = 1, size do part.samples[i], part.rows[i] = number * 4 + dp_rank * size + i, i % 2 end
      part.x, part.y = torch.ones { size / 2, 2 }, torch.ones { size }
      return number < 3 and part or nil
    end }
  local w = torch.ones({ 2, 2 }):requires_grad_(true)
  local step = mimo.step { topology = topology, bridges = bridge, micro_batches = 2,
    slice = function(part) return { rows_per_sample = { x = part.rows } } end,
    modules = { [topology:module()] = function(part, x)
      seen[#seen + 1] = { part.x:size(0), part.y:size(0), x and x:size(0) }
      local y = torch.matmul(x or part.x, w)
      return x and y:sum() or y
    end } }

  step(function() return reader() end)

  t.equal(seen, rank == 0 and { { 2, 4 }, { 2, 4 } } or { { 1, 2, 1 }, { 1, 2, 1 } })
  t.equal(w.grad, torch.full({ 2, 2 }, rank == 0 and 8 or 4))
end)
