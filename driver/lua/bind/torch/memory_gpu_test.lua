--- Memory on a GPU: backward collects garbage before it is out of memory.

local budget = require "lockstep.tiled_mlp.budget"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local GIB = 2 ^ 28 -- elements of float32

--- Holds blocks of 1 GiB until the device has no room for another.
local function fill()
  local blocks = {}
  while pcall(function() blocks[#blocks + 1] = torch.empty({ GIB }, { device = "cuda:0" }) end) do end
  return #blocks
end

t.test("FreeMemoryIsWhatNoTensorHolds", function()
  local free, total = torch.cuda.mem_get_info()
  t.truthy(free > 0 and free <= total)
  local before = budget.free_bytes "cuda:0"
  local held = torch.ones({ GIB }, { device = "cuda:0" })
  t.near(before - budget.free_bytes "cuda:0", 4 * held:numel(), 2 ^ 26)
end)

t.test("BackwardCollectsGarbageBeforeItIsOutOfMemory", function()
  local w = torch.ones({ GIB }, { device = "cuda:0" }):requires_grad_(true)
  local loss = (w * w):sum()
  t.truthy(fill() > 3, "the GPU has less than 4 GiB free")

  loss:backward()

  t.equal(w.grad[0]:item(), 2)
end)
