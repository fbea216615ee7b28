--- batching.timing: what micro-batches take, next to what their costs predicted; and the cost that fits them.

local dist = require "lockstep.distributed"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"
local watching = require "lockstep.core.watching"

local M = {}

---@class batching.SequenceCost
---@field linear number seconds of a token
---@field quadratic number of the square of a sequence's tokens

---@class batching.TimingReport
---@field micro_steps integer
---@field predicted_makespan number the sum over micro-steps of the most expensive rank's cost
---@field predicted_ideal number the costs of all ranks' samples / ranks
---@field makespan_s number the sum over micro-steps of the slowest rank's seconds
---@field ideal_s number the seconds of all ranks' samples / ranks
---@field cost batching.SequenceCost? fits the seconds: an option of prepare and stream. Nil where the seconds do not
---    grow with the sequences
---@field fixed_s number seconds of a micro-batch that do not depend on its sequences
---@field error number of the fit: the root of the mean square, over the mean of the seconds
local Report = {}
Report.__index = Report

function Report:__tostring()
  local text = ("%d micro-steps: the makespan is %.3f of the ideal by cost, and %.3f measured"):format(self.micro_steps,
    self.predicted_makespan / self.predicted_ideal, self.makespan_s / self.ideal_s)
  if not self.cost then return text end
  return text .. ("; L tokens take %.3g L + %.3g L^2 s, a micro-batch %.3g s more (within %.1f%%)"):format(
    self.cost.linear, self.cost.quadratic, self.fixed_s, 100 * self.error)
end

-- The fit -------------------------------------------------------------------------------------------

--- Solves the square system a x = b by elimination. Returns nil where it has no single solution.
local function solve(a, b)
  local n = #b
  for column = 1, n do
    local pivot = column
    for r = column + 1, n do
      if math.abs(a[r][column]) > math.abs(a[pivot][column]) then pivot = r end
    end
    if math.abs(a[pivot][column]) < 1e-9 then return nil end
    a[column], a[pivot], b[column], b[pivot] = a[pivot], a[column], b[pivot], b[column]
    for r = column + 1, n do
      local factor = a[r][column] / a[column][column]
      for c = column, n do a[r][c] = a[r][c] - factor * a[column][c] end
      b[r] = b[r] - factor * b[column]
    end
  end
  for r = n, 1, -1 do
    for c = r + 1, n do b[r] = b[r] - a[r][c] * b[c] end
    b[r] = b[r] / a[r][r]
  end
  return b
end

--- Terms of a fit, by their positions in a row of features. Those that a plan can use come first: where several fit
--- alike, the first is taken.
local SUBSETS = { { 2 }, { 3 }, { 1 }, { 2, 3 }, { 1, 2 }, { 1, 3 }, { 1, 2, 3 } }

--- Returns the coefficients of these terms with the least squares, and that sum; nil unless none is negative.
local function least_squares(rows, seconds, terms)
  local a, b = {}, {}
  for i, term in ipairs(terms) do
    a[i], b[i] = {}, 0
    for j, other in ipairs(terms) do
      a[i][j] = 0
      for _, row in ipairs(rows) do a[i][j] = a[i][j] + row[term] * row[other] / #rows end
    end
    for k, row in ipairs(rows) do b[i] = b[i] + row[term] * seconds[k] / #rows end
  end
  local solution = solve(a, b)
  if not solution then return nil end
  local coefficients, sum = { 0, 0, 0 }, 0
  for i, term in ipairs(terms) do
    if solution[i] < 0 then return nil end
    coefficients[term] = solution[i]
  end
  for k, row in ipairs(rows) do
    local difference = seconds[k]
    for term = 1, 3 do difference = difference - coefficients[term] * row[term] end
    sum = sum + difference * difference
  end
  return coefficients, sum
end

--- Fits seconds = fixed + linear * tokens + quadratic * squares, where no coefficient is negative. `measured` has at
--- least one element. Returns fixed, linear, quadratic and the relative error.
local function fit(measured)
  local n, tokens, squares, total = #measured, 0, 0, 0
  for _, one in ipairs(measured) do
    tokens, squares, total = tokens + one.tokens / n, squares + one.squares / n, total + one.seconds / n
  end
  local rows, seconds = {}, {}
  for i, one in ipairs(measured) do
    rows[i], seconds[i] = { 1, one.tokens / tokens, one.squares / squares }, one.seconds / total
  end
  local best, least = { 0, 0, 0 }, math.huge
  for _, terms in ipairs(SUBSETS) do
    local coefficients, sum = least_squares(rows, seconds, terms)
    if coefficients and sum < least - 1e-9 * n then best, least = coefficients, sum end
  end
  return best[1] * total, best[2] * total / tokens, best[3] * total / squares, math.sqrt(least / n)
end

-- Measuring -----------------------------------------------------------------------------------------

---@class batching.Timing
---@field measured table[] what this rank has measured since the last report
local Timing = {}
Timing.__index = Timing

--- Returns an object that times micro-batches, and finds the cost that fits the times. Measure after the first steps,
--- which allocate. The fit has no term for images.
---
---     local times = batching.timing()
---     times:measure(batch, train_on, batch)
---     log.print(times:report())
---@return batching.Timing
function M.timing() return setmetatable({ measured = {} }, Timing) end

local function synchronize()
  if dist.device() ~= "cpu" then torch.cuda.synchronize() end
end

--- Returns fn(...), and notes how long this rank worked in it. Waits for the GPU, before and after. A time in which the
--- rank waits for other ranks does not count.
---@param batch batching.MicroBatch
---@param fn fun(...): ...
---@param ... any
---@return any ...
function Timing:measure(batch, fn, ...)
  plain.check(type(batch) == "table" and type(batch.seq_lens) == "table" and type(batch.cost) == "number",
    "timing:measure: expected a micro-batch of batching.prepare or stream, got a %s", type(batch))
  local one = { cost = batch.cost, tokens = 0, squares = 0, padding = batch.padding == true }
  for i, length in ipairs(batch.seq_lens) do
    local share = batch.shares and batch.shares[i] -- its tokens see those of the whole sample
    one.tokens, one.squares = one.tokens + length, one.squares + length * (share and share.tokens or length)
  end
  synchronize()
  local start = watching.own_seconds()
  local function note(...)
    synchronize()
    one.seconds = watching.own_seconds() - start
    self.measured[#self.measured + 1] = one
    return ...
  end
  return note(fn(...))
end

--- Compares what all ranks have measured since the last report with what their costs predicted. It prints as a line.
---
--- Collective: every rank calls it after as many micro-batches.
---@return batching.TimingReport
function Timing:report()
  local ranks = dist.all_gather_object(self.measured)
  self.measured = {}
  local steps = #ranks[1]
  for rank, measured in ipairs(ranks) do
    plain.check(#measured == steps and steps ~= 0, "timing:report: every rank must have measured as many "
      .. "micro-batches, at least one; rank 0 measured %d, rank %d measured %d", steps, rank - 1, #measured)
  end
  local all = {}
  local report = { micro_steps = steps, predicted_makespan = 0, predicted_ideal = 0, makespan_s = 0, ideal_s = 0 }
  for step = 1, steps do
    local cost, seconds = 0, 0
    for _, measured in ipairs(ranks) do
      local one = measured[step]
      all[#all + 1] = one
      cost, seconds = math.max(cost, one.cost), math.max(seconds, one.seconds)
      if not one.padding then
        report.predicted_ideal = report.predicted_ideal + one.cost / #ranks
        report.ideal_s = report.ideal_s + one.seconds / #ranks
      end
    end
    report.predicted_makespan, report.makespan_s = report.predicted_makespan + cost, report.makespan_s + seconds
  end
  local linear, quadratic
  report.fixed_s, linear, quadratic, report.error = fit(all)
  if linear > 0 or quadratic > 0 then report.cost = { linear = linear, quadratic = quadratic } end
  return setmetatable(report, Report)
end

return M
