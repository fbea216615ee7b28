--- What a run reports: a line per step on rank 0's terminal, a JSON object per step in metrics.jsonl
--- of the run's folder, the same numbers for TensorBoard beside it, a progress bar, and plots.
---
---     log.step { loss = loss, grad_norm = norm, tokens = 4096 }
---     log.record("validation", { loss = 0.31, accuracy = 0.97 })
---     log.curve("loss.svg", { "loss", "validation.loss" })

local core = require "lockstep.core"
local dist = require "lockstep.distributed"
local options = require "lockstep.options"
local peaks = require "lockstep.peaks"
local plot = require "lockstep.plot"
local run = require "lockstep.run"
local torch = require "lockstep.torch"
local watching = require "lockstep.core.watching"

local M = {}

local history = {} ---@type table<string, {step: integer, value: number}[]>
local metrics_file ---@type file*?
local event_file ---@type lockstep.core.watching.EventFile?
local steps_logged = 0
local started ---@type number?
local last_time ---@type number?
local flop_counter ---@type lockstep.core.watching.Counter?
local last_flops = 0
local peak_flops ---@type number?

--- What the JSON object of a step has beside the script's fields.
local OWN_FIELDS = { step = true, memory_bytes = true, alloc_retries = true, ooms = true, elapsed_s = true,
  step_s = true, data_share = true, tokens_per_s = true, tflops = true, mfu = true }

--- Columns of the step line, in order; others follow by name.
local FIRST = { "loss", "grad_norm", "lr" }

local function is_rank_0() return dist.rank() == 0 end

local function number_of(caller, name, value)
  local given = value
  if torch.is_tensor(value) and value:numel() == 1 then value = value:item() end
  if type(value) == "number" then return value end
  core.raise(string.format("%s: %s must be a number or a tensor of one element, not %s", caller, tostring(name),
    torch.is_tensor(given) and tostring(given.dtype) .. " " .. tostring(given.shape) or "a " .. type(given)))
end

--- The numbers of `fields`, tensors read off, and the step, which may be among them.
local function read_fields(caller, fields, step)
  if type(fields) ~= "table" then
    core.raise(string.format("%s: the fields must be a table, not a %s", caller, type(fields)))
  end
  local numbers = {}
  for name, value in pairs(fields) do
    if type(name) ~= "string" then
      core.raise(string.format("%s: fields have names, as in {loss = loss}, but there is one under %s", caller,
        tostring(name)))
    end
    numbers[name] = number_of(caller, name, value)
  end
  step, numbers.step = numbers.step or step, nil
  return numbers, step
end

-- The terminal --------------------------------------------------------------------------------------

local bar_is_shown = false

local function erase_bar()
  if bar_is_shown then io.stdout:write("\r\27[K") end
  bar_is_shown = false
end

local function draw_bar(step, total, text)
  local width = core.terminal_width()
  if not width or not total then return end
  local room = math.max(10, math.min(40, width - #text - 10))
  local filled = math.floor(room * (step + 1) / total)
  local bar = string.rep("█", filled) .. string.rep("░", room - filled)
  io.stdout:write(string.format("%s %3d%% %s", bar, math.floor(100 * (step + 1) / total), text))
  io.stdout:flush()
  bar_is_shown = true
end

local function print_line(line)
  erase_bar()
  io.stdout:write(line, "\n")
  io.stdout:flush()
end

local function duration(seconds)
  seconds = math.max(0, math.floor(seconds + 0.5))
  local hours, minutes = math.floor(seconds / 3600), math.floor(seconds / 60) % 60
  if hours > 0 then return string.format("%d:%02d:%02d", hours, minutes, seconds % 60) end
  return string.format("%d:%02d", minutes, seconds % 60)
end

local UNITS = { { 1e12, "T" }, { 1e9, "G" }, { 1e6, "M" }, { 1e3, "k" } }

--- 9.2k, 153, 1.4M: for rates and counts, of which three digits say enough.
local function rounded(value)
  for _, unit in ipairs(UNITS) do
    -- What rounds up to the next unit belongs to it: never "1000.0k".
    if math.abs(value) >= 0.99995 * unit[1] then return string.format("%.1f%s", value / unit[1], unit[2]) end
  end
  return string.format("%.0f", value)
end

--- A number as a column shows it.
local function short(value)
  local size = math.abs(value)
  if value ~= value or size == math.huge then return tostring(value) end
  if value % 1 == 0 and size < 1e4 then return string.format("%d", value) end
  if size >= 1e15 or size < 1e-2 then return string.format("%.2e", value) end
  if size >= 1e4 then return rounded(value) end
  if size >= 1e2 then return string.format("%.1f", value) end
  return string.format("%.4f", value)
end

local function columns(fields)
  local parts, used, rest = {}, {}, {}
  for _, name in ipairs(FIRST) do
    if fields[name] then parts[#parts + 1] = name .. " " .. short(fields[name]) end
    used[name] = true
  end
  for name in pairs(fields) do
    if not used[name] then rest[#rest + 1] = name end
  end
  table.sort(rest)
  for _, name in ipairs(rest) do parts[#parts + 1] = name .. " " .. short(fields[name]) end
  return table.concat(parts, "  ")
end

-- The files -----------------------------------------------------------------------------------------

--- What run.config resolved, as TensorBoard's text "config".
local function write_config(step)
  local file = io.open(run.dir .. "/config.json")
  if not file then return end
  event_file:write_text(step, "config", "```json\n" .. file:read("*a") .. "```\n")
  file:close()
end

--- The object's numbers, under their names; those of an event under "event/name". TensorBoard's steps are
--- whole numbers.
local function write_event(object)
  local step = math.floor(object.step)
  if not event_file then
    event_file = watching.event_file(run.dir)
    write_config(step)
  end
  local scalars = {}
  for name, value in pairs(object) do
    if type(value) == "number" and name ~= "step" then
      scalars[object.event and object.event .. "/" .. name or name] = value
    end
  end
  event_file:write(step, scalars)
end

local function write_metrics(object)
  if not metrics_file then metrics_file = assert(io.open(run.dir .. "/metrics.jsonl", "a")) end
  metrics_file:write(core.json_encode(object), "\n")
  metrics_file:flush()
  write_event(object)
end

local function remember(prefix, step, fields)
  for name, value in pairs(fields) do
    local series = prefix .. name
    history[series] = history[series] or {}
    table.insert(history[series], { step = step, value = value })
  end
end

-- Reporting -----------------------------------------------------------------------------------------

--- What a step tells of memory: on a GPU the most that tensors held since the step before, and how often the allocator
--- had to free its cache to go on, or could not; on a CPU what the process has of the machine's memory.
local function read_memory()
  if dist.device() == "cpu" then return { memory_bytes = core.resident_bytes() } end
  local stats = torch.cuda.memory_stats()
  torch.cuda.reset_peak_memory_stats()
  return { memory_bytes = stats.peak_allocated_bytes, alloc_retries = stats.alloc_retries, ooms = stats.ooms }
end

--- What the line says after the fields: speed, memory, waiting for data, time left.
local function status_of(object, step, total, now)
  local parts = {}
  if object.tokens_per_s then parts[1] = rounded(object.tokens_per_s) .. " tok/s" end
  if object.tflops then parts[#parts + 1] = rounded(object.tflops * 1e12) .. " FLOP/s" end
  if object.mfu then parts[#parts + 1] = string.format("mfu %.0f%%", 100 * object.mfu) end
  parts[#parts + 1] = string.format("%.0f MiB", object.memory_bytes / 2 ^ 20)
  if (object.alloc_retries or 0) > 0 then parts[#parts + 1] = object.alloc_retries .. " alloc retries" end
  if object.data_share then parts[#parts + 1] = string.format("data %.0f%%", 100 * object.data_share) end
  if total and steps_logged > 1 then
    local step_s = (now - started) / (steps_logged - 1)
    parts[#parts + 1] = "eta " .. duration(step_s * (total - step - 1))
  end
  return parts
end

--- FLOPs counted since this was called last, or nil where none are.
local function flops_since_last()
  if not flop_counter then return nil end
  local total = flop_counter:total()
  local flops = total - last_flops
  last_flops = total
  return flops
end

--- From here on each step tells `tflops`, the 10^12 floating-point operations per second of rank 0, and `mfu`, their
--- share of `peak`: FLOP/s, or a GPU by name ("A100", "H100 SXM", ...). Without it the peak is that of the GPU, and a
--- CPU has no mfu. Operations are counted as lockstep.flops does, as executed: with checkpointing this is the
--- hardware's utilization, recomputation included.
---
---     log.count_flops { peak = "H100 SXM" }
---@param opts? {peak: number|string|nil}
function M.count_flops(opts)
  local peak = options.read("log.count_flops", opts, { peak = options.optional }).peak
  if type(peak) == "string" then
    peak = peaks.of(peak)
  elseif peak == nil and dist.device() ~= "cpu" then
    local model = peaks.model_here()
    peak = model and peaks.of_model(model)
    if not peak then
      core.raise(string.format("log.count_flops: no peak is known of this machine's GPU (%s); give peak = FLOP/s",
        model or "several models, or none that /proc/driver/nvidia names"))
    end
  elseif peak ~= nil and not (type(peak) == "number" and peak > 0) then
    core.raise('log.count_flops: peak must be FLOP/s above 0 or a name as "H100 SXM", not ' .. tostring(peak))
  end
  peak_flops = peak
  flop_counter = flop_counter or is_rank_0() and watching.flop_counter() or nil
  flops_since_last()
end

--- Reports a step. Called by every rank, once for each step; only rank 0 prints and writes. Numbers, and
--- tensors of one element, under any name. `tokens`, the tokens of the step over all ranks, also gives
--- tokens/s. `step` overrides the number that run:steps counts. The JSON object adds elapsed_s,
--- memory_bytes and, from the second step on, step_s, data_share and tokens_per_s, and what log.count_flops adds.
--- On a GPU memory_bytes is the most that the step held (torch.cuda's peaks count anew from here on), and
--- alloc_retries and ooms are the allocator's counts so far.
---@param fields table<string, number|torch.Tensor>
function M.step(fields)
  local now = core.now()
  local seconds = last_time and now - last_time
  local data_seconds = run.progress.data_seconds
  run.progress.data_seconds = 0
  local default_step = run.progress.step or steps_logged
  last_time, started, steps_logged = now, started or now, steps_logged + 1
  local flops = flops_since_last()
  if type(fields) == "table" and type(fields.step) == "number" then default_step = fields.step end
  if default_step % 1 == 0 then core.set_step(default_step) end
  if not is_rank_0() then return end

  local shown, step = read_fields("log.step", fields, default_step)
  local object = read_memory()
  object.step, object.elapsed_s = step, now - started
  -- The first step has no beginning that we know of.
  if seconds then
    object.step_s, object.data_share = seconds, math.min(1, data_seconds / seconds)
    if shown.tokens then object.tokens_per_s = shown.tokens / seconds end
    if flops then
      object.tflops = flops / seconds / 1e12
      object.mfu = peak_flops and flops / seconds / peak_flops
    end
  end
  for name, value in pairs(shown) do object[name] = value end
  shown.tokens = nil

  local total = run.progress.total
  local status = status_of(object, step, total, now)
  remember("", step, shown)
  write_metrics(object)
  local position = total and string.format("%d/%d", step, total) or tostring(step)
  print_line(string.format("step %s  %s  %s", position, columns(shown), table.concat(status, "  ")))
  draw_bar(step, total, status[#status])
end

--- Takes up what another run left in the folder of this one, up to `step` steps: what it reported later, and was lost
--- with it, is left out of metrics.jsonl and of the curves. Prints `text`.
---@param step integer steps that are done
---@param text string?
function M.go_on_from(step, text)
  if not is_rank_0() then return end
  local path, kept, lost = run.dir .. "/metrics.jsonl", {}, 0
  local file = io.open(path)
  for line in file and file:lines() or function() end do
    local ok, object = pcall(core.json_decode, line)
    if ok and type(object) == "table" and type(object.step) == "number" and object.step < step then
      kept[#kept + 1] = line .. "\n"
      local fields = {}
      for name, value in pairs(object) do
        if type(value) == "number" and not OWN_FIELDS[name] then fields[name] = value end
      end
      remember(object.event and object.event .. "." or "", object.step, fields)
    else
      lost = lost + 1
    end
  end
  if file then file:close() end
  if lost > 0 then
    -- A new file takes the name: what is open still is the old one.
    if metrics_file then metrics_file:close() end
    metrics_file = nil
    core.write_file(path, kept)
  end
  if text then print_line(text) end
end

--- Reports something beside the steps, such as a validation: one line and one JSON object with
--- `event = name`. Time spent until here since the last step is not counted as the next step's.
---@param name string
---@param fields table<string, number|torch.Tensor>
function M.record(name, fields)
  if type(name) ~= "string" then core.raise("log.record: the first argument is the event's name, a string") end
  last_time = core.now()
  flops_since_last()
  if not is_rank_0() then return end
  local shown, step = read_fields("log.record", fields, run.progress.step or math.max(0, steps_logged - 1))
  local object = { event = name, step = step }
  for key, value in pairs(shown) do object[key] = value end
  remember(name .. ".", step, shown)
  write_metrics(object)
  print_line(string.format("%s at step %d  %s", name, step, columns(shown)))
end

--- Prints on rank 0 alone, clear of the progress bar.
---@param ... any
function M.print(...)
  if not is_rank_0() then return end
  local parts = {}
  for i = 1, select("#", ...) do parts[i] = tostring((select(i, ...))) end
  print_line(table.concat(parts, "\t"))
end

--- Draws series of what was logged over the steps, as an SVG file in the run's folder; returns its path
--- (nil on other ranks). A step's fields go by their name, an event's as "event.name".
---@param file string
---@param series string[]
---@param opts {title: string?, log_scale: boolean?}?
---@return string?
function M.curve(file, series, opts)
  if not is_rank_0() then return nil end
  if type(file) ~= "string" or file == "" then
    core.raise('log.curve: the file must be a name, as "loss.svg", not ' .. (file == "" and '""' or "a " .. type(file)))
  end
  if type(series) ~= "table" then
    core.raise("log.curve: the series must be an array of names, not a " .. type(series))
  end
  local drawn = {}
  for _, name in ipairs(series) do
    if not history[name] then
      local known = {}
      for key in pairs(history) do known[#known + 1] = key end
      table.sort(known)
      core.raise(string.format('log.curve: nothing was logged as "%s" (known: %s)', tostring(name),
        table.concat(known, ", ")))
    end
    drawn[#drawn + 1] = { name = name, points = history[name] }
  end
  local path = run.dir .. "/" .. file
  core.write_file(path, { plot.svg(drawn, opts) })
  return path
end

return M
