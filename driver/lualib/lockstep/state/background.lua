--- The save that goes on while the ranks train: run:state(objects, { every = n, async = true }).
---
--- The state is copied into memory of the host, which the next save uses again. Parameters and what optimizers keep of
--- them are copied on a CPU while the next step computes, and what writes to them waits for that. All else is copied
--- between the two steps. A thread of each rank writes its files. The ranks agree about its end in the message that
--- they exchange between steps anyway. Rank 0's thread then makes a state of the folder, in the order of a save that
--- the ranks wait for.

local core = require "lockstep.core"
local core_state = require "lockstep.core.state"
local dist = require "lockstep.distributed"
local run = require "lockstep.run"
local saving = require "lockstep.state.saving"
local torch = require "lockstep.torch"

local M = {}

local pending ---@type state.Save?
local copies = {} ---@type table<string, torch.Tensor> of the last save, by name
local stream ---@type torch.cuda.Stream? of a GPU, for copies alone

--- Returns memory of the host for a tensor: the last save's, where it fits.
local function buffer_for(last, tensor)
  if last and last.dtype == tensor.dtype and last.shape == tensor.shape then return last end
  local buffer = torch.empty(tensor.shape, { dtype = tensor.dtype })
  return tensor.device == "cpu" and buffer or buffer:pin_memory()
end

--- Copies from a GPU by a stream of its own. What changes the tensor next waits for that.
local function copy_by_stream(buffer, tensor)
  stream = stream or torch.cuda.Stream()
  stream:wait_stream(torch.cuda.current_stream())
  torch.cuda.stream(stream, function() buffer:copy_(tensor, true) end)
  torch.cuda.current_stream():wait_stream(stream)
end

--- The copies of one save.
---@class state.Copies
---@field before table<string, torch.Tensor> memory of the last save, by name
---@field late {name: string, tensor: torch.Tensor}[] what is copied while the next step computes
---@field job lockstep.core.state.Copies?
local Copies = {}
Copies.__index = Copies

local function new_copies()
  local before = copies
  copies = {}
  return setmetatable({ before = before, late = {} }, Copies)
end

--- Returns whether the ranks may compare a tensor once it is copied.
---@param one state.Tensor
---@return boolean
function Copies.may_wait(one) return one.may_wait == true and one.tensor.device == "cpu" and dist.world_size() > 1 end

--- Returns a copy on the host.
---@param name string
---@param tensor torch.Tensor
---@param how "late"|"passing"|nil see share_of of saving.lua
---@return torch.Tensor
function Copies:keep(name, tensor, how)
  local buffer = buffer_for(self.before[name], tensor)
  self.before[name], copies[name] = nil, buffer
  if tensor.device ~= "cpu" then
    torch.no_grad(copy_by_stream, buffer, tensor)
  elseif how == "late" then
    self.late[#self.late + 1] = { name = name, tensor = tensor }
  else
    torch.no_grad(function() buffer:copy_(tensor) end)
  end
  return buffer
end

--- Begins to copy what is late, and to sum the bits of the tensors that the ranks compare later. Returns what a job of
--- files waits for.
---@param compared state.Tensor[]
---@return lockstep.core.state.Copies
function Copies:start(compared)
  local tensors, is_late, is_there = {}, {}, {}
  -- By name: an optimizer that is registered twice has one tensor under two names.
  for _, one in ipairs(self.late) do is_late[one.name] = true end
  for i, one in ipairs(compared) do
    tensors[i], is_there[one.name] = { one.tensor, is_late[one.name] and copies[one.name] or false, true }, true
  end
  for _, one in ipairs(self.late) do
    if not is_there[one.name] then tensors[#tensors + 1] = { one.tensor, copies[one.name], false } end
  end
  if stream then stream:synchronize() end
  self.job = core_state.background_copies(tensors)
  self.before, self.late = {}, {} -- lets go of what nobody needs any more
  return self.job
end

--- Returns whether a save is under way.
---@return boolean
function M.is_under_way() return pending ~= nil end

--- Starts a save, as saving.begin does. Collective.
---@param objects table<string, any>
---@param step integer
---@param opts state.SaveOptions
function M.begin(objects, step, opts)
  opts.copies = new_copies()
  pending = saving.begin(objects, step, opts)
end

--- Lets operators run as before once all is copied, and counts the seconds that some have waited.
local function release(save)
  local job = save.copies.job
  if job and job:is_read() then
    run.progress.saving_seconds = run.progress.saving_seconds + job:release()
    save.copies.job = nil
  end
end

--- Returns a letter for the ranks' message between steps: whether this rank's thread is done.
---@return string
function M.letter()
  if not pending then return "-" end
  release(pending)
  return saving.is_done(pending) and "d" or "b"
end

--- Takes note that the threads of all ranks are done. Raises the error of a save that failed. Collective.
function M.go_on()
  local save = pending
  pending = nil
  release(save)
  if not saving.go_on(save) then pending = save end
end

--- Waits until no save is under way, and raises the error of one that failed. Returns the seconds. Collective.
---@return number
function M.finish()
  if not pending then return 0 end
  local started = core.now()
  while pending do M.go_on() end
  return core.now() - started
end

return M
