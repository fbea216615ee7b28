-- The cross entropy of logits and labels, forward and backward: see cross_entropy_benchmark.py.

local nn = require "lockstep.nn"
local torch = require "lockstep.torch"

local dtype, rows, classes, how, rounds = os.getenv "LOCKSTEP_BENCHMARK_CASE":match "(%S+) (%d+) (%d+) (%S+) (%d+)"
rows, classes = tonumber(rows), tonumber(classes)
nn.use_fused(how == "fused")
-- Fixed numbers, which both languages make alike. A few rows at a time: what is freed must not hide what a loss takes.
local logits = torch.empty({ rows, classes }, { dtype = torch[dtype] })
for row = 0, rows - 1 do
  local x = (torch.arange(classes, { dtype = torch.float32 }) + row * 31):mul_(0.7):sin_():mul_(4)
  logits[row]:copy_(x)
end
logits:requires_grad_(true)
local labels = torch.arange(rows):square():remainder(classes)
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
  logits.grad = nil
  local start = os.clock()
  loss = nn.cross_entropy(logits, labels)
  loss:backward()
  best = math.min(best, os.clock() - start)
end
print(("result %.3f %.1f %.9g %.9g"):format(1e3 * best, peak_mib() - before, loss:item(), logits.grad:float():norm():item()))
