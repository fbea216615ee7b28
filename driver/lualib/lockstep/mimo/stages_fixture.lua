--- Code that tests of mimo.step share: modules of a user's own layers, in stages, with losses of their own, which train
--- for several steps on a topology and on one rank.

local dist = require "lockstep.distributed"
local fixture = require "mimo_fixture"
local mimo = require "lockstep.mimo"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local M = { STEPS = 3, MICRO_BATCHES = 5 }

local SAMPLES, WIDTH, INPUTS = 4, 6, 3

--- A stage of a module. Its parameters do not depend on the topology.
local Stage = nn.Module:subclass("Stage")
function Stage:init(incoming, outgoing, is_first, is_last)
  self.up, self.down = nn.Linear(WIDTH, 8), nn.Linear(8, WIDTH)
  if is_first then
    self.own = nn.Linear(INPUTS, WIDTH)
    for _, key in ipairs(incoming) do self["from_" .. key] = nn.Linear(WIDTH, WIDTH) end
  end
  if is_last then
    for _, key in ipairs(outgoing) do self["to_" .. key] = nn.Linear(WIDTH, WIDTH) end
    self.head = nn.Linear(WIDTH, 2)
  end
end

--- Calls the function that M.function_of has made.
function Stage:forward(...) return self.compute(...) end

local function key_of(edge) return edge.from .. "_" .. edge.to end

--- Returns the rows of `x` that this cp rank keeps: every other one, as its chunk of each sequence.
local function chunk_of(case, name, x)
  local cp = case.at[name] and case.at[name].cp_size or 1
  if cp == 1 then return x end
  local places = {}
  for i = case.at[name].cp, x:size(0) - 1, cp do places[#places + 1] = i end
  return x:index_select(0, torch.tensor(places, { dtype = torch.int64 }))
end

--- Returns the function of a stage as mimo.step calls it.
function M.function_of(case, name, stage, net)
  local is_first, is_last = stage == 1, stage == case.stages[name]
  return function(part, ...)
    local token_owner = chunk_of(case, name, fixture.owners(part.seq_lens))
    local h
    if is_first then
      h = net.own(chunk_of(case, name, part.x))
      for i, edge in ipairs(case.incoming[name]) do
        local sums = torch.zeros({ #part.seq_lens, WIDTH }, { dtype = torch.float64 }):index_add(0,
          fixture.owners(part.rows[key_of(edge)]), torch.tanh(net["from_" .. key_of(edge)](select(i, ...))))
        h = h + sums:index_select(0, token_owner)
      end
    else
      local before, plus = unpack((...)) -- two tensors go from stage to stage
      h = before + plus
    end
    h = h + net.down(torch.tanh(net.up(h)))
    local own = case.own_loss[name] and is_first and h:square():sum() * 0.3 or nil
    if not is_last then return { h, torch.sin(h) }, own end
    if #case.outgoing[name] == 0 then
      local loss = (net.head(h) - chunk_of(case, name, part.y)):square():sum()
      return own and loss + own or loss
    end
    local results = {}
    local sums = torch.zeros({ #part.seq_lens, WIDTH }, { dtype = torch.float64 }):index_add(0, token_owner, h)
    for i, edge in ipairs(case.outgoing[name]) do
      results[i] = net["to_" .. key_of(edge)](sums):index_select(0, fixture.owners(part.rows[key_of(edge)]))
    end
    results[#results + 1] = own
    return unpack(results)
  end
end

--- Returns a micro-batch, the same on every rank.
local function batch_of(case, number)
  local draw = fixture.new_draw(number + 31)
  local batch, tokens = { ids = {}, seq_lens = {}, rows = {} }, 0
  for i = 1, SAMPLES do
    batch.ids[i], batch.seq_lens[i] = number * 100 + i, draw(1, 4)
    tokens = tokens + batch.seq_lens[i]
  end
  for _, edge in ipairs(case.edges) do
    local rows = {}
    for i = 1, SAMPLES do rows[i] = draw(0, 2) end
    rows[1] = rows[1] + 1
    batch.rows[key_of(edge)] = rows
  end
  torch.manual_seed(900 + number)
  batch.x = torch.randn({ tokens, INPUTS }, { dtype = torch.float64 })
  batch.y = torch.randn({ tokens, 2 }, { dtype = torch.float64 })
  return batch, tokens
end

--- Completes a case: modules (as of mimo.topology), edges, own_loss (a set of names), frozen (a set of "name stage").
function M.case(case)
  case.incoming, case.outgoing, case.stages, case.at = {}, {}, {}, {}
  case.own_loss, case.frozen = case.own_loss or {}, case.frozen or {}
  for _, module in ipairs(case.modules) do
    case.incoming[module.name], case.outgoing[module.name] = {}, {}
    case.stages[module.name] = module.pp or 1
  end
  for _, edge in ipairs(case.edges) do
    table.insert(case.outgoing[edge.from], edge)
    table.insert(case.incoming[edge.to], edge)
  end
  return case
end

--- Returns all stages of all modules, by name and stage, the same on every rank.
local function build(case)
  torch.manual_seed(5)
  local nets = {}
  for _, module in ipairs(case.modules) do
    local function keys(edges)
      local list = {}
      for i, edge in ipairs(edges) do list[i] = key_of(edge) end
      return list
    end
    local list = {}
    for stage = 1, case.stages[module.name] do
      list[stage] = Stage(keys(case.incoming[module.name]), keys(case.outgoing[module.name]), stage == 1,
        stage == case.stages[module.name]):to { dtype = torch.float64 }
      if case.frozen[module.name .. " " .. stage] then list[stage]:requires_grad_(false) end
    end
    if module.shared then list[#list].up.weight = list[1].up.weight end
    nets[module.name] = list
  end
  return nets
end

local function optimizer_of(parameters)
  return optim.AdamW(parameters, { lr = 1e-2, eps = 1e-3, weight_decay = 0.1 })
end

--- Trains on this rank alone. Returns by step the losses by module and the norm; and the stages.
local function reference(case)
  local nets, all, seen, steps = build(case), {}, {}, {}
  for _, module in ipairs(case.modules) do
    for _, net in ipairs(nets[module.name]) do
      for _, p in ipairs(net:parameters()) do
        if not seen[p] then all[#all + 1], seen[p] = p, true end
      end
    end
  end
  local optimizer, places = optimizer_of(all), case.at
  case.at = {}
  for number = 1, M.STEPS do
    local sums, total, count = {}, 0, 0
    for m = 1, M.MICRO_BATCHES do
      local batch, tokens = batch_of(case, number * 10 + m)
      local sent = {}
      local function add(name, loss)
        if not loss then return end
        sums[name] = (sums[name] or 0) + loss:item()
        total = total + loss
      end
      for _, module in ipairs(case.modules) do
        local name, inputs = module.name, {}
        for j, edge in ipairs(case.incoming[name]) do inputs[j] = sent[key_of(edge)] end
        for stage, net in ipairs(nets[name]) do
          local results = { M.function_of(case, name, stage, net)(batch, unpack(inputs)) }
          local num_sent = stage < case.stages[name] and 1 or #case.outgoing[name]
          for j, edge in ipairs(stage == case.stages[name] and case.outgoing[name] or {}) do
            sent[key_of(edge)] = results[j]
          end
          inputs = { results[1] }
          add(name, results[num_sent + 1])
        end
      end
      count = count + tokens
    end
    (total / count):backward()
    for name, sum in pairs(sums) do sums[name] = sum / count end
    steps[number] = { losses = sums, norm = optim.clip_grad_norm(all, 0.3):item() }
    optimizer:step()
    optimizer:zero_grad()
  end
  case.at = places
  return steps, nets
end

--- Returns this rank's stage of a module as it is trained: plain, sharded or with layers divided over tp.
local function wrap(case, topology, name, net)
  if case.at[name].tp_size > 1 then
    sharding.tensor_parallel(net, { group = topology:group(name, "tp"), plan = { up = "column", down = "row" } })
  end
  local group = case.shard and topology:group(name, "dp-cp")
  return group and sharding.fully_shard(net, { group = group }) or net
end

--- Trains on the topology. Returns the same as reference, this rank's stages alone.
local function run(case, order)
  local topology = mimo.topology { modules = case.modules, edges = case.edges }
  local bridges, all, own = {}, build(case), {}
  for _, module in ipairs(topology:modules()) do
    if topology:peers(module.name, "dp") then
      local at = topology:coordinates(nil, module.name)
      at.cp_size, at.tp_size = module.cp, module.tp
      case.at[module.name], own[module.name] = at, all[module.name][at.pp + 1]
    end
  end
  for i, edge in ipairs(case.edges) do
    if own[edge.from] or own[edge.to] then
      bridges[i] = mimo.bridge { topology = topology, from = edge.from, to = edge.to }
    end
  end
  local modules, parameters, number = {}, {}, 0
  for _, module in ipairs(topology:modules()) do -- ranks make groups in one order
    local name = module.name
    if own[name] then
      modules[name] = wrap(case, topology, name, own[name])
      for _, p in ipairs(modules[name]:parameters()) do parameters[#parameters + 1] = p end
      own[name].compute = M.function_of(case, name, case.at[name].pp + 1, own[name])
    end
  end
  local step = mimo.step { topology = topology, modules = modules, bridges = bridges, order = order,
    micro_batches = M.MICRO_BATCHES, slice = { uneven = true },
    call = function(batch, _, bridge) return { rows_per_sample = batch.rows[key_of(bridge)], samples = batch.ids } end }
  local function next_batch()
    number = number + 1
    return batch_of(case, number)
  end
  local reader = case.uses_loader and mimo.loader { topology = topology, source = next_batch, samples = "ids",
    micro_batches = M.MICRO_BATCHES, every_stage = true } or next_batch
  local optimizer, steps = optimizer_of(parameters), {}
  for s = 1, M.STEPS do
    local tokens = 0
    number = s * 10
    step(function()
      local batch = reader()
      if own.language then
        local dp_rank, dp_size = topology:dp_info(nil, "language")
        local part = mimo.slice(batch, dp_rank, dp_size, { uneven = true })
        tokens = tokens + chunk_of(case, "language", part.y):size(0)
      end
      return batch
    end)
    mimo.reduce_gradients { topology = topology, modules = modules, loss = "sum", tokens = own.language and tokens }
    steps[s] = { losses = step:mean_losses(),
      norm = mimo.clip_grad_norm { topology = topology, modules = modules, max_norm = 0.3 }:item() }
    optimizer:step()
    optimizer:zero_grad()
  end
  return steps, own
end

--- Fails unless a case trains on the topology as on one rank: losses, norms and weights of each step. Collective.
function M.check(case, order, tolerance)
  local expected, nets = reference(case)
  local steps, own = run(case, order)
  for i, step in ipairs(expected) do
    for name, loss in pairs(step.losses) do
      t.near(steps[i].losses[name], loss, tolerance, ("the loss of %s in step %d"):format(name, i))
    end
    for name in pairs(steps[i].losses) do t.truthy(step.losses[name], name .. " has no loss on one rank") end
    t.near(steps[i].norm, step.norm, tolerance, ("the norm of step %d"):format(i))
  end
  t.truthy(math.abs(expected[1].losses.language - expected[M.STEPS].losses.language) > 1e-3, "nothing was learnt")
  if case.shard then return end
  for name, net in pairs(own) do
    local actual = {}
    for key, p in net:named_parameters() do actual[key] = p end
    for key, p in nets[name][case.at[name].pp + 1]:named_parameters() do
      if actual[key]:numel() == p:numel() then t.near(actual[key], p, tolerance, name .. "." .. key) end
    end
  end
  dist.barrier()
end

return M
