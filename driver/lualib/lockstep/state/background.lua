--- The save that goes on while the ranks train: run:state(objects, { every = n, async = true }).
---
--- The state is copied between two steps into memory of the host, which the next save uses again. A thread of each rank
--- writes its files. The ranks agree about its end in the message that they exchange between steps anyway, and rank 0's
--- thread then makes a state of the folder, in the order of a save that the ranks wait for.

local core = require "lockstep.core"
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

--- Returns a function that returns a copy of a tensor on the host, and one that waits until all copies are made.
---@return fun(name: string, tensor: torch.Tensor): torch.Tensor
---@return fun()
local function copier()
  local before = copies
  copies = {}
  return function(name, tensor)
    local buffer = buffer_for(before[name], tensor)
    before[name], copies[name] = nil, buffer
    torch.no_grad(function()
      if tensor.device == "cpu" then buffer:copy_(tensor) else copy_by_stream(buffer, tensor) end
    end)
    return buffer
  end, function()
    if stream then stream:synchronize() end
  end
end

--- Returns whether a save is under way.
---@return boolean
function M.is_under_way() return pending ~= nil end

--- Starts a save, as saving.begin does. Collective.
---@param objects table<string, any>
---@param step integer
---@param opts state.SaveOptions
function M.begin(objects, step, opts)
  opts.copy, opts.finish_copies = copier()
  pending = saving.begin(objects, step, opts)
end

--- Returns a letter for the ranks' message between steps: whether this rank's thread is done.
---@return string
function M.letter() return not pending and "-" or saving.is_done(pending) and "d" or "b" end

--- Takes note that the threads of all ranks are done. Raises the error of a save that failed. Collective.
function M.go_on()
  local save = pending
  pending = nil
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
