--- mimo.step: forward and backward of a step's micro-batches, in an order that was simulated before.

local core = require "lockstep.core"
local core_mimo = require "lockstep.core.mimo"
local data_parallel = require "lockstep.sharding.data_parallel"
local disagreement = require "lockstep.sharding.disagreement"
local dist = require "lockstep.distributed"
local nn = require "lockstep.nn"
local options = require "lockstep.options"
local plain = require "lockstep.plain"
local shared_list = require "lockstep.mimo.shared_list"
local stage_links = require "lockstep.mimo.stage_links"
local topologies = require "lockstep.mimo.topology"
local torch = require "lockstep.torch"

local function fail(message, ...) core.raise("mimo.step: " .. message:format(...)) end

---@class mimo.Step
---@field topology mimo.Topology
---@field towers mimo.StepModule[]? those that run while a stage waits
---@field runs mimo.StepModule[] the other modules, each before those that it feeds
---@field is_first boolean? the towers' rows go to a stage on this rank, and share its backward
---@field list mimo.SharedOperation[]
---@field order "sequential"|"all_forwards_first"|"1f1b"
---@field bridges mimo.Bridge[]
---@field links mimo.StageLink[] of this rank's stages
---@field sums table<string, torch.Tensor> the losses of this rank's modules in the last step, added up
---@field micro_batches integer
---@field warm_up integer forwards before the first backward of this rank
---@operator call: torch.Tensor[]
local Step = {}
Step.__index = Step

---@class mimo.StepModule
---@field name string
---@field fn any the module or function; nil on other ranks
---@field is_here boolean
---@field stages integer
---@field below integer modules and stages after it, on the longest path; after this rank's stage, if it is here
---@field incoming (mimo.Bridge|mimo.StageLink)[] of this rank's stage
---@field outgoing (mimo.Bridge|mimo.StageLink)[]

--- The bridges without holes: a script may leave one nil on ranks that do not take part in it.
local function read_bridges(topology, given)
  if type(given) ~= "table" then fail("bridges must be an array of mimo.bridge's results, not a %s", type(given)) end
  if given.from then given = { given } end
  local bridges, seen = {}, {}
  for i = 1, table.maxn(given) do
    local bridge = given[i]
    if bridge ~= nil then
      if type(bridge) ~= "table" or bridge.topology ~= topology then
        fail("bridges[%d] must be what mimo.bridge returned for this topology, not %s", i,
          type(bridge) == "table" and bridge.from and "a bridge of another" or "a " .. type(bridge))
      end
      if seen[bridge] then fail("bridges[%d] is there twice", i) end
      bridges[#bridges + 1], seen[bridge] = bridge, true
    end
  end
  return bridges
end

--- The modules, each before those that it feeds, and by name.
local function sort(topology, bridges)
  local by_name, chain = {}, {}
  for i, module in ipairs(topology:modules()) do
    chain[i] = { name = module.name, stages = module.pp, incoming = {}, outgoing = {}, below = 0,
      is_here = topology:peers(module.name, "dp") ~= nil }
    by_name[module.name] = chain[i]
  end
  local is_there = {}
  for _, bridge in ipairs(bridges) do
    table.insert(by_name[bridge.from].outgoing, bridge)
    table.insert(by_name[bridge.to].incoming, bridge)
    is_there[bridge.from .. " -> " .. bridge.to] = true
  end
  for _ = 1, #chain do
    for _, edge in ipairs(topology.edges) do
      local from, to = by_name[edge.from], by_name[edge.to]
      from.below = math.max(from.below, to.below + to.stages) -- the topology has no circle
      if (from.is_here or to.is_here) and not is_there[edge.from .. " -> " .. edge.to] then
        fail('bridges: the one from "%s" to "%s" is missing, in which rank %d takes part', edge.from, edge.to,
          dist.rank())
      end
    end
  end
  table.sort(chain, function(a, b) return a.below > b.below or a.below == b.below and a.name < b.name end)
  return chain, by_name
end

--- Connects the stages of this rank's modules. A stage then has links in place of the bridges that it takes no part
--- in. Returns the links. Collective.
local function link_stages(topology, chain)
  local links = {}
  for _, one in ipairs(chain) do
    if one.is_here and one.stages > 1 then
      local before, after = stage_links.make(topology, one.name)
      if before then one.incoming, links[#links + 1] = { before }, before end
      if after then one.outgoing, links[#links + 1] = { after }, after end
      one.below = one.below + one.stages - 1 - topology:coordinates(nil, one.name).pp
    end
  end
  return links
end

--- Returns the towers, and the module in stages that they feed, where all modules are on the same ranks. Raises an
--- error for other modules: "1f1b" would not end, or fill no wait.
local function divide(topology, chain)
  local towers, pipeline, problem = {}, nil, nil
  for _, one in ipairs(chain) do
    if one.stages == 1 then
      towers[#towers + 1] = one
    elseif pipeline then
      problem = ('"%s" and "%s" both have'):format(pipeline.name, one.name)
    else
      pipeline = one
    end
    if not one.is_here then problem = ('"%s" has ranks of its own, and others have'):format(one.name) end
  end
  if not pipeline then problem = "no module has" end
  for _, edge in ipairs(topology.edges) do
    if pipeline and edge.to ~= pipeline.name then
      problem = problem or ('"%s" feeds "%s", which does not have'):format(edge.from, edge.to)
    end
  end
  if problem then
    fail('order = "1f1b" is for modules on separate ranks, or for one module in stages and the towers that feed it, on '
      .. 'the same ranks; here %s stages. Give "all_forwards_first" or "sequential"', problem)
  end
  return towers, pipeline
end

--- Raises an error on every rank if the ranks would not run the same step.
local function compare(o, topology, bridges)
  if dist.world_size() == 1 then return end
  local names = {}
  for i, bridge in ipairs(bridges) do names[i] = bridge.from .. " -> " .. bridge.to end
  local said = dist.all_gather_object { bridges = "bridges " .. table.concat(names, ", "),
    step = ('order = "%s", micro_batches = %d'):format(o.order, o.micro_batches) }
  local function check(key, ranks)
    local texts = {}
    for i = 1, #(ranks or said) do texts[i] = said[ranks and ranks[i] + 1 or i][key] end
    local found = disagreement.find(texts, ranks)
    if found then fail("the ranks of one step give different options: %s", found) end
  end
  check("step")
  for _, module in ipairs(topology:modules()) do check("bridges", module.ranks) end
end

-- Forward and backward of a micro-batch -------------------------------------------------------------------

local function each(value, visit)
  if torch.is_tensor(value) then return visit(value) end
  for _, tensor in ipairs(value or {}) do visit(tensor) end
end

--- The part of a micro-batch that this rank's replica of a module keeps.
local function part_of(self, loader, batch, whole, name)
  if self.slice == false then return batch end
  local reader = (getmetatable(whole) or {}).reader -- the mimo.loader, which may be wrapped in a function
    or type(loader) == "table" and loader.dp_info and loader
  local dp_rank, dp_size = self.topology:dp_info(nil, name)
  if reader then dp_rank, dp_size = reader:dp_info(name) end
  if type(batch) ~= "table" then
    if dp_size == 1 then return batch end
    fail('"%s" has dp %d, and a micro-batch that is not a table cannot be cut: it is a %s', name, dp_size, type(batch))
  end
  local slice = self.slice
  if type(slice) == "function" then slice = slice(batch) end
  local part = core_mimo.slice(batch, dp_rank, dp_size, slice)
  return dp_size == 1 and batch or part
end

local function has_graph(value)
  if torch.is_tensor(value) then return value.requires_grad end
  if type(value) == "table" and getmetatable(value) == nil then
    for _, inner in pairs(value) do
      if has_graph(inner) then return true end
    end
  end
  return false
end

local function has_no_parameters(fn) return nn.is_module(fn) and #fn:parameters() == 0 end

local function describe(value)
  return torch.is_tensor(value) and ("tensor of %d"):format(value:numel()) or type(value)
end

--- Reads what a module returned: an x for each of its bridges, or the loss. Returns these as an array, the module's own
--- loss or nil, and the results after these, without graph.
local function read_results(one, ...)
  local results, bridges, used, own = { ... }, one.outgoing, 1, nil
  if #bridges == 0 then
    if not torch.is_tensor(results[1]) or results[1]:numel() ~= 1 then
      fail('"%s" must return the loss of the micro-batch, a tensor of one number, not a %s', one.name,
        describe(results[1]))
    end
  else
    -- A tensor without dims has no rows to carry.
    local second = results[2]
    local is_of_bridge = type(second) == "table" or torch.is_tensor(second) and second:dim() > 0
    if #bridges > 1 and is_of_bridge then used = #bridges end
    for i = 1, used do
      if not torch.is_tensor(results[i]) and type(results[i]) ~= "table" then
        fail('"%s" must return a tensor for "%s", not a %s%s', one.name, bridges[i].to, type(results[i]),
          results[i] == nil and "; without rows, it is one of no rows" or "")
      end
    end
  end
  local carried, more = {}, {}
  for i = 1, math.max(used, #bridges) do carried[i] = results[used == 1 and 1 or i] end
  for i = used + 1, select("#", ...) do
    local value = results[i]
    local may_be_loss = i == used + 1 and #bridges > 0 and torch.is_tensor(value) and value:numel() == 1
    if may_be_loss and has_no_parameters(one.fn) and value:is_floating_point() and torch.is_grad_enabled()
      and not value.requires_grad then
      fail('"%s" returns a loss without a graph, and has no parameters: nothing would be trained on it; return '
        .. "loss:item() to report it alone", one.name)
    elseif has_graph(value) then
      if #bridges == 0 then
        fail('result %d of "%s" is a %s with a graph, but only the first result, the loss, is trained on; add it to '
          .. "the loss, or detach it", i, one.name, describe(value))
      elseif not may_be_loss then
        fail('result %d of "%s" is a %s with a graph, but only its results for %d bridges, and a loss of its own after '
          .. "them, one number, are trained on; add it to this loss, or detach it", i, one.name, describe(value),
          #bridges)
      end
      own, value = value, value:detach()
    end
    more[i - used] = value
  end
  return carried, own, more
end

--- Adds a loss of a module to those of the step.
local function add_loss(self, one, loss)
  local sum = self.sums[one.name]
  loss = loss:detach():view {}:to(torch.float64)
  self.sums[one.name] = sum and sum + loss or loss
end

---@class mimo.StepPass
---@field batch any
---@field whole any
---@field arrived table<mimo.Bridge|mimo.StageLink, any> what has come
---@field roots torch.Tensor[] what backward begins with: losses, and what bridges returned to the ranks that feed them
---@field tower_roots torch.Tensor[]? those of towers, where they have a backward of their own
---@field loss torch.Tensor?
---@field more table<string, any[]> the further results by module

--- Waits for the rows of the towers. On every rank their bridges have one order, and so have their backwards.
local function take_rows(self, pass)
  for _, one in ipairs(self.towers) do
    for _, bridge in ipairs(one.outgoing) do pass.arrived[bridge] = pass.arrived[bridge]:wait() end
  end
end

--- Runs modules of this rank on a micro-batch.
local function forward(self, loader, pass, modules)
  local batch, whole, roots, arrived = pass.batch, pass.whole, pass.roots, pass.arrived
  local function cross(bridge, x)
    if stage_links.is_one(bridge) then return bridge(x) end
    local opts = self.call and self.call(batch, whole, bridge) or whole
    -- The first stage takes the rows later, when those of other ranks have come. The other ranks wait after all towers,
    -- too: so backward runs through all bridges before the towers on every rank. Else towers with collectives, such as
    -- those of tp, would wait for each other.
    if modules == self.towers then return bridge:start(x, opts) end
    return bridge(x, opts)
  end
  local function add_root(y)
    each(y, function(tensor) roots[#roots + 1] = torch.sum(tensor) end)
  end
  for _, one in ipairs(modules) do
    if one.is_here then
      local inputs = {}
      for i, bridge in ipairs(one.incoming) do
        if arrived[bridge] == nil then arrived[bridge] = cross(bridge) end
        inputs[i] = arrived[bridge]
      end
      local results, own
      results, own, pass.more[one.name] = read_results(one, one.fn(part_of(self, loader, batch, whole, one.name),
        unpack(inputs)))
      -- Ranks that sent wait for a gradient, even if the module did not use what came. It gets zeros then.
      for _, y in ipairs(inputs) do
        each(y, function(tensor) roots[#roots + 1] = torch.sum(tensor:narrow(0, 0, 0)) end)
      end
      roots[#roots + 1] = own
      if own then add_loss(self, one, own) end
      if #one.outgoing == 0 then
        roots[#roots + 1] = results[1]
        add_loss(self, one, results[1])
        pass.loss = pass.loss and pass.loss + results[1] or results[1]
      end
      for i, bridge in ipairs(one.outgoing) do
        local y = cross(bridge, results[i])
        arrived[bridge] = y
        if not self.takes[bridge] and modules ~= self.towers then add_root(y) end
      end
    end
  end
  if modules == self.towers and not self.is_first then
    take_rows(self, pass)
    for _, one in ipairs(modules) do
      for _, bridge in ipairs(one.outgoing) do add_root(arrived[bridge]) end
    end
  end
end

local function backward(roots)
  local with_gradient = {}
  for _, root in ipairs(roots) do
    if root.requires_grad then with_gradient[#with_gradient + 1] = root:to(torch.float32) end
  end
  if #with_gradient == 0 then return end -- a frozen tower
  local sum = with_gradient[1]
  for i = 2, #with_gradient do sum = sum + with_gradient[i] end
  sum:backward()
end

-- A step ---------------------------------------------------------------------------------------------------

--- Returns the operations of a rank that holds `warm_up` micro-batches before its first backward.
local function list_of(micro_batches, warm_up)
  local list = {}
  for m = 1, micro_batches do
    list[#list + 1] = { kind = "forward", micro_batch = m }
    if m > warm_up then list[#list + 1] = { kind = "backward", micro_batch = m - warm_up } end
  end
  for m = math.max(micro_batches - warm_up, 0) + 1, micro_batches do
    list[#list + 1] = { kind = "backward", micro_batch = m }
  end
  return list
end

--- Reads a micro-batch. Returns its pass; nothing if the loader has ended before the step.
local function read(self, loader, index)
  local batch, whole = loader()
  if batch == nil and index == 1 then return nil end
  if batch == nil then
    fail("the loader ended after %d of the step's %d micro-batches", index - 1, self.micro_batches)
  end
  return { batch = batch, whole = whole, arrived = {}, roots = {}, more = {} }
end

local function run(self, loader)
  local losses, more, passes = {}, {}, {}
  self.sums, self.topology.loss_divisor = {}, nil
  for name in pairs(self.here) do more[name] = {} end
  for _, op in ipairs(self.list) do
    local m = op.micro_batch
    if op.kind == "towers" or op.kind == "forward" then
      local pass = passes[m] or read(self, loader, m)
      if not pass then return nil end
      passes[m] = pass
      if op.kind == "forward" and self.is_first then take_rows(self, pass) end
      forward(self, loader, pass, op.kind == "towers" and self.towers or self.runs)
    end
    local pass = passes[m]
    if op.kind == "towers" and not self.is_first then
      pass.tower_roots, pass.roots = pass.roots, {}
    elseif op.kind == "forward" then
      losses[#losses + 1] = pass.loss and pass.loss:detach()
      for name, list in pairs(more) do list[m] = pass.more[name] end
      pass.arrived, pass.loss, pass.batch, pass.whole = nil, nil, nil, nil
    elseif op.kind == "backward" then
      backward(pass.roots)
      pass.roots = nil
      if not pass.tower_roots then passes[m] = nil end
    elseif op.kind == "towers_backward" and pass then
      backward(pass.tower_roots)
      passes[m] = nil
    end
  end
  return losses, more
end

--- Runs a step. Returns the loss of each micro-batch, without graph; an empty array on ranks without a loss; nil where
--- the loader has ended. The second result has what this rank's modules returned after that, by name: more.vision[i] is
--- the array of micro-batch i. It begins with the module's own loss if there is one.
---@param loader fun(): any, any a mimo.loader, or another source that gives every rank the same micro-batches
---@return torch.Tensor[]?
---@return table<string, any[][]> more
function Step:__call(loader)
  if not plain.is_callable(loader) then fail("the loader must be a function, not a %s", type(loader)) end
  data_parallel.refusal = self.warm_up > 0 and self.micro_batches > 1 and (('mimo.step: order = "%s" runs several '
    .. "forwards before a backward, and sharding.data_parallel would average the first of these alone; use the plain "
    .. 'module, which mimo.reduce_gradients averages, or order = "sequential"'):format(self.order)) or nil
  local ok, losses, more = pcall(run, self, loader)
  data_parallel.refusal = nil
  if ok then return losses, more end
  -- Other ranks wait for this one: its error is theirs, too. Messages are short: they have the first cause alone.
  local text = tostring(losses)
  local cause = text:match ".*(rank %d+ %b() failed: .*)" or text
  for _, list in ipairs { self.bridges, self.links } do
    for _, bridge in ipairs(list) do bridge.core:refuse(cause) end
  end
  error(losses, 0)
end

--- Returns the losses of the last step by module, each as its part of the loss that is trained: added up over ranks and
--- micro-batches, and divided as mimo.reduce_gradients divides gradients. Their sum is the loss of the step.
---
---     step(loader)
---     mimo.reduce_gradients { topology = topo, modules = modules, loss = "sum", tokens = tokens }
---     local means = step:mean_losses() -- { language = 2.31, vision = 0.04 }, the same on every rank
---
--- A loss that several tp ranks hold counts once. The table lacks modules without a loss. It also lacks the own loss of
--- a module before the last if that has no graph: the module is frozen, or the step runs under torch.no_grad. `more` of
--- the step has it. In a step without gradients give the divisor: the number of tokens, or of means. Collective, over
--- all ranks.
---@param divisor number?
---@return table<string, number>
function Step:mean_losses(divisor)
  if not self.sums then fail("mean_losses: no step has run before") end
  divisor = divisor or self.topology.loss_divisor
  if type(divisor) ~= "number" or not (divisor > 0) then
    fail("mean_losses: the losses are divided as the gradients: call mimo.reduce_gradients after the step, and then "
      .. "this; or give a divisor above 0, not %s", tostring(divisor))
  end
  local modules, own = self.topology:modules(), {}
  for i, module in ipairs(modules) do
    local sum = self.sums[module.name]
    local counts = sum and self.topology:coordinates(nil, module.name).tp == 0
    own[2 * i - 1] = counts and sum or torch.zeros({}, { dtype = torch.float64, device = dist.device() })
    own[2 * i] = torch.full({}, counts and 1 or 0, { dtype = torch.float64, device = dist.device() })
  end
  local all, means = dist.all_reduce(torch.stack(own)):totable(), {}
  for i, module in ipairs(modules) do
    if all[2 * i] > 0 then means[module.name] = all[2 * i - 1] / divisor end
  end
  return means
end

---@class mimo.StepOptions
---@field topology mimo.Topology
---@field modules table<string, any> this rank's modules (with pp its stages), or functions, by name
---@field bridges mimo.Bridge[]
---@field order "sequential"|"all_forwards_first"|"1f1b"? default "1f1b"
---@field micro_batches integer of a step
---@field micro_batch_size integer? samples of a micro-batch, for the simulation; default: the largest dp
---@field slice mimo.SliceOptions|(fun(batch: table): mimo.SliceOptions)|false|nil how a micro-batch is cut; false: each
--- rank's loader gives its own part
---@field call (fun(batch: any, whole: any, bridge: mimo.Bridge): mimo.CallOptions)|nil what a bridge is called with;
--- default: the loader's second result

--- Makes a function that runs forward and backward of a step's micro-batches.
---
---     local step = mimo.step { topology = topo, modules = { [topo:module()] = module }, bridges = { bridge },
---       order = "1f1b", micro_batches = 8 }
---     local losses = step(loader)
---     mimo.reduce_gradients { topology = topo, modules = modules, loss = "sum", tokens = tokens }
---
--- A module is called as module(part, x1, x2, ...): with this replica's part of the micro-batch (mimo.slice, with
--- `slice`), and what came over its bridges, in their order. It returns a tensor, or an array of them, for each of its
--- bridges, or one for all. A module that feeds no other returns the loss of its part, one number. It need not use all
--- that came: gradients of the rest are zeros.
---
--- A module that feeds others may return a loss of its own after these, one number, such as a balance loss of experts.
--- It counts as the losses of "language" do, and mimo.reduce_gradients scales it alike. With loss = "sum" multiply a
--- mean by the tokens of this replica's samples. With "mean" multiply by the dp size of "language" and divide by the
--- module's own. Results after that come back from the step; with a graph they are an error: nothing trains them.
---
--- Each rank gives its own stage of a module with pp. The first one is called as above; the others as module(part,
--- hidden), with what the stage before has returned: a tensor, or an array of up to eight with the same rows. The last
--- one returns rows or the loss, as above. Each may return a loss of its own after that.
---
--- `order`: "1f1b" alternates forwards and backwards, so that a rank holds as many micro-batches as there are modules
--- and stages after its own, and one more; modules are on separate ranks. Or all are on the same: towers that feed one
--- module with pp then run while its stages wait. "all_forwards_first" holds all. "sequential" holds one, and modules
--- wait for each other. Gradients are the same. The order is simulated first: one that would not end is an error that
--- names the ranks.
---
--- Collective: every rank of the topology calls this, and the function that it returns, equally often. An error of one
--- rank is an error of all that wait for it, and its bridges cannot be used again.
---@param opts mimo.StepOptions
---@return mimo.Step
local function step(opts)
  local o = options.read("mimo.step", opts, { topology = options.required, modules = options.required,
    bridges = options.required, order = "1f1b", micro_batches = options.required, micro_batch_size = options.optional,
    slice = options.optional, call = options.optional })
  local topology = topologies.check("mimo.step", o.topology)
  topology.core:check_world "mimo.step"
  if type(o.micro_batches) ~= "number" or o.micro_batches < 1 or o.micro_batches % 1 ~= 0 then
    fail("micro_batches must be a whole number of at least 1, not %s", tostring(o.micro_batches))
  end
  if o.order ~= "sequential" and o.order ~= "all_forwards_first" and o.order ~= "1f1b" then
    fail('order must be "sequential", "all_forwards_first" or "1f1b", not "%s"', o.order)
  end
  if type(o.modules) ~= "table" or nn.is_module(o.modules) then
    fail("modules must be a table of this rank's modules by name, as { vision = tower }")
  end
  local bridges = read_bridges(topology, o.bridges)
  local chain, by_name = sort(topology, bridges)
  for name in pairs(o.modules) do
    if not by_name[name] then fail('modules: the topology has no module "%s"', tostring(name)) end
  end
  local largest_dp, num_stages, here, num_here = 1, 0, {}, 0
  for _, module in ipairs(topology:modules()) do
    largest_dp, num_stages = math.max(largest_dp, module.dp), num_stages + module.pp
  end
  for _, one in ipairs(chain) do
    one.fn = one.is_here and o.modules[one.name] or nil
    if one.is_here and not plain.is_callable(one.fn) then
      fail('modules: rank %d runs "%s", which must be a module or a function, not a %s', dist.rank(), one.name,
        type(one.fn))
    end
    if one.is_here then here[one.name], num_here = true, num_here + 1 end
  end
  local towers, pipeline
  if o.order == "1f1b" and num_here > 1 then towers, pipeline = divide(topology, chain) end
  compare(o, topology, bridges)
  if not towers then
    topology:check_schedule { micro_batches = math.min(o.micro_batches, num_stages + 2), order = o.order,
      micro_batch_size = o.micro_batch_size or largest_dp }
  end
  local links, below = link_stages(topology, chain), 0
  local takes = {} -- the bridges whose rows this rank uses
  for _, one in ipairs(chain) do
    if one.is_here then below = math.max(below, one.below) end
    for _, bridge in ipairs(one.is_here and one.incoming or {}) do takes[bridge] = true end
  end
  local warm_up = o.order == "1f1b" and below or o.order == "all_forwards_first" and o.micro_batches or 0
  local place = pipeline and topology:coordinates(nil, pipeline.name).pp
  if pipeline then warm_up = pipeline.stages end
  return setmetatable({ topology = topology, towers = towers, runs = pipeline and { pipeline } or chain, here = here,
    takes = takes, is_first = place == 0, order = o.order, bridges = bridges, links = links,
    list = pipeline and shared_list.make(pipeline.stages, o.micro_batches)[place + 1]
      or list_of(o.micro_batches, warm_up),
    micro_batches = o.micro_batches, warm_up = warm_up, slice = o.slice, call = o.call }, Step)
end

return step
