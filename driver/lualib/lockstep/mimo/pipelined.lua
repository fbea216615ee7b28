--- A step of mimo.separate where the language model is a pipeline.
---
--- The ranks of the language model run the pipeline's proven lists. The first stage takes a micro-batch's tokens from
--- the bridge before its forward, and its backward gives their gradient back. The tower runs a list of its own
--- (tower_list.lua). Ranks of later stages take no part in the bridge.

local dist = require "lockstep.distributed"
local plain = require "lockstep.plain"
local schedule = require "lockstep.sharding.pipeline.schedule"
local torch = require "lockstep.torch"
local tower_list = require "lockstep.mimo.tower_list"

local M = {}

--- More than any stage.
local NO_STAGE = 2 ^ 31

---@class mimo.PipelinedStep
---@field fn fun(micro_batch: any): any, any, ...
---@field take fun(index: integer, is_last: boolean, ...)
---@field mines {index: integer, micro_batch: any, deal: mimo.VisualDeal}[]
---@field call_of fun(mine: table): mimo.CallOptions
---@field is_forward_only boolean?
---@field count number? over all ranks, unless is_forward_only

--- Returns the first stage with a trained parameter, where the tower is stage 0. Collective, over all ranks.
local function first_trained(self)
  local own
  if self.name == "language" then
    own = self.callee:first_trained()
  else
    for _, p in ipairs(self.callee:parameters()) do own = p.requires_grad and 0 or own end
  end
  local first = NO_STAGE
  for _, stage in ipairs(dist.all_gather_object(own or NO_STAGE)) do first = math.min(first, stage) end
  plain.check(first < NO_STAGE, "mimo.separate: no parameter of the tower or of any stage is trained")
  return first
end

--- Returns the tower's list: made and proven once for each kind of step.
local function list_of(self, micro_batches, first, is_forward_only)
  local key = ("%d %d %s"):format(micro_batches, first, tostring(is_forward_only))
  local function make()
    return tower_list.make(schedule.make { ranks = self.stages.ranks, chunks = self.stages.chunks,
      micro_batches = micro_batches, order = self.order, first_trained = first, forward_only = is_forward_only },
      micro_batches)
  end
  self.steps[key] = self.steps[key] or make()
  return self.steps[key]
end

--- Calls the script's function with a micro-batch, and `done` with its results.
local function call(self, step, mine, seen, done)
  self.pass = { deal = mine.deal, seen = seen }
  local function finish(...)
    plain.check(self.pass.has_run, "mimo.separate: the function did not call the model, which other ranks wait for")
    return done(...)
  end
  return finish(step.fn(mine.micro_batch))
end

local function run_tower(self, step, crosses)
  local roots = {}
  for _, op in ipairs(step.list) do
    local mine = step.mines[op.micro_batch]
    if op.kind == "forward" then
      call(self, step, mine, nil, function(...) step.take(mine.index, false, ...) end)
      local y = crosses(self.pass.carried, mine)
      roots[op.micro_batch] = y.requires_grad and torch.sum(y) or nil
    else
      roots[op.micro_batch]:backward()
      roots[op.micro_batch] = nil
    end
  end
end

--- Returns what came over the bridge as a tensor without a graph. Its gradient is given back after the backward of this
--- forward. So the stage's backward is the same on every rank, whether its batch has pictures or not.
local function leaf_of(runner, seen)
  if not seen.requires_grad then return seen end
  local leaf = seen:detach():requires_grad_(true)
  -- The tower waits for a gradient even where no text has its tokens.
  runner:after(function() seen:backward(leaf.grad or torch.zeros_like(leaf)) end)
  return leaf
end

--- Runs the pipeline's lists. Its micro-batches are this row's batches.
local function run_stages(self, step, crosses)
  local row, own, mine_of = self.topology:dp_info() + 1, {}, {}
  for i, mine in ipairs(step.mines) do
    own[i] = plain.copy(mine.micro_batch[row]) -- the same batch may be in two micro-batches
    mine_of[own[i]] = mine
  end
  local function fn(batch)
    local runner, seen = self.callee:stages_here(), nil
    if runner:stage().is_first then seen = leaf_of(runner, crosses(nil, mine_of[batch])) end
    return call(self, step, mine_of[batch], seen, function(...) return ... end)
  end
  if step.is_forward_only then return self.callee:measure(own[1], fn) end
  self.callee:learn(own, step.count, fn, step.take)
end

--- Runs the micro-batches of a step. Returns the sum and the count of one that is only measured. Leaves gradients that
--- the pipeline has averaged; those of the tower are their sum, times the ranks of dp x cp. Collective, over all ranks.
---@param self mimo.Separate
---@param step mimo.PipelinedStep
---@return any sum
---@return any count
function M.run(self, step)
  local first = step.is_forward_only and 1 or first_trained(self)
  local function crosses(x, mine)
    if first <= 1 then return self.bridge(x, step.call_of(mine)) end
    return torch.no_grad(self.bridge.__call, self.bridge, x, step.call_of(mine)) -- no stage gives a gradient
  end
  local function work()
    if self.name == "language" then
      self.callee.learns_input = first == 0
      return run_stages(self, step, crosses)
    end
    step.list = list_of(self, #step.mines, math.max(first, 1), step.is_forward_only)
    return run_tower(self, step, crosses)
  end
  local ok, sum, count = pcall(work)
  self.pass = nil
  if ok then return sum, count end
  self.bridge.core:refuse(tostring(sum)) -- other ranks wait for this one
  error(sum, 0)
end

return M
