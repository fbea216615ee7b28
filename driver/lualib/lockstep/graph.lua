--- A whole training step, recorded once and then repeated. `lockstep.graph` is this module's one function.
---
--- A step of many small kernels takes as long as launching them. A graph records the step once. On a GPU it is a CUDA
--- graph, launched all at once; on the CPU it is a list of operators, called without Lua and autograd. It keeps
--- addresses, not values: inputs are copied to the recorded addresses, and outputs are at theirs.
--- Source: PyTorch's torch.cuda.graphs (whole-network capture).

local core_graph = require "lockstep.core.graph"
local core = require "lockstep.core"
local dist = require "lockstep.distributed"
local options = require "lockstep.options"
local options_seen = require "lockstep.optim.options_seen"
local torch = require "lockstep.torch"

---@class lockstep.Graph
---@field calls integer so far, each of which was a step
---@field hits integer calls that repeated a recording; the others ran the function
---@field captured boolean whether there is a recording
---@field recordings integer so far
---@field failures integer recordings that CUDA broke; their shapes run without a graph
---@field package is_local boolean? the function has no collective, so that each of several ranks may record
---@operator call: any
local Graph = {}
Graph.__index = Graph

-- A bucket has the inputs of one shape, and their recordings:
--
--     modes            which were on around its calls, as a text
--     count, inputs    tensors of the graph's own, and plain values
--     calls, warmup    the calls so far, and those before the recording
--     tapes            on the CPU, each {tape = , results = , options = }
--     graph, results, options  on a GPU
--     gave_up          on a GPU: the recording broke
--
-- `options` are the options of optimizers that the recording has as numbers.

--- The recordings that one bucket may make on the CPU.
local MAX_RECORDINGS = 8

local function complain(...) core.raise("lockstep.graph: " .. string.format(...)) end
local function check(holds, message, ...) if not holds then complain(message, ...) end end

local SIZE = getmetatable(torch.empty({ 0 }).shape)
local IS_PLAIN = { number = true, string = true, boolean = true }

--- Returns whether a value is an array of numbers, strings and booleans, or a tensor's shape.
local function is_list(value)
  if type(value) ~= "table" then return false end
  local metatable = getmetatable(value)
  if metatable and metatable ~= SIZE then return false end
  local count = 0
  for _, element in pairs(value) do
    count = count + 1
    if not IS_PLAIN[type(element)] or value[count] == nil then return false end
  end
  return true
end

--- Returns whether two values are one. A function tells 0 from -0, and does the same with each nan.
local function same_value(a, b)
  if a == 0 and b == 0 then return 1 / a == 1 / b end
  return a == b or (a ~= a and b ~= b)
end

local function same_list(a, b)
  if #a ~= #b then return false end
  for i, element in ipairs(a) do
    if not same_value(element, b[i]) then return false end
  end
  return true
end

local function describe(value)
  if torch.is_tensor(value) then
    return string.format("%s %s on %s", tostring(value.dtype), tostring(value.shape), value.device)
  end
  if is_list(value) then
    local parts = {}
    for i, element in ipairs(value) do parts[i] = tostring(element) end
    return "{" .. table.concat(parts, ", ") .. "}"
  end
  return type(value) == "string" and string.format("%q", value) or tostring(value)
end

--- Copies the inputs to tensors of the graph, and lists. Other values are stored as they are.
local function own(count, inputs)
  local kept = {}
  for i = 1, count do
    local value = inputs[i]
    if torch.is_tensor(value) then
      value = value:detach():clone()
    elseif is_list(value) then
      value = setmetatable({ unpack(value) }, getmetatable(value))
    end
    kept[i] = value
  end
  return kept
end

--- Returns whether an input may take the place of another.
local function alike(kept, given)
  if same_value(kept, given) then return true end
  if torch.is_tensor(kept) and torch.is_tensor(given) then
    return kept.dtype == given.dtype and kept.shape == given.shape
  end
  return is_list(kept) and is_list(given) and same_list(kept, given)
end

local function fits(bucket, modes, count, inputs)
  if bucket.modes ~= modes or bucket.count ~= count then return false end
  for i = 1, count do
    if not alike(bucket.inputs[i], inputs[i]) then return false end
  end
  return true
end

--- Raises an error that says how a call differs from the graph's only bucket.
local function complain_of_difference(bucket, modes, count, inputs)
  check(bucket.modes == modes, "called with %s, but with %s when the graph was made; modes around a call are part of "
    .. "the graph: make another for these, or give lockstep.graph more buckets", modes, bucket.modes)
  check(bucket.count == count, "called with %d arguments, but with %d before", count, bucket.count)
  for i = 1, count do
    local kept, given = bucket.inputs[i], inputs[i]
    if not alike(kept, given) then
      complain("argument %d is %s, but was %s when the graph was made; shapes, dtypes and plain values are part of "
        .. "the graph: make another for these, or give lockstep.graph more buckets", i, describe(given), describe(kept))
    end
  end
end

--- Copies the tensors of a call to where the graph reads.
local function fill(bucket, inputs)
  torch.no_grad(function()
    for i = 1, bucket.count do
      if torch.is_tensor(bucket.inputs[i]) then bucket.inputs[i]:copy_(inputs[i], { non_blocking = true }) end
    end
  end)
end

--- Returns results without their history, which belongs to the recording.
local function pack_results(...)
  local results = { n = select("#", ...), ... }
  for i = 1, results.n do
    if torch.is_tensor(results[i]) then results[i] = results[i]:detach() end
  end
  return results
end

local function on_side_stream(self, fn, ...)
  local here = torch.cuda.current_stream()
  self.stream:wait_stream(here)
  local results = pack_results(torch.cuda.stream(self.stream, fn, ...))
  here:wait_stream(self.stream)
  return results
end

--- Records a bucket's step, unless CUDA breaks the recording. A line says what broke it.
local function record_on_gpu(self, bucket)
  collectgarbage()
  collectgarbage()
  torch.cuda.empty_cache() -- while CUDA records, the allocator cannot free what the steps before have left
  local graph, broken = core_graph.new(), nil
  local function without_reason(reason, ...)
    broken = reason
    return ...
  end
  options_seen.start()
  local results = on_side_stream(self, function(...) return without_reason(graph:record(self.fn, ...)) end,
    unpack(bucket.inputs, 1, bucket.count))
  local seen = options_seen.finish()
  if broken then
    self.failures, bucket.gave_up = self.failures + 1, true
    io.stderr:write(("lockstep: warning: lockstep.graph: the GPU could not record the step, which goes on without a "
      .. "graph, at the usual speed: %s\n"):format(broken))
    return
  end
  bucket.graph, bucket.results, bucket.options = graph, results, seen
  self.captured, self.recordings = true, self.recordings + 1
end

local function on_gpu(self, bucket)
  if bucket.graph and options_seen.changed(bucket.options) then
    bucket.graph, bucket.results = nil, nil
    return on_side_stream(self, self.fn, unpack(bucket.inputs, 1, bucket.count)) -- it may have to make new states
  end
  if bucket.graph then
    self.hits = self.hits + 1
  elseif not bucket.gave_up then
    record_on_gpu(self, bucket) -- runs nothing
  end
  if bucket.gave_up then return on_side_stream(self, self.fn, unpack(bucket.inputs, 1, bucket.count)) end
  bucket.graph:replay()
  return bucket.results
end

local function record_on_cpu(self, bucket)
  local recorded = { tape = core_graph.new_tape() }
  options_seen.start()
  recorded.results = pack_results(recorded.tape:record(self.fn, unpack(bucket.inputs, 1, bucket.count)))
  recorded.options = options_seen.finish()
  table.insert(bucket.tapes, recorded)
  self.captured, self.recordings = true, self.recordings + 1
  return recorded.results
end

--- Forgets the recordings that used other options of an optimizer than it has now. Returns what changed, or nil.
local function forget_changed(bucket)
  local reason
  for i = #bucket.tapes, 1, -1 do
    local changed = options_seen.changed(bucket.tapes[i].options)
    if changed then
      reason = changed
      table.remove(bucket.tapes, i)
    end
  end
  return reason
end

--- Repeats the recording that fits. Without one runs the step normally, and the next time records it. A step depends
--- on which gradients exist when it begins: one that adds to gradients is another than one that makes them.
local function on_cpu(self, bucket)
  local reason = forget_changed(bucket)
  for _, recorded in ipairs(bucket.tapes) do
    reason = recorded.tape:mismatch()
    if not reason then
      recorded.tape:replay()
      self.hits = self.hits + 1
      return recorded.results
    end
  end
  if reason and not bucket.is_warm then
    bucket.is_warm = true -- as for the first recording: the optimizer may have to make new states
    return pack_results(self.fn(unpack(bucket.inputs, 1, bucket.count)))
  end
  check(#bucket.tapes ~= MAX_RECORDINGS,
    "the step was recorded %d times, and none of these fits this call: %s", MAX_RECORDINGS, reason)
  bucket.is_warm = false
  return record_on_cpu(self, bucket)
end

--- Checks what holds for all calls of a graph.
local function first_call(self)
  self.on_gpu = dist.device() ~= "cpu"
  self.records = self.is_local or dist.world_size() == 1
  if self.on_gpu and not self.records then
    complain("collectives cannot be recorded, and this run has %d ranks; use it on one rank", dist.world_size())
  end
  if self.on_gpu then self.stream = torch.cuda.Stream() end
end

--- Raises an error for an argument that a graph would not follow. It takes what a call gives for what it is: tensors by
--- their values, and plain values and arrays of them by equality. Other tables could change unseen.
local function check_inputs(count, inputs)
  for i = 1, count do
    local value = inputs[i]
    if torch.is_tensor(value) and value.requires_grad then
      complain("argument %d requires a gradient, which would be lost: a graph copies its inputs, and detaches the "
        .. "copies; give argument:detach(), or let the function itself use the tensor, as it uses a model", i)
    end
    check(type(value) ~= "table" or is_list(value), "argument %d is a table, and a graph would not see that it "
      .. "changes: give its tensors, and its numbers, strings and booleans or arrays of them, as arguments of their "
      .. "own; the function itself may use others", i)
  end
end

local function new_bucket(self, modes, count, inputs)
  for i = 1, count do
    if torch.is_tensor(inputs[i]) and inputs[i].device ~= dist.device() then
      complain("argument %d is %s; inputs must be on this rank's device, %s", i, describe(inputs[i]), dist.device())
    end
  end
  -- The first bucket's calls have made gradients and states. One more makes what depends on a shape.
  local bucket = { modes = modes, count = count, inputs = own(count, inputs), tapes = {}, calls = 0,
    warmup = #self.buckets == 0 and self.warmup or 1 }
  table.insert(self.buckets, bucket)
  return bucket
end

--- Returns the bucket of a call, or nil if it has none and there are as many as there may be.
local function bucket_of(self, modes, count, inputs)
  for _, bucket in ipairs(self.buckets) do
    if fits(bucket, modes, count, inputs) then return bucket end
  end
  if #self.buckets < self.max_buckets then return new_bucket(self, modes, count, inputs) end
  if self.max_buckets == 1 then complain_of_difference(self.buckets[1], modes, count, inputs) end
end

function Graph:__call(...)
  local count, inputs = select("#", ...), { ... }
  if torch.cuda.is_current_stream_capturing() then
    core_graph.refuse("lockstep.graph: a graph cannot be called while another is recorded")
  end
  local modes, is_autocast = core_graph.modes()
  if is_autocast then
    complain("called inside of torch.autocast, whose casts of weights end with it, and a graph would keep them; call "
      .. "torch.autocast inside of the graph's function")
  end
  check_inputs(count, inputs)
  if self.calls == 0 then first_call(self) end
  local bucket = self.records and bucket_of(self, modes, count, inputs)
  self.calls = self.calls + 1
  local results
  if not bucket then
    results = pack_results(self.fn(...))
  else
    fill(bucket, inputs)
    bucket.calls = bucket.calls + 1
    if bucket.calls > bucket.warmup then
      results = self.on_gpu and on_gpu(self, bucket) or on_cpu(self, bucket)
    elseif self.on_gpu then
      results = on_side_stream(self, self.fn, unpack(bucket.inputs, 1, count))
    else
      results = pack_results(self.fn(unpack(bucket.inputs, 1, count)))
    end
  end
  return unpack(results, 1, results.n)
end

--- Returns what the recordings on the CPU hold: buckets, operators, how many of these write where they wrote before and
--- how many return new memory, and the bytes that the recordings keep. On a GPU only `buckets` is counted.
---@return {buckets: integer, operators: integer, in_place: integer, allocating: integer, bytes: integer}
function Graph:stats()
  local stats = { buckets = #self.buckets, operators = 0, in_place = 0, allocating = 0, bytes = 0 }
  for _, bucket in ipairs(self.buckets) do
    for _, recorded in ipairs(bucket.tapes) do
      for name, value in pairs(recorded.tape:stats()) do stats[name] = stats[name] + value end
    end
  end
  return stats
end

--- Makes a function that does the same as `fn` by repeating a recording: for example forward, backward and the
--- optimizer. Every call is one step. The first `warmup` calls run normally; the next is recorded, and all after it
--- repeat the recording. A GPU launches it as one CUDA graph. The CPU runs the operators without Lua and autograd, and
--- results have the same bits. Each call overwrites the results and the gradients of the call before. Read them first,
--- or keep copies: `p.grad:clone()`.
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
--- An operation that cannot be recorded is an error with the script's line, even if the function catches the error.
--- Examples are reading a value (`item`, `totable`, `print`), `torch.tensor`, and an operator that waits for the device
--- or reads values itself (`nonzero`, an index of booleans, a packed `lstm`). A number as the optimizer's factor and
--- collectives are errors too. So are inputs of another shape, inputs that require gradients, tables of tensors, and
--- autocast around the call. On a GPU so is more than one rank.
---
--- Lua runs only when it records. Later calls do as it did then, with the same branches, numbers, `train()` or
--- `eval()`, `dropout.p`, parameters and modules, even if a script replaces one. A call records again if an option of
--- an optimizer has changed. On the CPU it also does so, up to 8 times, if a parameter's gradient, memory, shape or
--- `requires_grad` is not as it was. There dropout draws what the loop would draw. On several ranks the CPU records
--- nothing, and each call runs `fn`.
---
--- A recording that CUDA itself breaks is no error. A line says why, `graph.failures` counts it, and the steps of its
--- shape run as without a graph. Other threads may use the device meanwhile, as a loader's workers do.
---
--- `buckets` is the number of shapes that get a recording each, for batches of several sizes. Dtypes, plain values,
--- arrays of them, as the lengths of packed sequences, and modes around the call, as `no_grad`, tell buckets apart too.
--- Further shapes run as without a graph: compare `graph.hits` with `graph.calls`, and round sizes up until most calls
--- hit.
---@param fn function of tensors on this rank's device, and of plain values that never change
---@param opts {warmup: integer?, buckets: integer?}? warmup: default 3; at least 1, so that gradients, optimizer states
---and workspaces exist; buckets: default 1, with which another shape is an error
---@return lockstep.Graph
local function graph(fn, opts)
  local o = options.read("lockstep.graph", opts, { warmup = 3, buckets = 1 })
  check(type(fn) == "function", "the first argument must be a function, not a %s", type(fn))
  for _, name in ipairs { "warmup", "buckets" } do
    if o[name] < 1 or o[name] % 1 ~= 0 then
      complain("%s must be a whole number of at least 1, not %s", name, tostring(o[name]))
    end
  end
  return setmetatable({ fn = fn, warmup = o.warmup, max_buckets = o.buckets, buckets = {}, calls = 0, hits = 0,
    recordings = 0, failures = 0, captured = false }, Graph)
end

return graph
