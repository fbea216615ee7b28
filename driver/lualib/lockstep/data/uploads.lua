--- Copies samples to an accelerator while it computes: what data.loader does with `device`.
---
--- The rules of streams that this keeps:
---
--- - The device memory belongs to the stream that computes when the copy is given. Work of this stream may still use
---   what lay there before, so the stream of the copies waits for it.
--- - A sample is handed out after the stream that computes was told to wait for its copies. The program does not wait.
--- - Both sides of a copy are kept until it is done, also if nobody takes the sample.
---
--- The calls of streams are an interface, so that a test without a GPU can defer and record them.

local core = require "lockstep.core"
local torch = require "lockstep.torch"

local M = {}

local shapes = core.json_shapes()

---@class data.CopyEngine
---@field pin fun(x: torch.Tensor): torch.Tensor in page-locked host memory
---@field allocate fun(x: torch.Tensor): torch.Tensor on the device, of x's form, of the stream that computes
---@field copies_wait fun() later copies wait for the work that the stream that computes has been given
---@field copy fun(to: torch.Tensor, from: torch.Tensor) gives the stream of the copies a copy
---@field record fun(): any an event after the copies given so far
---@field wait fun(event: any) the stream that computes waits for the event
---@field is_done fun(event: any): boolean

---@class data.Uploads
---@field private device string
---@field private engine data.CopyEngine
local Uploads = {}
Uploads.__index = Uploads

--- Copies that may not be done: {is_done, event, kept}. They outlive their loader.
local under_way = {}

--- Returns the value with fn(x) in place of each tensor x. Tables that hold tensors are copied, others are not.
---@param value any
---@param fn fun(x: torch.Tensor): torch.Tensor
---@param seen table?
---@return any
function M.replace(value, fn, seen)
  if torch.is_tensor(value) then return fn(value) end
  if type(value) ~= "table" then return value end
  seen = seen or {}
  if seen[value] ~= nil then return seen[value] end
  seen[value] = value
  local changed
  for key, old in next, value do
    local new = M.replace(old, fn, seen)
    if not rawequal(new, old) then
      changed = changed or {}
      changed[key] = new
    end
  end
  if not changed then return value end
  local copy = setmetatable({}, getmetatable(value))
  for key, old in next, value do
    if changed[key] ~= nil then rawset(copy, key, changed[key]) else rawset(copy, key, old) end
  end
  seen[value] = copy
  shapes[copy] = shapes[value]
  return copy
end

--- The streams of torch.cuda.
---@param device string
---@return data.CopyEngine
local function streams_of(device)
  local index = tonumber(device:match ":(%d+)$")
  local side = torch.cuda.Stream(index)
  local function current() return torch.cuda.current_stream(index) end
  return {
    pin = function(x) return x:is_pinned() and x or x:pin_memory() end,
    allocate = function(x) return torch.empty_like(x, { device = device }) end,
    copies_wait = function() side:wait_stream(current()) end,
    copy = function(to, from)
      torch.cuda.stream(side, function() to:copy_(from, { non_blocking = true }) end)
    end,
    record = function()
      local event = torch.cuda.Event()
      event:record(side)
      return event
    end,
    wait = function(event) current():wait_event(event) end,
    is_done = function(event) return event:query() end,
  }
end

--- Forgets the copies that are done.
local function forget()
  local rest = {}
  for _, one in ipairs(under_way) do
    if not one.is_done(one.event) then rest[#rest + 1] = one end
  end
  under_way = rest
end

--- Begins the copies of a sample. Its tensors on other devices than the CPU stay where they are.
---@param sample any
---@return table # for receive
function Uploads:send(sample)
  local engine = self.engine
  forget()
  local kept = {}
  local moved = M.replace(sample, function(x)
    if x.device ~= "cpu" or self.device == "cpu" then return x end
    local from, to = engine.pin(x), engine.allocate(x)
    kept[#kept + 1], kept[#kept + 2] = to, from
    return to
  end)
  if #kept == 0 then return { sample = sample } end
  torch.no_grad(function()
    engine.copies_wait()
    for i = 1, #kept, 2 do engine.copy(kept[i], kept[i + 1]) end
  end)
  local event = engine.record()
  under_way[#under_way + 1] = { is_done = engine.is_done, event = event, kept = kept }
  return { sample = moved, event = event }
end

--- Returns the sample, on which the stream that computes may work from now on.
---@param sent table
---@return any
function Uploads:receive(sent)
  if sent.event then self.engine.wait(sent.event) end
  return sent.sample
end

--- Returns the sample with its tensors in page-locked memory, from which a copy does not hold up the program.
---@param sample any
---@return any
function M.pinned(sample)
  return M.replace(sample, function(x) return x.device == "cpu" and not x:is_pinned() and x:pin_memory() or x end)
end

--- Returns uploads to a device. `engine` is for tests.
---@param device string
---@param engine data.CopyEngine?
---@return data.Uploads
function M.new(device, engine)
  return setmetatable({ device = device, engine = engine or streams_of(device) }, Uploads)
end

return M
