--- Reports a run. Each step is a line on rank 0's terminal and a JSON object in metrics.jsonl of the run's folder.
--- TensorBoard gets the same numbers. There are also a progress bar and plots.
---
---     log.step { loss = loss, grad_norm = norm, tokens = 4096 }
---     log.record("validation", { loss = 0.31, accuracy = 0.97 })
---     log.curve("loss.svg", { "loss", "validation.loss" })

local core = require "lockstep.core"
local dist = require "lockstep.distributed"
local history = require "lockstep.log.history"
local memory = require "lockstep.log.memory"
local metrics = require "lockstep.log.metrics"
local nonfinite = require "lockstep.run.nonfinite"
local options = require "lockstep.options"
local peaks = require "lockstep.watching.peaks"
local plain = require "lockstep.plain"
local plot = require "lockstep.log.plot"
local run = require "lockstep.run"
local stragglers = require "lockstep.log.stragglers"
local terminal = require "lockstep.log.terminal"
local torch = require "lockstep.torch"
local watching = require "lockstep.core.watching"

local M = {}

local series_by_name = {} ---@type table<string, log.Series>
local steps_logged = 0
local started ---@type number?
local last_time ---@type number?
local flop_counter ---@type lockstep.core.watching.Counter?
local last_flops = 0
local peak_flops ---@type number?

--- The fields of a step's JSON object in addition to the script's.
local OWN_FIELDS = { step = true, memory_bytes = true, alloc_retries = true, ooms = true, elapsed_s = true,
  step_s = true, data_share = true, saving_s = true, tokens_per_s = true, tflops = true, mfu = true,
  metrics_lost = true, nonfinite_steps = true, slowest_rank = true, slowest_late_s = true }

local function is_rank_0() return dist.rank() == 0 end

local function number_of(caller, name, value)
  local given = value
  if torch.is_tensor(value) and value:numel() == 1 then value = value:item() end
  if type(value) == "number" then return value end
  core.raise(string.format("%s: %s must be a number or a tensor of one element, not %s", caller, tostring(name),
    torch.is_tensor(given) and tostring(given.dtype) .. " " .. tostring(given.shape) or "a " .. type(given)))
end

--- Returns the numbers of `fields` and of its table `counts`, with tensors read; the step, which may be a field; and
--- the names of the counts that are 0.
local function read_fields(caller, fields, step)
  plain.check(type(fields) == "table", "%s: the fields must be a table, not a %s", caller, type(fields))
  local numbers, zeros = {}, {}
  local function read(name, value)
    plain.check(type(name) == "string",
      "%s: fields have names, as in {loss = loss}, but there is one under %s", caller, name)
    plain.check(numbers[name] == nil, "%s: %s is both a field and among the counts", caller, name)
    numbers[name] = number_of(caller, name, value)
  end
  for name, value in pairs(fields) do
    if name ~= "counts" or type(value) ~= "table" then read(name, value) end
  end
  for name, value in pairs(type(fields.counts) == "table" and fields.counts or {}) do
    read(name, value)
    if numbers[name] == 0 then zeros[#zeros + 1] = name end
  end
  step, numbers.step = numbers.step or step, nil
  return numbers, step, zeros
end

--- Returns the columns of a line: the fields without those of the names in `hidden`.
local function columns(fields, hidden)
  local shown = plain.copy(fields)
  for _, name in ipairs(hidden) do shown[name] = nil end
  return terminal.columns(shown)
end

--- Keeps fields for curves.
local function remember(prefix, step, fields)
  for name, value in pairs(fields) do
    local key = prefix .. name
    series_by_name[key] = series_by_name[key] or history.series()
    series_by_name[key]:add(step, value)
  end
end

-- Reporting -----------------------------------------------------------------------------------------

--- Returns a step's memory fields. On a GPU: the most that tensors held since the step before, and the allocator's
--- counts of freeing its cache and of failures. On a CPU: the process's share of the machine's memory.
local function read_memory()
  if dist.device() == "cpu" then return { memory_bytes = core.resident_bytes() } end
  local stats = torch.cuda.memory_stats()
  torch.cuda.reset_peak_memory_stats()
  return { memory_bytes = stats.peak_allocated_bytes, alloc_retries = stats.alloc_retries, ooms = stats.ooms }
end

--- Returns the rest of the line after the fields: speed, memory, waiting for data, the slowest rank, time left.
local function status_of(object, straggler, step, total, now)
  local parts = {}
  if object.tokens_per_s then parts[1] = terminal.rounded(object.tokens_per_s) .. " tok/s" end
  if object.tflops then parts[#parts + 1] = terminal.rounded(object.tflops * 1e12) .. " FLOP/s" end
  if object.mfu then parts[#parts + 1] = string.format("mfu %.0f%%", 100 * object.mfu) end
  parts[#parts + 1] = string.format("%.0f MiB", object.memory_bytes / 2 ^ 20)
  if (object.alloc_retries or 0) > 0 then parts[#parts + 1] = object.alloc_retries .. " alloc retries" end
  if nonfinite.count > 0 then parts[#parts + 1] = "nonfinite " .. nonfinite.count end
  if metrics.lost > 0 then parts[#parts + 1] = "metrics lost " .. metrics.lost end
  if object.data_share then parts[#parts + 1] = string.format("data %.0f%%", 100 * object.data_share) end
  if (object.saving_s or 0) >= 0.5 then parts[#parts + 1] = string.format("saving %.0f s", object.saving_s) end
  if straggler and straggler.is_notable then parts[#parts + 1] = stragglers.describe(straggler) end
  if total and steps_logged > 1 then
    local step_s = (now - started) / (steps_logged - 1)
    parts[#parts + 1] = "eta " .. terminal.duration(step_s * (total - step - 1))
  end
  return parts
end

--- Returns the FLOPs counted since the last call, or nil if they are not counted.
local function flops_since_last()
  if not flop_counter then return nil end
  local total = flop_counter:total()
  local flops = total - last_flops
  last_flops = total
  return flops
end

--- From here on each step reports `tflops`, the 10^12 floating-point operations per second of rank 0, and `mfu`, their
--- share of `peak`: FLOP/s, or a GPU by name ("A100", "H100 SXM", ...). The peak defaults to the machine's GPU, and a
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
    plain.check(peak, "log.count_flops: no peak is known of this machine's GPU (%s); give peak = FLOP/s",
      model or "several models, or none that /proc/driver/nvidia names")
  elseif peak ~= nil and not (type(peak) == "number" and peak > 0) then
    core.raise('log.count_flops: peak must be FLOP/s above 0 or a name as "H100 SXM", not ' .. tostring(peak))
  end
  peak_flops = peak
  flop_counter = flop_counter or is_rank_0() and watching.flop_counter() or nil
  flops_since_last()
end

--- Reports a step. Every rank calls it once for each step; only rank 0 prints and writes. Fields are numbers, and
--- tensors of one element, under any name. `tokens`, the tokens of the step over all ranks, also gives tokens/s. `step`
--- overrides the number that run:steps counts. The table `counts` holds further fields, which the line shows only
--- where they are not 0: what was cut or left out.
---
---     log.step { loss = loss, counts = { truncated_samples = report.truncated_samples } }
---
--- The JSON object adds elapsed_s, memory_bytes and, from the second step on, step_s, data_share and tokens_per_s, and
--- the fields of log.count_flops. On a GPU memory_bytes is the most that the step held (this call resets torch.cuda's
--- peaks), and alloc_retries and ooms are the allocator's counts so far. With several ranks that agree at each step
--- (run:state, run:finite, sharding.lockstep), slowest_rank is the rank that worked longest between the last two
--- agreements, and slowest_late_s how much longer than the median rank. The line names it where that is notable.
---@param fields table<string, number|torch.Tensor|table<string, number|torch.Tensor>>
function M.step(fields)
  local now = core.now()
  local seconds = last_time and now - last_time
  local data_seconds = run.progress.data_seconds
  local saving_seconds = run.progress.saving_seconds
  run.progress.data_seconds, run.progress.saving_seconds = 0, 0
  local default_step = run.progress.step or steps_logged
  last_time, started, steps_logged = now, started or now, steps_logged + 1
  local flops = flops_since_last()
  if type(fields) == "table" and type(fields.step) == "number" then default_step = fields.step end
  if default_step % 1 == 0 then core.set_step(default_step) end
  if not is_rank_0() then return end

  local shown, step, zeros = read_fields("log.step", fields, default_step)
  local object = read_memory()
  object.step, object.elapsed_s = step, now - started
  local straggler = stragglers.take()
  if straggler then object.slowest_rank, object.slowest_late_s = straggler.rank, straggler.late_s end
  object.saving_s = saving_seconds > 0 and saving_seconds or nil
  object.nonfinite_steps = nonfinite.count > 0 and nonfinite.count or nil
  -- The beginning of the first step is unknown.
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
  local status = status_of(object, straggler, step, total, now)
  remember("", step, shown)
  metrics.write(object)
  local position = total and string.format("%d/%d", step, total) or tostring(step)
  terminal.print_line(string.format("step %s  %s  %s", position, columns(shown, zeros), table.concat(status, "  ")))
  terminal.draw_bar(step, total, status[#status])
  nonfinite.check_reported(step, shown, run.progress.batch[1])
end

--- Continues the log of an earlier run in this folder, up to `step` steps. Later reports of that run were lost with it,
--- so they are left out of metrics.jsonl and of the curves. Prints `text`. Private to lockstep.state.
---@param step integer steps that are done
---@param text string?
function M.go_on_from(step, text)
  if not is_rank_0() then return end
  local path, kept, lost = run.dir .. "/metrics.jsonl", {}, 0
  local file = io.open(path)
  for line in file and file:lines() or function() end do
    local ok, object = pcall(core.json_decode, line)
    local is_object = ok and type(object) == "table"
    if is_object and object.event == "restart" then
      kept[#kept + 1] = line .. "\n" -- the launcher's: it happened, whatever was lost
    elseif is_object and type(object.step) == "number" and object.step < step then
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
  if lost > 0 then metrics.replace(kept) end
  if text then terminal.print_line(text) end
end

--- Reports an event other than a step, such as a validation: one line and one JSON object with `event = name`. The time
--- since the last step is not counted as the next step's. Fields are those of log.step, with `counts`.
---@param name string
---@param fields table<string, number|torch.Tensor|table<string, number|torch.Tensor>>
function M.record(name, fields)
  if type(name) ~= "string" then core.raise("log.record: the first argument is the event's name, a string") end
  last_time = core.now()
  flops_since_last()
  if not is_rank_0() then return end
  stragglers.take() -- what the ranks did for this event is not the next step's
  local shown, step, zeros = read_fields("log.record", fields, run.progress.step or math.max(0, steps_logged - 1))
  local object = plain.copy({ event = name, step = step }, shown)
  remember(name .. ".", step, shown)
  metrics.write(object)
  terminal.print_line(string.format("%s at step %d  %s", name, step, columns(shown, zeros)))
end

--- Returns the path of a file that a script names, which must be inside the run's folder.
local function path_of(caller, file, example)
  plain.check(type(file) == "string" and file ~= "", '%s: the file must be a name, as "%s", not %s', caller, example,
    file == "" and '""' or "a " .. type(file))
  local last = file:match "[^/]*$"
  local is_inside = file:sub(1, 1) ~= "/" and last ~= "" and last ~= "." and not file:find("%z")
  for part in file:gmatch "[^/]+" do is_inside = is_inside and part ~= ".." end
  plain.check(is_inside, '%s: the file must be a name inside the run\'s folder, as "%s", not %q', caller, example, file)
  return run.dir .. "/" .. file
end

--- Items that log.list prints; the others are in its file.
local LISTED = 5

--- Returns a title with the first of the items below it, as text. Rank 0 writes all items into `file` of the run's
--- folder, a line each.
---
---     error(log.listing("12 samples cannot be read", places, "unread.txt"), 0)
---@param title string
---@param items string[]
---@param file string
---@return string
function M.listing(title, items, file)
  local path, lines = path_of("log.listing", file, "skipped.txt"), { title .. ":" }
  for i = 1, math.min(#items, LISTED) do lines[i + 1] = "  " .. items[i] end
  if #items > LISTED then lines[#lines + 1] = ("  and %d more: see %s"):format(#items - LISTED, path) end
  if is_rank_0() then core.write_file(path, { table.concat(items, "\n"), "\n" }) end
  return table.concat(lines, "\n")
end

--- Prints what log.listing returns, on rank 0; nothing where there are no items.
---
---     log.list("12 samples are skipped", places, "skipped.txt")
---@param title string
---@param items string[]
---@param file string
function M.list(title, items, file)
  if #items > 0 then M.print(M.listing(title, items, file)) end
end

--- Prints on rank 0 only, without breaking the progress bar.
---@param ... any
function M.print(...)
  if not is_rank_0() then return end
  local parts = {}
  for i = 1, select("#", ...) do parts[i] = tostring((select(i, ...))) end
  terminal.print_line(table.concat(parts, "\t"))
end

--- Draws series of logged values over the steps, as an SVG file in the run's folder; returns its path (nil on other
--- ranks). A step's fields go by their name, an event's as "event.name".
---@param file string
---@param series string[]
---@param opts {title: string?, log_scale: boolean?}?
---@return string?
function M.curve(file, series, opts)
  local path = path_of("log.curve", file, "loss.svg")
  if not is_rank_0() then return nil end
  plain.check(type(series) == "table", "log.curve: the series must be an array of names, not a %s", type(series))
  local drawn = {}
  for _, name in ipairs(series) do
    local series_of_name = series_by_name[name]
    plain.check(series_of_name, 'log.curve: nothing was logged as "%s" (known: %s)', tostring(name),
      table.concat(plain.keys(series_by_name), ", "))
    drawn[#drawn + 1] = { name = name, points = series_of_name:points() }
  end
  core.write_file(path, { plot.svg(drawn, opts) })
  return path
end

--- Calls functions one after the other, and draws the memory that tensors held meanwhile on this rank's device. The
--- picture is an SVG file in the run's folder, with a line over time for each function. A step's line climbs by what
--- each layer keeps, and falls in backward.
---
---     local peaks = log.memory("memory.svg", {
---       { "plain", train_step },
---       { "offloaded", function() model.checkpoint = { offload = "host" } train_step() end },
---     }, { title = "a step" })
---     print(peaks.plain, peaks.offloaded)
---
--- Memory that was allocated before a function is not in its line. Every rank calls this; rank 0 draws its own memory.
--- Within lockstep.profile it is an error.
---@param file string
---@param parts {[1]: string, [2]: fun()}[] names, each another one, and functions
---@param opts {title: string?}?
---@return table<string, integer> peaks by name, the most bytes that this rank held
function M.memory(file, parts, opts)
  local path = path_of("log.memory", file, "memory.svg")
  local o = options.read("log.memory", opts, { title = "" })
  local series, most = memory.measure(dist.device(), parts)
  if is_rank_0() then
    core.write_file(path, { plot.svg(series, { title = o.title .. " (MiB)" }, "seconds", "MiB") })
  end
  return most
end

return M
