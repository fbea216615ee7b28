--- What a run reports: a line per step on rank 0's terminal, a JSON object per step in metrics.jsonl
--- of the run's folder, a progress bar, and plots.
---
---     log.step { loss = loss, grad_norm = norm, tokens = 4096 }
---     log.record("validation", { loss = 0.31, accuracy = 0.97 })
---     log.curve("loss.svg", { "loss", "validation.loss" })

local core = require "lockstep.core"
local dist = require "lockstep.distributed"
local run = require "lockstep.run"
local torch = require "lockstep.torch"

local M = {}

local history = {} ---@type table<string, {step: integer, value: number}[]>
local metrics_file ---@type file*?
local steps_logged = 0
local started ---@type number?
local last_time ---@type number?

--- Columns of the step line, in order; others follow by name.
local FIRST = { "loss", "grad_norm", "lr" }

local function is_rank_0() return dist.rank() == 0 end

local function number_of(name, value)
  if torch.is_tensor(value) then return value:item() end
  if type(value) ~= "number" then
    core.raise(string.format("log: %s must be a number or a tensor of one element, not a %s", name, type(value)))
  end
  return value
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

local function short(value)
  local size = math.abs(value)
  if value ~= value or size == math.huge then return tostring(value) end
  if size >= 1e6 then return string.format("%.2fM", value / 1e6) end
  if size >= 1e4 then return string.format("%.1fk", value / 1e3) end
  if value % 1 == 0 then return string.format("%d", value) end
  if size < 1e-3 then return string.format("%.2e", value) end
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

-- The file ------------------------------------------------------------------------------------------

local function write_metrics(object)
  if not metrics_file then metrics_file = assert(io.open(run.dir .. "/metrics.jsonl", "a")) end
  metrics_file:write(core.json_encode(object), "\n")
  metrics_file:flush()
end

local function remember(prefix, step, fields)
  for name, value in pairs(fields) do
    local series = prefix .. name
    history[series] = history[series] or {}
    table.insert(history[series], { step = step, value = value })
  end
end

-- Reporting -----------------------------------------------------------------------------------------

--- Bytes in use: on the device where there is one, else the process's share of the machine's memory.
local function memory_bytes()
  if dist.device() ~= "cpu" then return torch.cuda.max_memory_allocated() end
  return core.resident_bytes()
end

--- Reports a step. Called by every rank, once for each step; only rank 0 prints and writes. Numbers, and
--- tensors of one element, under any name. `tokens`, the tokens of the step over all ranks, also gives
--- tokens/s. `step` overrides the number that run:steps counts.
---@param fields table<string, number|torch.Tensor>
function M.step(fields)
  if type(fields) ~= "table" then core.raise("log.step: the fields must be a table, not a " .. type(fields)) end
  local now = core.now()
  local step = fields.step or run.progress.step or steps_logged
  local seconds = last_time and now - last_time
  local data_seconds = run.progress.data_seconds
  run.progress.data_seconds = 0
  last_time, started, steps_logged = now, started or now, steps_logged + 1
  if not is_rank_0() then return end

  local shown, object = {}, { step = step, memory_bytes = memory_bytes(), elapsed_s = now - started }
  for name, value in pairs(fields) do
    if name ~= "step" then
      object[name] = number_of(name, value)
      if name ~= "tokens" then shown[name] = object[name] end
    end
  end
  local status = {}
  -- The first step has no beginning that we know of.
  if seconds then
    object.step_s, object.data_share = seconds, math.min(1, data_seconds / seconds)
    if object.tokens then
      object.tokens_per_s = object.tokens / seconds
      status[#status + 1] = short(object.tokens_per_s) .. " tok/s"
    end
  end
  status[#status + 1] = string.format("%d MiB", object.memory_bytes / 2 ^ 20)
  if seconds then status[#status + 1] = string.format("data %d%%", 100 * object.data_share + 0.5) end
  local total = run.progress.total
  if total and steps_logged > 1 then
    local left = (now - started) / (steps_logged - 1) * (total - step - 1)
    status[#status + 1] = "eta " .. duration(left)
  end
  remember("", step, shown)
  write_metrics(object)
  local position = total and string.format("%d/%d", step, total) or tostring(step)
  print_line(string.format("step %s  %s  %s", position, columns(shown), table.concat(status, "  ")))
  draw_bar(step, total, status[#status])
end

--- Reports something beside the steps, such as a validation: one line and one JSON object with
--- `event = name`. Time spent until here since the last step is not counted as the next step's.
---@param name string
---@param fields table<string, number|torch.Tensor>
function M.record(name, fields)
  if type(name) ~= "string" then core.raise("log.record: the first argument is the event's name, a string") end
  local step = fields.step or run.progress.step or math.max(0, steps_logged - 1)
  last_time = core.now()
  if not is_rank_0() then return end
  local shown, object = {}, { event = name, step = step }
  for key, value in pairs(fields) do
    if key ~= "step" then
      object[key] = number_of(key, value)
      shown[key] = object[key]
    end
  end
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
  local drawn = {}
  for _, name in ipairs(series) do
    if not history[name] then
      local known = {}
      for key in pairs(history) do known[#known + 1] = key end
      table.sort(known)
      core.raise(string.format('log.curve: nothing was logged as "%s" (known: %s)', name, table.concat(known, ", ")))
    end
    drawn[#drawn + 1] = { name = name, points = history[name] }
  end
  local path = run.dir .. "/" .. file
  local out = assert(io.open(path, "w"))
  out:write(require("lockstep.plot").svg(drawn, opts))
  out:close()
  return path
end

return M
