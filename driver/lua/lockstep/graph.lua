--- CUDA graphs: a whole training step as one launch. `lockstep.graph` is this module's one function.
---
--- A step of many small kernels takes as long as launching them. A graph records the step once and launches all of it
--- at once. It keeps addresses, not values: inputs are copied to the recorded addresses, and outputs are at theirs.
--- Source: PyTorch's torch.cuda.graphs (whole-network capture).

local core_graph = require "lockstep.core.graph"
local core = require "lockstep.core"
local dist = require "lockstep.distributed"
local options = require "lockstep.options"
local torch = require "lockstep.torch"

---@class lockstep.Graph
---@field calls integer so far, each of which was a step
---@field captured boolean whether calls launch a graph; on a device without graphs never
---@operator call: any
local Graph = {}
Graph.__index = Graph

local function complain(...) core.raise("lockstep.graph: " .. string.format(...)) end

local function describe(value)
  if torch.is_tensor(value) then
    return string.format("%s %s on %s", tostring(value.dtype), tostring(value.shape), value.device)
  end
  return type(value) == "string" and string.format("%q", value) or tostring(value)
end

--- Copies the inputs to tensors of the graph. Other values are stored as they are.
local function own(count, inputs)
  local kept = {}
  for i = 1, count do
    local value = inputs[i]
    kept[i] = torch.is_tensor(value) and value:detach():clone() or value
  end
  return kept
end

--- Checks that a call fits the first one, and copies its tensors to where the graph reads.
local function fill(self, count, inputs)
  if count ~= self.num_inputs then complain("called with %d arguments, but with %d before", count, self.num_inputs) end
  for i = 1, count do
    local kept, given = self.inputs[i], inputs[i]
    local alike = kept == given
    if torch.is_tensor(kept) and torch.is_tensor(given) then
      alike = kept.dtype == given.dtype and kept.shape == given.shape
      if alike then torch.no_grad(function() kept:copy_(given, { non_blocking = true }) end) end
    end
    if not alike then
      complain("argument %d is %s, but was %s when the graph was made; shapes, dtypes and plain values are part of "
        .. "the graph: make another for these", i, describe(given), describe(kept))
    end
  end
end

--- Returns results without their history, which belongs to the recording.
local function pack_results(...)
  local results = { n = select("#", ...), ... }
  for i = 1, results.n do
    if torch.is_tensor(results[i]) then results[i] = results[i]:detach() end
  end
  return results
end

local function on_side_stream(self, fn)
  local here = torch.cuda.current_stream()
  self.stream:wait_stream(here)
  local results = pack_results(torch.cuda.stream(self.stream, fn, unpack(self.inputs, 1, self.num_inputs)))
  here:wait_stream(self.stream)
  return results
end

local function record(self)
  collectgarbage()
  collectgarbage()
  self.graph = core_graph.new()
  self.results = on_side_stream(self, function(...) return self.graph:record(self.fn, ...) end)
  self.captured = true
end

local function first_call(self, count, inputs)
  for i = 1, count do
    if torch.is_tensor(inputs[i]) and inputs[i].device ~= dist.device() then
      complain("argument %d is %s; inputs must be on this rank's device, %s", i, describe(inputs[i]), dist.device())
    end
  end
  self.on_gpu = dist.device() ~= "cpu"
  if self.on_gpu and dist.world_size() > 1 then
    complain("collectives cannot be recorded, and this run has %d ranks; use it on one rank", dist.world_size())
  end
  self.num_inputs, self.inputs = count, own(count, inputs)
  if self.on_gpu then self.stream = torch.cuda.Stream() end
end

function Graph:__call(...)
  local count, inputs = select("#", ...), { ... }
  if not self.inputs then first_call(self, count, inputs) end
  fill(self, count, inputs)
  self.calls = self.calls + 1
  local results
  if self.calls <= self.warmup then
    results = self.on_gpu and on_side_stream(self, self.fn) or pack_results(self.fn(unpack(self.inputs, 1, count)))
  elseif not self.on_gpu then
    results = pack_results(core_graph.as_recorded(self.fn, unpack(self.inputs, 1, count)))
  else
    if not self.captured then record(self) end
    self.graph:replay()
    results = self.results
  end
  return unpack(results, 1, results.n)
end

--- Makes a function that does the same as `fn` with one launch of a CUDA graph: for example forward, backward and the
--- optimizer. Every call is one step. The first `warmup` calls run normally; the next is recorded, and launched like
--- all after it. Each call overwrites the results: read or copy them before.
---
---     local train = lockstep.graph(function(x, y, factor)
---       local loss = nn.cross_entropy(model(x), y)
---       loss:backward()
---       optimizer:step(factor)      -- a tensor on the device: a number would stay what it was
---       optimizer:zero_grad()
---       return loss
---     end)
---     for step, batch in run:steps(loader) do
---       local loss = train(batch.x, batch.y, torch.tensor(schedule(step), { device = dist.device() }))
---     end
---
--- An operation that cannot be recorded is an error with the script's line. Examples are reading a value (`item`,
--- `totable`, `print`), an operator that waits for the device (`nonzero`, an index of booleans), and `torch.tensor`. A
--- number as the optimizer's factor and inputs of another shape are errors too; on a GPU so is more than one rank.
--- Branches of Lua are taken once, when it records. On the CPU `fn` is called each time, under the same rules, as far
--- as the CPU can check them.
---@param fn function of tensors on this rank's device, and of plain values that never change
---@param opts {warmup: integer?}? default 3; at least 1, so that gradients, optimizer states and workspaces exist
---@return lockstep.Graph
local function graph(fn, opts)
  local o = options.read("lockstep.graph", opts, { warmup = 3 })
  if type(fn) ~= "function" then complain("the first argument must be a function, not a %s", type(fn)) end
  if o.warmup < 1 or o.warmup % 1 ~= 0 then
    complain("warmup must be a whole number of at least 1, not %s", tostring(o.warmup))
  end
  return setmetatable({ fn = fn, warmup = o.warmup, calls = 0, captured = false }, Graph)
end

return graph
