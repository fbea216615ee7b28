--- The files of a run's numbers: metrics.jsonl and TensorBoard's event file, in the run's folder, on rank 0.
---
--- A record that cannot be written, on a full disk or in a folder that was deleted, does not end the training. The
--- first is reported; all are counted, in the step line and in each later record.

local core = require "lockstep.core"
local files = require "lockstep.core.files"
local plain = require "lockstep.plain"
local run = require "lockstep.run"
local watching = require "lockstep.core.watching"

local M = {}

--- Records that could not be written.
M.lost = 0

local metrics_file ---@type lockstep.core.files.AppendFile?
local event_file ---@type lockstep.core.watching.EventFile?
local is_failing = { metrics = false, events = false }

--- Notes whether a record went to its file, and reports the first of a series that did not.
local function note(file, ok, reason)
  if not ok and not is_failing[file] then
    io.stderr:write(("lockstep: warning: %s; training goes on, and the records that are lost are counted\n"):format(
      tostring(reason)))
  end
  is_failing[file] = not ok
  return ok
end

local function write_line(object)
  local ok, reason
  if not metrics_file then metrics_file, reason = files.append_file(run.dir .. "/metrics.jsonl") end
  if metrics_file then ok, reason = metrics_file:append(core.json_encode(object) .. "\n") end
  -- The next record opens the file again: a folder that was deleted may be back by then.
  if not ok then metrics_file = nil end
  return note("metrics", ok, reason)
end

--- Writes what run.config resolved as TensorBoard's text "config".
local function write_config(step)
  local config = plain.read_file(run.dir .. "/config.json")
  if config then event_file:write_text(step, "config", "```json\n" .. config .. "```\n") end
end

--- Writes the object's numbers under their names; those of an event under "event/name".
local function write_event(object)
  local step = math.floor(object.step) -- TensorBoard's steps are whole numbers
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

--- Writes one JSON object to both files. Its field `metrics_lost` says how many records are missing so far.
---@param object table
function M.write(object)
  object.metrics_lost = M.lost > 0 and M.lost or nil
  local line_is_written = write_line(object)
  local event_is_written = note("events", pcall(write_event, object))
  if not (line_is_written and event_is_written) then M.lost = M.lost + 1 end
end

--- Opens metrics.jsonl again at the next record: another file may have its name.
function M.reopen() metrics_file = nil end

--- Replaces metrics.jsonl by these lines.
---@param lines string[]
function M.replace(lines)
  core.write_file(run.dir .. "/metrics.jsonl", lines)
  M.reopen()
end

return M
