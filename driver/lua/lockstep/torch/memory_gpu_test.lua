--- Memory on a GPU: backward collects garbage before it is out of memory.

local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local GIB = 2 ^ 28 -- elements of float32

--- Holds blocks of 1 GiB until the device has no room for another.
local function fill()
  local blocks = {}
  while pcall(function() blocks[#blocks + 1] = torch.empty({ GIB }, { device = "cuda:0" }) end) do end
  return #blocks
end

t.test("BackwardCollectsGarbageBeforeItIsOutOfMemory", function()
  local w = torch.ones({ GIB }, { device = "cuda:0" }):requires_grad_(true)
  local loss = (w * w):sum()
  t.truthy(fill() > 3, "the GPU has less than 4 GiB free")

  loss:backward()

  t.equal(w.grad[0]:item(), 2)
end)
