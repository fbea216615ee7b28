--- mimo.step on random topologies against one rank, in float64. Modules form any graph without circles, also with edges
--- that skip two modules. They have any dp sizes, rows of their own on each edge, samples without rows, and losses of
--- their own. Half of the micro-batches are packed.

local dist = require "lockstep.distributed"
local fixture = require "mimo_fixture"
local mimo = require "lockstep.mimo"
local nn = require "lockstep.nn"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

torch.set_num_threads(1)

local CASES, MICRO_BATCHES, WIDTH = 5, 6, 4
local ORDERS = { "1f1b", "all_forwards_first", "sequential" }

-- A case -------------------------------------------------------------------------------------------------

--- A module of a case: it reads its samples and what came, and makes rows for each edge, or a loss.
local Node = nn.Module:subclass("Node")
function Node:init(incoming, outgoing)
  self.own = nn.Linear(3, WIDTH)
  for _, key in ipairs(incoming) do self["from_" .. key] = nn.Linear(WIDTH, WIDTH) end
  for _, key in ipairs(outgoing) do self["to_" .. key] = nn.Linear(WIDTH, WIDTH) end
end

--- Returns the place of each row among those of its sample, [rows, 1].
local function places(rows)
  local list = {}
  for _, count in ipairs(rows) do
    for place = 1, count do list[#list + 1] = { place } end
  end
  return torch.tensor(list, { dtype = torch.float64 })
end

--- Adds rows up by their samples.
local function by_sample(rows, counts)
  return torch.zeros({ #counts, WIDTH }, { dtype = torch.float64 }):index_add(0, fixture.owners(counts), rows)
end

local function key_of(edge) return edge.from .. "_" .. edge.to end

--- Returns the function of a module. Without rows it returns zeros of another dtype.
local function function_of(case, name, node)
  return function(part, ...)
    local h = part.seq_lens and by_sample(node.own(part.x), part.seq_lens) or node.own(part.x)
    for i, edge in ipairs(case.incoming[name]) do
      local rows = torch.tanh(node["from_" .. key_of(edge)](select(i, ...)))
      h = h + by_sample(rows, part.rows[key_of(edge)])
    end
    h = torch.tanh(h)
    local results = {}
    for i, edge in ipairs(case.outgoing[name]) do
      local owner = fixture.owners(part.rows[key_of(edge)])
      results[i] = owner:size(0) == 0 and torch.zeros { 0, WIDTH }
        or node["to_" .. key_of(edge)](h:index_select(0, owner)) + places(part.rows[key_of(edge)])
    end
    if #results == 0 then return (h - part.y):square():sum() end
    if case.own_loss[name] then results[#results + 1] = h:square():sum() * 0.3 end
    return unpack(results)
  end
end

local function random_case(number)
  local draw = fixture.new_draw(number + 100 * dist.world_size())
  local case = { modules = {}, edges = {}, incoming = {}, outgoing = {}, own_loss = {}, samples = draw(2, 6),
    packed = number % 2 == 0 }
  local count = number == 1 and dist.world_size() or draw(2, dist.world_size())
  local spare, first = dist.world_size() - count, 0
  for i = 1, count do
    local more = i == count and spare or draw(0, spare)
    local name = i == count and "language" or "m" .. i
    case.modules[i] = { name = name, first_rank = first, dp = 1 + more }
    case.incoming[name], case.outgoing[name], case.own_loss[name] = {}, {}, draw(0, 1) == 0
    spare, first = spare - more, first + 1 + more
  end
  for i = 1, count do
    for j = i + 1, count do
      local is_chain = j == i + 1
      if draw(1, 4) <= (is_chain and 3 or 2) or number == 1 and (is_chain or i == 1 and j == count) then
        local edge = { from = case.modules[i].name, to = case.modules[j].name }
        table.insert(case.edges, edge)
        table.insert(case.outgoing[edge.from], edge)
        table.insert(case.incoming[edge.to], edge)
      end
    end
  end
  case.seed = draw(1, 1e6)
  return case
end

--- Returns the modules of a case, the same on every rank.
local function build(case)
  torch.manual_seed(case.seed)
  local nodes = {}
  for _, module in ipairs(case.modules) do
    local function keys(edges)
      local list = {}
      for i, edge in ipairs(edges) do list[i] = key_of(edge) end
      return list
    end
    local node = Node(keys(case.incoming[module.name]), keys(case.outgoing[module.name]))
    nodes[module.name] = node:to { dtype = torch.float64 }
  end
  return nodes
end

--- Returns a micro-batch, the same on every rank.
local function batch_of(case, number)
  local draw = fixture.new_draw(case.seed + number)
  local batch, tokens = { ids = {}, rows = {} }, case.samples
  for i = 1, case.samples do batch.ids[i] = number * 100 + i end
  if case.packed then
    batch.seq_lens, tokens = {}, 0
    for i = 1, case.samples do
      batch.seq_lens[i] = draw(1, 4)
      tokens = tokens + batch.seq_lens[i]
    end
  end
  for _, edge in ipairs(case.edges) do
    local rows = {}
    for i = 1, case.samples do rows[i] = math.max(0, draw(-2, 2)) end
    if number == 1 then rows[draw(1, case.samples)] = 1 end -- before rows have come, zeros have the dtype of the tower
    batch.rows[key_of(edge)] = rows
  end
  torch.manual_seed(case.seed + number)
  batch.x = torch.randn({ tokens, 3 }, { dtype = torch.float64 })
  batch.y = torch.randn({ case.samples, WIDTH }, { dtype = torch.float64 })
  return batch
end

-- Both sides -----------------------------------------------------------------------------------------------

--- Returns the losses of one process by module and micro-batch, and its modules with their gradients.
local function reference(case)
  local nodes, losses = build(case), {}
  for i = 1, MICRO_BATCHES do
    local batch, sent, total = batch_of(case, i), {}, 0
    for _, module in ipairs(case.modules) do
      local name, inputs = module.name, {}
      for j, edge in ipairs(case.incoming[name]) do inputs[j] = sent[key_of(edge)] end
      local results = { function_of(case, name, nodes[name])(batch, unpack(inputs)) }
      local outgoing = case.outgoing[name]
      for j, edge in ipairs(outgoing) do sent[key_of(edge)] = results[j]:to(torch.float64) end
      local loss = results[#outgoing + 1]
      losses[name] = losses[name] or {}
      losses[name][i] = loss and loss:item() or 0
      if loss then total = total + loss end
    end
    total:backward()
  end
  return losses, nodes
end

local function run(case, order)
  local topology = mimo.topology { modules = case.modules, edges = case.edges }
  local bridges, nodes, name = {}, build(case), topology:module()
  for i, edge in ipairs(case.edges) do
    if edge.from == name or edge.to == name then
      bridges[i] = mimo.bridge { topology = topology, from = edge.from, to = edge.to }
    end
  end
  local step = mimo.step { topology = topology, bridges = bridges, order = order, micro_batches = MICRO_BATCHES,
    modules = { [name] = function_of(case, name, nodes[name]) }, slice = { uneven = true },
    call = function(batch, _, bridge) return { rows_per_sample = batch.rows[key_of(bridge)], samples = batch.ids } end }
  local number = 0
  local losses, more = step(function()
    number = number + 1
    return batch_of(case, number)
  end)
  mimo.reduce_gradients { topology = topology, modules = { [name] = nodes[name] }, loss = "sum",
    tokens = name == "language" and MICRO_BATCHES or nil }
  local own = {}
  for i = 1, MICRO_BATCHES do
    local loss = losses[i] or more[name][i][1]
    own[i] = loss and loss:item() or 0
  end
  return name, own, nodes[name], topology:modules()
end

for number = 1, CASES do
  for _, order in ipairs(ORDERS) do
    t.test(("Case%dIsAsOneRank_%s"):format(number, order), function()
      local case = random_case(number)
      local expected_losses, expected = reference(case)

      local name, losses, node, modules = run(case, order)

      for _, module in ipairs(modules) do
        local sums = torch.tensor(module.name == name and losses or torch.zeros({ MICRO_BATCHES }):totable(),
          { dtype = torch.float64 })
        t.near(dist.all_reduce(sums), torch.tensor(expected_losses[module.name], { dtype = torch.float64 }), 1e-11)
        if module.name == name then
          local divisor = MICRO_BATCHES * (modules[#modules].dp)
          for key, p in expected[name]:named_parameters() do
            local actual = node
            for field in key:gmatch("[^.]+") do actual = actual[field] end
            local gradient = p.grad or torch.zeros_like(p)
            t.near(actual.grad or torch.zeros_like(p), gradient / divisor, 1e-11, name .. "." .. key)
          end
        end
      end
    end)
  end
end
