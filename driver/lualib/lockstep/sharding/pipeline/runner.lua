--- Runs the list of operations of this rank: forwards, backwards and messages, in the order of the schedule.
---
--- A batch of messages starts at its place in the list, and this rank goes on. It waits for a receive before the
--- operation that needs it, and for a send before the backward of the same micro-batch. So messages between two ranks
--- have the schedule's order on any backend. Both ranks know what comes next, and no shape is sent.

local plain = require "lockstep.plain"
local cut = require "lockstep.sharding.pipeline.cut"
local dist = require "lockstep.distributed"
local schedule = require "lockstep.sharding.pipeline.schedule"
local torch = require "lockstep.torch"

local M = {}

--- The gradients of a stage that may be on their way.
local KEPT_GRADIENTS = 2

local check, fail = plain.checks "sharding.parallelize: "

---@class pipeline.Runner
---@field net models.CausalLM
---@field callee models.CausalLM|sharding.FullyShard the net, or what wraps it
---@field stages pipeline.Stage[] all
---@field links table<integer, lockstep.core.sharding.Link> by the other rank, from 1
---@field dtype torch.dtype of hidden states
---@field private pass pipeline.Pass? that runs now
local Runner = {}
Runner.__index = Runner

---@param fields table
---@return pipeline.Runner
function M.new(fields) return setmetatable(fields, Runner) end

local key = schedule.key

--- Compares an operation with the next of the list that the simulation has proven. For the debug mode.
local function note(pass, op)
  if not pass.expected then return end
  pass.num_done = pass.num_done + 1
  local expected = pass.expected[pass.num_done]
  local text = schedule.describe(op)
  local said = expected and schedule.describe(expected) or "none"
  if text ~= said then
    fail("rank %d: operation %d is \"%s\", but the schedule that was proven has \"%s\" there", dist.rank(),
      pass.num_done, text, said)
  end
end

--- Returns memory for what a message brings.
local function buffers(self, pass, message)
  local rows = pass.rows[message.micro_batch]
  local list = { torch.empty({ rows, self.net.settings.hidden_size }, { dtype = self.dtype,
    device = self.net.stage_device }) }
  local size = cut.carry_size(self.net)
  if size then
    local dtype = self.dtype == torch.float64 and torch.float64 or torch.float32
    list[2] = torch.empty({ size }, { dtype = dtype, device = self.net.stage_device })
  end
  return list
end

local function messages(self, pass, op)
  note(pass, op)
  local sends, receives, waits = {}, {}, {}
  for _, one in ipairs(op.sends) do
    local id = key(one.gradient, one.to, one.micro_batch)
    for _, x in ipairs(pass.out[id]) do sends[#sends + 1] = x end
    pass.out[id] = nil
    waits[#waits + 1] = "sent " .. id
  end
  for _, one in ipairs(op.receives) do
    local id = key(one.gradient, one.to, one.micro_batch)
    pass.arrived[id] = buffers(self, pass, one)
    for _, x in ipairs(pass.arrived[id]) do receives[#receives + 1] = x end
    waits[#waits + 1] = id
  end
  local batch = self.links[op.peer]:start(sends, receives, schedule.subject(op))
  for _, id in ipairs(waits) do pass.batches[id] = batch end
end

--- Waits for the messages with this name, if there are any.
local function wait(pass, id)
  local batch = pass.batches[id]
  pass.batches[id] = nil
  if batch then batch:wait() end
end

--- Returns what has arrived for an operation.
local function take(pass, id)
  wait(pass, id)
  local arrived = pass.arrived[id] or {}
  pass.arrived[id] = nil
  return arrived[1], arrived[2]
end

local function check_result(self, pass, y, stage, micro_batch)
  local rows, hidden = pass.rows[micro_batch], self.net.settings.hidden_size
  if y.dtype == self.dtype and y:dim() == 2 and y:size(0) == rows and y:size(1) == hidden then return end
  fail("stage %d gives %s of shape %s for micro-batch %d, but the next stage expects %s of shape {%d, %d}; autocast "
    .. "that casts the hidden states needs a model of that dtype", stage.index, tostring(y.dtype), tostring(y.shape),
    micro_batch, tostring(self.dtype), rows, hidden)
end

--- The model's call in fn: runs this rank's stage. Returns the model's results on the last stage. On other stages they
--- are zeros: fn's results are not used there.
---@param batch models.Batch
---@param what "loss"|"log_probs"|"scores"
---@param ... any
---@return torch.Tensor
---@return integer|torch.Tensor|nil
function Runner:call(batch, what, ...)
  local pass = self.pass
  check(pass and pass.now,
    "a model with pp runs within sharding.accumulate and sharding.evaluate alone, whose function gets micro-batches "
    .. "and calls model(batch, \"loss\")")
  check(not pass.has_called, "the function calls the model twice for a micro-batch; with pp, once")
  pass.has_called = true
  local op = pass.now
  local stage = self.stages[op.stage]
  note(pass, op)
  local x, carry = take(pass, key(false, op.stage, op.micro_batch))
  local learns = torch.is_grad_enabled() and not pass.is_forward_only
  if x and learns and op.stage - 1 >= pass.first_trained then
    x:requires_grad_(true)
    if carry then carry:requires_grad_(true) end
  end
  local entry = { x = x, carry = carry, after = pass.after }
  if learns and op.stage >= pass.first_trained then pass.held[key(false, op.stage, op.micro_batch)] = entry end
  if stage.is_last then return cut.result(self.net, self.callee, stage, batch, x, carry, what, ...) end
  local y, next_carry = cut.run(self.net, self.callee, stage, batch, x, carry)
  check_result(self, pass, y, stage, op.micro_batch)
  entry.y, entry.next_carry = y, next_carry
  pass.out[key(false, op.stage + 1, op.micro_batch)] = { y:detach(), next_carry and next_carry:detach() }
  return cut.stand_in(self.net, batch, what, y)
end

--- Returns the stage whose forward runs now.
---@return pipeline.Stage
function Runner:stage() return self.stages[self.pass.now.stage] end

--- Calls fn after the backward of this forward, if it has one.
---@param fn fun()
function Runner:after(fn) self.pass.after = fn end

--- Calls fn(...). Gradients of fully_shard stay on this rank but for the last micro-batch, the last that each stage
--- learns from: its backward averages their sum.
local function without_sync(self, pass, op, fn, ...)
  if op.micro_batch == #pass.micro_batches or not self.callee.no_sync then return fn(...) end
  return self.callee:no_sync(fn, ...)
end

local function forward(self, pass, op)
  pass.now, pass.has_called, pass.after = op, false, nil
  local function finish(...)
    check(pass.has_called,
      "the function does not call the model for micro-batch %d; with pp, it calls model(batch, \"loss\") once",
      op.micro_batch)
    pass.take_results(op, self.stages[op.stage], ...)
  end
  finish(without_sync(self, pass, op, pass.fn, pass.micro_batches[op.micro_batch]))
  pass.now = nil
end

--- The gradient of a stage's results, as one backward.
local function run_backward(entry, gradient, carry_gradient)
  if entry.next_carry and entry.next_carry.requires_grad then
    local sum = (entry.next_carry * carry_gradient):sum()
    if entry.y.requires_grad then sum = sum + (entry.y * gradient):sum() end
    sum:backward()
  elseif entry.y.requires_grad then -- not if the stage is frozen, and what mimo.separate trains is not in this batch
    entry.y:backward(gradient)
  end
  if entry.after then entry.after() end
end

local function backward(self, pass, op)
  note(pass, op)
  local stage, id = self.stages[op.stage], key(false, op.stage, op.micro_batch)
  local entry = pass.held[id]
  pass.held[id] = nil
  if stage.is_last then
    without_sync(self, pass, op, function() torch.mul(entry.loss, pass.scale):backward() end)
  else
    wait(pass, "sent " .. key(false, op.stage + 1, op.micro_batch))
    without_sync(self, pass, op, run_backward, entry, take(pass, key(true, op.stage, op.micro_batch)))
  end
  if op.stage - 1 < pass.first_trained then return end
  local function gradient_of(x) return x and (x.grad or torch.zeros_like(x)) end
  local sent = key(true, op.stage - 1, op.micro_batch)
  pass.out[sent] = { gradient_of(entry.x), gradient_of(entry.carry) }
  -- Frees the gradient before the last one of this stage: the stage before has taken it long ago.
  local list = pass.gradients_sent[op.stage] or {}
  pass.gradients_sent[op.stage] = list
  list[#list + 1] = "sent " .. sent
  if #list > KEPT_GRADIENTS then wait(pass, table.remove(list, 1)) end
end

---@class pipeline.Pass
---@field list pipeline.Operation[]
---@field expected pipeline.Operation[]? in the debug mode
---@field micro_batches any[]
---@field rows integer[] of hidden states of each
---@field fn fun(micro_batch: any): ...
---@field take_results fun(op: pipeline.Operation, stage: pipeline.Stage, ...) is called with fn's results
---@field first_trained integer
---@field scale number?
---@field is_forward_only boolean?

--- Runs a list.
---@param pass pipeline.Pass
function Runner:run(pass)
  pass.out, pass.arrived, pass.batches, pass.held, pass.num_done = {}, {}, {}, {}, 0
  pass.gradients_sent = {}
  self.pass = pass
  local ok, message = pcall(function()
    for _, op in ipairs(pass.list) do
      if op.kind == "messages" then
        messages(self, pass, op)
      elseif op.kind == "forward" then
        forward(self, pass, op)
      else
        backward(self, pass, op)
      end
    end
    for _, batch in pairs(pass.batches) do batch:wait() end
  end)
  self.pass = nil
  if not ok then error(message, 0) end
  if pass.expected and pass.num_done ~= #pass.expected then
    fail("rank %d has made %d of the %d operations of the schedule", dist.rank(), pass.num_done, #pass.expected)
  end
end

--- Keeps the loss whose backward the list has later.
---@param op pipeline.Operation
---@param loss torch.Tensor
function Runner:keep_loss(op, loss) self.pass.held[key(false, op.stage, op.micro_batch)].loss = loss end

return M
