-- The run of restart_benchmark.py: two layers on the CPU, saved after each step. Rank 1 kills itself at some steps.

local core = require "lockstep.core"
local dist = require "lockstep.distributed"
local ffi = require "ffi"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"
local torch = require "lockstep.torch"

ffi.cdef "int getpid(void); int kill(int, int);"

--- Prints a moment, on the clock that all processes of the machine share.
local function tell(rank, what)
  if dist.rank() ~= rank then return end
  print(("%s %.6f"):format(what, core.now()))
  io.stdout:flush()
end

tell(0, "begin")
local config = run.config { width = 512, kills = 10, every = 10 }
torch.manual_seed(1)
local model = sharding.data_parallel(nn.Sequential { nn.Linear(config.width, config.width), nn.Tanh(),
  nn.Linear(config.width, config.width) })
local optimizer = optim.AdamW(model:parameters(), { lr = 1e-3 })
local x = torch.randn({ 256, config.width })
run:state({ model = model, optimizer = optimizer }, { every = config.every })
run:resume()

local is_first = true
for step in run:steps(function() return true end, 20 * (config.kills + 1)) do
  model(x):square():mean():backward()
  optimizer:step()
  optimizer:zero_grad()
  dist.barrier()
  if is_first then tell(0, "step") end
  is_first = false
  if step == 20 * run.restarts + 15 and run.restarts < config.kills then
    tell(1, "kill")
    if dist.rank() == 1 then ffi.C.kill(ffi.C.getpid(), 9) end
  end
end
