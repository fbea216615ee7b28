--- Measures a script: FLOPs by operator, memory by line, a trace over time. Scripts find all of it in the global
--- `lockstep`.
---
---     print(lockstep.flops(train_step, batch))
---     print(lockstep.memory_by_line(train_step, batch))
---     lockstep.profile { steps = { 10, 12 } }
---     local y = lockstep.span("attention", attention, x)

local core = require "lockstep.core"
local dist = require "lockstep.distributed"
local files = require "lockstep.core.files"
local options = require "lockstep.options"
local plain = require "lockstep.plain"
local roofline = require "lockstep.watching.roofline"
local run = require "lockstep.run"
local tables = require "lockstep.log.tables"
local terminal = require "lockstep.log.terminal"
local watching = require "lockstep.core.watching"

local M = {}

--- Set by --dry-run, which tracks memory by line: libtorch cannot trace at the same time.
M.traces_nothing = false

local SHOWN = 10 -- lines of a table

local function check_function(name, fn)
  plain.check(plain.is_callable(fn), "%s: the argument must be a function, not a %s", name, type(fn))
end

-- FLOPs ---------------------------------------------------------------------------------------------

---@class lockstep.Flops
---@field total integer
---@field [integer] {name: string, flops: integer, calls: integer} by operator, the most first
local Flops = {}

function Flops:__tostring()
  local rows = { { "operator", "FLOPs", "share", "calls" } }
  for _, op in ipairs(self) do
    local share = string.format("%.0f%%", 100 * op.flops / math.max(1, self.total))
    rows[#rows + 1] = { op.name, tables.rounded(op.flops), share, tostring(op.calls) }
  end
  rows[#rows + 1] = { "total", tables.rounded(self.total), "", "" }
  return tables.columns(rows)
end

--- Calls `fn(...)` and counts the floating-point operations of its matrix products, convolutions and attention, forward
--- and backward. Returns a table by operator, which prints as one, then fn's results. Operations are counted as
--- executed on this rank, so recomputation under checkpointing counts again.
---
---     local counts, loss = lockstep.flops(train_step, batch)
---     print(counts, counts.total)
---@param fn fun(...): ...
---@param ... any
---@return lockstep.Flops counts
---@return any ...
function M.flops(fn, ...)
  check_function("lockstep.flops", fn)
  local function named(counts, ...) return M.named_flops(counts), ... end
  return named(watching.flops(fn, ...))
end

--- Makes counts print as a table.
---@param counts lockstep.Flops
---@return lockstep.Flops
function M.named_flops(counts) return setmetatable(counts, Flops) end

-- Memory --------------------------------------------------------------------------------------------

---@class lockstep.LineMemory
---@field place string "train.lua:12"; "" where no line of Lua ran
---@field bytes integer
---@field count integer allocations

---@class lockstep.MemoryByLine
---@field peak_bytes integer the most that was held at once, of what was allocated meanwhile
---@field peak lockstep.LineMemory[] who held it then, the most first
---@field held_bytes integer what was still held in the end
---@field held lockstep.LineMemory[]
local MemoryByLine = {}

local function mib(bytes) return string.format("%.2f", bytes / 2 ^ 20) end

local function lines_table(title, total, lines)
  local rows = { { title, "MiB", "share", "tensors" } }
  local rest = { bytes = 0, count = 0 }
  local function add(name, bytes, count)
    rows[#rows + 1] = { name, mib(bytes), string.format("%.0f%%", 100 * bytes / math.max(1, total)), tostring(count) }
  end
  for i, line in ipairs(lines) do
    if i <= SHOWN then
      add(line.place ~= "" and line.place or "(no line)", line.bytes, line.count)
    else
      rest.bytes, rest.count = rest.bytes + line.bytes, rest.count + line.count
    end
  end
  if #lines > SHOWN then add(string.format("%d more lines", #lines - SHOWN), rest.bytes, rest.count) end
  rows[#rows + 1] = { "total", mib(total), "", "" }
  return tables.columns(rows)
end

--- Returns the lines that hold the most at the peak, as a table.
---@param report lockstep.MemoryByLine
---@return string
function M.peak_lines(report) return lines_table("at the peak", report.peak_bytes, report.peak) end

function MemoryByLine:__tostring()
  return M.peak_lines(self) .. "\n\n" .. lines_table("in the end", self.held_bytes, self.held)
end

--- Calls `fn(...)` and records which line allocates memory on this rank's device, including memory that autograd keeps
--- for backward. Returns who held how much at the peak and at the end, then fn's results. The report prints as a table
--- of ten lines. Memory allocated before is not in it, so wrap the construction of the model too to see it. Not
--- together with lockstep.profile: neither inside the other.
---
---     local report, loss = lockstep.memory_by_line(train_step, batch)
---     print(report, report.peak[1].place)
---@param fn fun(...): ...
---@param ... any
---@return lockstep.MemoryByLine report
---@return any ...
function M.memory_by_line(fn, ...)
  check_function("lockstep.memory_by_line", fn)
  local function named(report, ...) return setmetatable(report, MemoryByLine), ... end
  return named(watching.memory_by_line(dist.device(), fn, ...))
end

-- Traces --------------------------------------------------------------------------------------------

--- Returns fn(...), and draws it as a span of this name in the running trace, if any.
---
---     local y = lockstep.span("attention", attention, x)
---@param name string
---@param fn fun(...): ...
---@param ... any
---@return any ...
function M.span(name, fn, ...) return watching.span(name, fn, ...) end

--- Returns the path of a rank's trace: "trace.json" becomes "trace-rank0.json" in the run's folder.
local function trace_path(path)
  local stem, extension = path:match("^(.*)(%.[^./]*)$")
  path = string.format("%s-rank%d%s", stem or path, dist.rank(), extension or "")
  return path:sub(1, 1) == "/" and path or run.dir .. "/" .. path
end

local function read_steps(steps)
  local from, to = steps[1], steps[2]
  plain.check(#steps == 2 and plain.is_whole(from, 0) and plain.is_whole(to, 0) and to >= from,
    "lockstep.profile: steps must be the first and the last step to trace, as in {10, 12}")
  return from, to
end

--- Traces run:steps' steps from `from` to `to`, and prints their roofline if asked.
local function follow_steps(from, to, path, opts, has_roofline)
  local trace, costs ---@type lockstep.core.watching.Trace?, lockstep.core.watching.Costs?
  local on_step
  local steps = 0
  local function finish()
    run.progress.on_step[on_step] = nil
    if costs then costs:stop() end
    if trace then trace:stop() end
    if costs then terminal.print_line(roofline.text(costs:report(), steps)) end
  end
  function on_step(step)
    local ended = not step or step > to
    -- A run that was resumed may begin after `from`.
    if not ended and not trace and step >= from then
      trace = watching.trace(path, opts)
      costs = has_roofline and watching.operator_costs(dist.device()) or nil
    end
    if ended then
      finish()
      if not trace then
        local message = "lockstep.profile: the loop took no step from %d to %d; no trace was written\n"
        io.stderr:write(message:format(from, to))
      end
    elseif trace then
      steps = steps + 1
      trace:begin_step(step)
    end
  end
  run.progress.on_step[on_step] = true
end

local function say_that_nothing_is_traced(path)
  print(string.format("lockstep.profile: a dry run traces nothing; %s is not written", path:match("[^/]*$")))
end

---@class lockstep.profile.Options
---@field path string? "trace.json" unless given
---@field steps integer[]? the first and the last step
---@field record_shapes boolean? of operators' arguments
---@field profile_memory boolean? each allocation
---@field roofline boolean? print the costs of operators

--- Writes a trace for chrome://tracing and ui.perfetto.dev: operators, their backward, spans, a GPU's kernels. It makes
--- one file per rank in the run's folder: `path` with "-rank<rank>" before its extension. It traces the steps `steps`
--- of the next run:steps, both included; or fn(...), whose results follow. Returns the file's path. Not together with
--- lockstep.memory_by_line: neither inside the other.
---
---     lockstep.profile { steps = { 10, 12 } }       -- before the loop: runs/.../trace-rank0.json
---     local path, loss = lockstep.profile({ path = "one.json", record_shapes = true }, train_step, batch)
---     lockstep.profile { steps = { 10, 12 }, roofline = true }
---
--- `roofline` also prints, on rank 0, what each group of operators moved, computed and took, next to what this machine
--- can do. It measures the peaks once, after the trace, in about a second.
---@param opts lockstep.profile.Options
---@param fn? fun(...): ...
---@param ... any
---@return string path
---@return any ...
function M.profile(opts, fn, ...)
  local o = options.read("lockstep.profile", opts,
    { path = "trace.json", steps = {}, record_shapes = false, profile_memory = false, roofline = false })
  local has_roofline = o.roofline and dist.rank() == 0
  local has_steps = opts ~= nil and opts.steps ~= nil
  plain.check(has_steps ~= (fn ~= nil),
    "lockstep.profile: give either steps = {from, to} or, after the options, a function to trace")
  local path = trace_path(o.path)
  local problem = files.why_unwritable(path)
  if problem then core.raise(("lockstep.profile: cannot write the trace %s: %s"):format(path, problem)) end
  local recorded = { record_shapes = o.record_shapes, profile_memory = o.profile_memory }
  if not has_steps then
    check_function("lockstep.profile", fn)
    if M.traces_nothing then
      say_that_nothing_is_traced(path)
      return path, fn(...)
    end
    if not has_roofline then return path, watching.traced(path, recorded, fn, ...) end
    local function shown(costs, ...)
      terminal.print_line(roofline.text(costs:report()))
      return path, ...
    end
    return shown(watching.traced(path, recorded, watching.costs_of, dist.device(), fn, ...))
  end
  local from, to = read_steps(o.steps)
  if M.traces_nothing then
    say_that_nothing_is_traced(path)
  else
    follow_steps(from, to, path, recorded, has_roofline)
  end
  return path
end

return M
