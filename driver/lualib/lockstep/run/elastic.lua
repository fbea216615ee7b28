--- run.elastic: a script that goes on with another number of ranks, and the same global batch.

local agreement = require "lockstep.state.agreement"
local background = require "lockstep.state.background"
local core_state = require "lockstep.core.state"
local dist = require "lockstep.distributed"
local options = require "lockstep.options"
local plain = require "lockstep.plain"
local run = require "lockstep.run"

--- The exit code of a wrong command line: with it, nobody starts the ranks again.
local USAGE_EXIT_CODE = 2

--- Ends the run on every rank. Collective.
local function end_run(message)
  background.finish()
  core_state.end_together(USAGE_EXIT_CODE, message)
end

---@class run.Elastic
---@field min integer the fewest ranks
---@field max number the most ranks; math.huge without a limit
local Elastic = {}
Elastic.__index = Elastic

local function check_rows(name, value)
  plain.check(plain.is_whole(value, 1) and value < 2 ^ 53, "elastic:share: %s must be a whole number of at least 1, "
    .. "got %s", name, plain.shown(value, "number"))
end

--- Returns the numbers of ranks from `min` to `max` over which whole micro-batches can be shared out, in words.
---@private
---@param batch integer
---@param micro_batch integer
---@return string
function Elastic:worlds(batch, micro_batch)
  local shown, total, found = 12, batch / micro_batch, {}
  for world = self.min, math.min(self.max, total, 2 ^ 20) do
    if total % world == 0 then found[#found + 1] = world end
  end
  local rest = #found - shown
  local text = table.concat(found, ", ", 1, math.min(#found, shown))
  return #found == 0 and "none" or rest > 0 and ("%s and %d more"):format(text, rest) or text
end

--- Returns the number of rows of a global batch that are this rank's, and in how many micro-batches it computes them.
--- All ranks have equally many. Where they cannot have, because `batch` is not a multiple of `micro_batch` times the
--- number of ranks, the run ends with exit code 2.
---
---     local rows, micro_batches = elastic:share(16, 2)   -- 8 and 4 on two ranks; 4 and 2 on four
---
--- On a grid it is the rows of dp that share: give their number, grid.dp.
---
--- Collective: every rank gives the same numbers.
---@param batch integer rows over all ranks
---@param micro_batch integer? rows of a micro-batch; default: all of a rank's rows are one
---@param rows_of_dp integer? default: the number of ranks
---@return integer rows
---@return integer micro_batches
function Elastic:share(batch, micro_batch, rows_of_dp)
  check_rows("batch", batch)
  if micro_batch ~= nil then check_rows("micro_batch", micro_batch) end
  if rows_of_dp ~= nil then check_rows("rows_of_dp", rows_of_dp) end
  local world, least = rows_of_dp or dist.world_size(), micro_batch or 1
  plain.check(batch % least == 0, "elastic:share: a batch of %d rows is not a multiple of micro_batch = %d, on any "
    .. "number of ranks", batch, least)
  if batch % (world * least) ~= 0 then
    local advice = rows_of_dp and "rows of dp"
      or "ranks; the numbers of ranks that can: " .. self:worlds(batch, least)
    end_run(("elastic:share: %d rows in micro-batches of %d cannot be shared out evenly over %d %s"):format(batch,
      least, world, advice))
  end
  run.progress.num_shared = rows_of_dp == nil and batch / least or nil
  return batch / world, micro_batch and batch / world / micro_batch or 1
end

--- See run.elastic.
---@param opts {min: integer, max: integer?}
---@return run.Elastic
local function elastic(opts)
  local o = options.read("run.elastic", opts, { min = options.required, max = options.optional })
  plain.check(plain.is_whole(o.min, 1), "run.elastic: min must be a whole number of ranks, at least 1, got %s",
    tostring(o.min))
  plain.check(o.max == nil or plain.is_whole(o.max, o.min),
    "run.elastic: max must be a whole number of ranks, at least min = %d, got %s", o.min, tostring(o.max))
  agreement.same("run.elastic", { min = tostring(o.min), max = tostring(o.max) }, "give every rank the same")
  local self, world = setmetatable({ min = o.min, max = o.max or math.huge }, Elastic), dist.world_size()
  if world < self.min or world > self.max then
    end_run(("run.elastic: the run has %d rank%s, and the script takes %s; start it with another number of ranks")
      :format(world, world == 1 and "" or "s", o.max and ("%d to %d"):format(o.min, o.max)
      or ("%d or more"):format(o.min)))
  end
  run.progress.least_ranks = o.min
  return self
end

return elastic
