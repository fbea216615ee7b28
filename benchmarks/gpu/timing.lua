--- Functions that the programs of gpu_check share: timing on a device, and lines that check.py reads.

local core = require "lockstep.core"
local run = require "lockstep.run"
local torch = require "lockstep.torch"

local M = {}

--- The device to measure, "cuda:0" or "cpu", and whether sizes are small, to try the program on a CPU.
M.device = run.args[1] or "cpu"
M.is_small = run.args[2] == "small"

--- Returns the first value on a GPU and the second where sizes are small.
function M.size(full, small) return M.is_small and small or full end

function M.synchronize()
  if M.device ~= "cpu" then torch.cuda.synchronize() end
end

--- Prints one figure as "name value".
function M.report(name, value) print(("%s %.6g"):format(name, value)) end

--- Returns the least seconds of one call, of `rounds` rounds of `calls` calls, after one round of warm-up.
function M.seconds(calls, rounds, call)
  local best = math.huge
  for round = 0, rounds do
    M.synchronize()
    local start = core.now()
    for _ = 1, calls do call() end
    M.synchronize()
    if round > 0 then best = math.min(best, (core.now() - start) / calls) end
  end
  return best
end

--- Returns the bytes that `call` allocates on the device at its peak, beyond those before it. On the CPU nil.
function M.peak_bytes(call)
  if M.device == "cpu" then return nil end
  collectgarbage()
  collectgarbage()
  torch.cuda.reset_peak_memory_stats()
  local before = torch.cuda.memory_allocated()
  call()
  M.synchronize()
  return torch.cuda.max_memory_allocated() - before
end

return M
