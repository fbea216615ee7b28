--- Runs one step of rank 0 among N ranks for --dry-run, with mirror images of the other ranks, and prints its cost.
--- Only such a run loads this module, before the script. It watches run:steps, modules, optimizers, log.step,
--- batching.prepare, tokenizers and loaders. A loop of run:steps ends before its second step. In a loop that the
--- script wrote by hand, a repeated call marks a step: an optimizer's step, or log.step without an optimizer.

local batching = require "lockstep.batching"
local core = require "lockstep.core"
local data = require "lockstep.data"
local dist = require "lockstep.distributed"
local first_sample = require "lockstep.data.first_sample"
local fully_shard = require "lockstep.sharding.fully_shard"
local log = require "lockstep.log"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local plain = require "lockstep.plain"
local ranks = require "lockstep.sharding.planning.ranks"
local run = require "lockstep.run"
local text = require "lockstep.text"
local torch = require "lockstep.torch"
local watching = require "lockstep.watching"
local native = require "lockstep.core.watching"

local M = {}

local DEPTH, SHOWN = 3, 8 -- of the batch's tables

local modules = setmetatable({}, { __mode = "k" }) ---@type table<nn.Module, true>
local optimizers = {} ---@type optim.Optimizer[]
local plans, num_plans = nil, 0
local tracker ---@type lockstep.core.watching.Tracker
local counter ---@type lockstep.core.watching.Counter? of the step that is reported
local from_start ---@type lockstep.core.watching.Counter of a script that takes one step and ends
local taken = "no step"
local is_in_loop = false -- of run:steps
local has_stepped = {} ---@type table<any, true> an optimizer, or log.step, outside of such a loop
local batch ---@type string?
local tokens, micro_batches = nil, 1 ---@type integer?, integer of the batch's first micro-batch, and how many it has
local is_packed = false -- these are micro-batches of batching, not samples that the loop's body packs
local samples ---@type string? the first sample of the batch
local tokenizer ---@type text.Tokenizer? the last one that the script opened
local loader_options ---@type data.LoaderOptions? of the first loader
local batching_options = {} ---@type table of the last batching.prepare or stream
local is_finished = false

-- Text ----------------------------------------------------------------------------------------------

local function mib(bytes) return string.format("%.2f MiB", bytes / 2 ^ 20) end

--- 1234567 as "1,234,567".
local function grouped(count)
  local digits = string.format("%d", count):reverse():gsub("(%d%d%d)", "%1,"):reverse()
  return (digits:gsub("^,", ""))
end

--- "{ids = int64 {4, 128}, samples = 3 x {...}}": shapes instead of values.
local function describe(value, depth)
  if torch.is_tensor(value) then
    return (tostring(value.dtype):gsub("^torch%.", "")) .. " {" .. table.concat(value.shape, ", ") .. "}"
  elseif type(value) ~= "table" then
    return type(value) == "string" and string.format("%q", value) or tostring(value)
  elseif depth == 0 then
    return "{...}"
  end
  local names, parts = plain.keys(value, function(name) return type(name) == "string" end), {}
  if #value > 0 then parts[1] = (#value > 1 and #value .. " x " or "") .. describe(value[1], depth - 1) end
  for i, name in ipairs(names) do
    if i <= SHOWN then parts[#parts + 1] = name .. " = " .. describe(value[name], depth - 1) end
  end
  if #names > SHOWN then parts[#parts + 1] = string.format("and %d more", #names - SHOWN) end
  return "{" .. table.concat(parts, ", ") .. "}"
end

-- Counts --------------------------------------------------------------------------------------------

local function bytes_of(x) return x:numel() * x:element_size() end

--- Returns each parameter of the live modules and of the optimizers, once; of a sharded module, rank 0's part.
local function parameters()
  local seen, found = {}, {}
  local function add(p)
    p = fully_shard.shard_of(p) or p
    if not seen[p] then
      seen[p] = true
      found[#found + 1] = p
    end
  end
  for module in pairs(modules) do
    for _, p in ipairs(module:parameters()) do add(p) end
  end
  for _, optimizer in ipairs(optimizers) do
    for _, group in ipairs(optimizer.groups) do
      for _, p in ipairs(group.params) do add(p) end
    end
  end
  return found
end

local function optimizer_bytes()
  local bytes = 0
  for _, optimizer in ipairs(optimizers) do
    for _, state in pairs(optimizer.state) do
      for _, x in pairs(state) do bytes = bytes + bytes_of(x) end
    end
  end
  return bytes
end

local function print_sizes()
  local elements, bytes, trained, trained_bytes = 0, 0, 0, 0
  local all = parameters()
  for _, p in ipairs(all) do
    elements, bytes = elements + p:numel(), bytes + bytes_of(p)
    if p.requires_grad then trained, trained_bytes = trained + p:numel(), trained_bytes + bytes_of(p) end
  end
  print(string.format("parameters  %s in %d tensors, %s, of which %s are trained", grouped(elements), #all, mib(bytes),
    grouped(trained)))
  print("gradients   " .. mib(trained_bytes))
  print("optimizer   " .. (#optimizers > 0 and mib(optimizer_bytes()) or "none was made"))
end

local function print_plans()
  if not plans then return end
  local makespan = plans.ideal > 0 and string.format(", makespan %.2f of the ideal", plans.makespan / plans.ideal) or ""
  print(string.format("batches     of batching.prepare's last call of %d: %d micro-steps, %s tokens, %s of padding, "
    .. "%d padding micro-batches, %d truncated samples%s", num_plans, plans.micro_steps, grouped(plans.tokens),
    grouped(plans.padding_tokens), plans.padding_micro_batches, plans.truncated_samples, makespan))
end

--- Notes how many tokens a micro-batch has, and how many there are: the batch is one, or a list of them.
local function note_tokens(value)
  local first = value
  if type(value) == "table" and not torch.is_tensor(value) and type(value[1]) == "table" then
    first, micro_batches = value[1], #value
  end
  local ids = type(first) == "table" and not torch.is_tensor(first) and first.input_ids
  is_packed = ids and first.cu_seqlens ~= nil
  if torch.is_tensor(ids) then tokens = ids:numel() elseif type(ids) == "table" then tokens = #ids end
end

--- Prints the cost of the step. Only the first call does: at the end of the first step, or of the script.
function M.finish()
  if is_finished then return end
  is_finished = true
  local report = tracker:report()
  collectgarbage()
  collectgarbage()
  print(string.format("\ndry run of %s: %s of rank 0 of %d, on %s; other ranks are assumed to send the same",
    core.script(), taken, dist.world_size(), dist.device()))
  print_sizes()
  print_plans()
  if batch then print("batch       " .. batch) end
  if samples then print(samples) end
  if taken == "the one step" then counter = from_start end
  local counts = counter and watching.named_flops(counter:by_operator())
  if counts then print("\nFLOPs of the step, on this rank\n" .. tostring(counts)) end
  local of_ranks = tokens and ranks.table(tokens, micro_batches)
  if of_ranks then print("\n" .. of_ranks) end
  print("\nmemory of the " .. dist.device() .. ", from the script's start\n" .. watching.peak_lines(report))
end

-- Looking over shoulders ----------------------------------------------------------------------------

local function note_modules()
  local function note(class)
    local meta = getmetatable(class)
    local construct = meta.__call
    function meta.__call(...)
      local module = construct(...)
      modules[module] = true
      return module
    end
  end
  for _, class in pairs(nn) do
    if type(class) == "table" and class.class_name and class ~= nn.Module then note(class) end
  end
  local subclass = nn.Module.subclass
  function nn.Module:subclass(name)
    local class = subclass(self, name)
    note(class)
    return class
  end
end

local function finish_and_exit()
  M.finish()
  os.exit(0)
end

--- Wraps `step`: a second call outside of run:steps ends the script.
local function noted_step(who, step)
  return function(...)
    if is_in_loop then return step(...) end
    if has_stepped[who] then
      taken = "a step"
      finish_and_exit()
    end
    step(...)
    -- The operations from here to the second call are a whole step, in whatever order its parts come.
    has_stepped[who] = true
    counter = counter or native.flop_counter()
    if taken == "no step" then taken = "the one step" end
  end
end

local function note_optimizers()
  for _, name in ipairs { "AdamW", "Muon", "SGD" } do
    local make = optim[name]
    optim[name] = function(params, opts)
      local optimizer = make(params, opts)
      optimizer.step = noted_step(optimizer, optimizer.step)
      optimizers[#optimizers + 1] = optimizer
      return optimizer
    end
  end
end

local function note_logged_steps()
  local step = log.step
  local noted = noted_step(log, step)
  function log.step(fields) return (#optimizers > 0 and step or noted)(fields) end
end

--- Notes the text of the first samples in `value`, if there are some. The step's memory does not hold what this makes.
local function note_samples(value)
  local found = first_sample.find(value)
  if #found == 0 then return end
  lockstep.scope(function()
    if not tokenizer and loader_options then
      -- A worker's map has a tokenizer of its own. Here it prepares one sample, and opens the tokenizer in this state.
      local opts = plain.copy(loader_options)
      opts.workers = 0
      pcall(function() data.loader(opts)() end)
    end
    local parts = {}
    for i, of_kind in ipairs(found) do
      local ok, shown = pcall(first_sample.describe, of_kind, tokenizer, batching_options)
      parts[i] = ok and shown or "sample      cannot be shown: " .. tostring(shown)
    end
    samples = table.concat(parts, "\n")
  end)
end

local function note_plans()
  local prepare, stream = batching.prepare, batching.stream
  function batching.prepare(opts)
    batching_options = opts
    local batches, report = prepare(opts)
    plans, num_plans = report, num_plans + 1
    if not (is_in_loop or samples) then note_samples(batches[dist.rank() + 1]) end
    if is_in_loop and not is_packed then note_tokens(batches[dist.rank() + 1]) end
    return batches, report
  end
  function batching.stream(opts)
    batching_options = opts
    return stream(opts)
  end
end

local function note_tokenizers()
  local open, load = text.tokenizer, data.loader
  function text.tokenizer(path)
    tokenizer = open(path)
    return tokenizer
  end
  function data.loader(opts)
    loader_options = loader_options or opts
    return load(opts)
  end
end

--- The first loop of run:steps ends the script after a step; one without a step is an error.
local function stop_after_a_step()
  local steps, loop_total = run.steps, nil ---@type function, integer?
  function run:steps(loader, total)
    loop_total = total
    local function note(first, ...)
      if first ~= nil and not batch then
        batch = describe(first, DEPTH)
        note_tokens(first)
        note_samples(first)
      end
      return first, ...
    end
    return steps(self, plain.is_callable(loader) and function() return note(loader()) end or loader, total)
  end
  run.progress.on_step[function(step)
    if step and not is_in_loop then
      is_in_loop, taken, counter = true, "the first step", native.flop_counter()
    elseif not batch then
      core.raise("run:steps: the dry run has no step to report: " .. (is_in_loop
        and "the loader had no batch on rank 0 of " .. dist.world_size()
        or "total is " .. tostring(loop_total)))
    else
      finish_and_exit()
    end
  end] = true
end

--- Starts watching.
function M.start()
  tracker = native.memory_tracker(dist.device())
  from_start = native.flop_counter()
  watching.traces_nothing = true
  note_modules()
  note_optimizers()
  note_logged_steps()
  note_plans()
  note_tokenizers()
  stop_after_a_step()
end

return M
