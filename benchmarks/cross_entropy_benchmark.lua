-- The cross entropy of logits and labels, or of hidden states and a head, forward and backward: see
-- cross_entropy_benchmark.py.

local nn = require "lockstep.nn"
local tiled_mlp = require "lockstep.tiled_mlp"
local torch = require "lockstep.torch"

local HIDDEN = 64 -- few, so that the loss is nearly all scoring

local dtype, rows, classes, how, rounds = os.getenv "LOCKSTEP_BENCHMARK_CASE":match "(%S+) (%d+) (%d+) (%S+) (%d+)"
rows, classes = tonumber(rows), tonumber(classes)
nn.use_fused(how:find "^fused" ~= nil)

--- Returns fixed numbers, which both languages make alike. One row at a time: what is freed must not hide what a loss
--- takes.
local function numbers(count, size, scale)
  local all = torch.empty({ count, size }, { dtype = torch[dtype] })
  for row = 0, count - 1 do
    all[row]:copy_((torch.arange(size, { dtype = torch.float32 }) + row * 31):mul_(0.7):sin_():mul_(scale))
  end
  return all:requires_grad_(true)
end

local labels = torch.arange(rows):square():remainder(classes)
local first, step
if how:find "tiled$" then
  local head = numbers(classes, HIDDEN, 0.02)
  first = numbers(rows, HIDDEN, 4)
  function step()
    head.grad = nil
    return (tiled_mlp.cross_entropy { hidden = first, weight = head, labels = labels })
  end
else
  first = numbers(rows, classes, 4)
  function step() return nn.cross_entropy(first, labels) end
end
collectgarbage()

local function peak_mib()
  for line in io.lines "/proc/self/status" do
    local kib = line:match "^VmHWM:%s+(%d+)"
    if kib then return kib / 1024 end
  end
end

local function reset_peak()
  local file = assert(io.open("/proc/self/clear_refs", "w"))
  file:write "5"
  file:close()
end

reset_peak()
local before, best, loss = peak_mib(), math.huge, nil
for _ = 1, rounds do
  first.grad = nil
  local start = os.clock()
  loss = step()
  loss:backward()
  best = math.min(best, os.clock() - start)
end
print(("result %.3f %.1f %.9g %.9g"):format(1e3 * best, peak_mib() - before, loss:item(),
  first.grad:float():norm():item()))
