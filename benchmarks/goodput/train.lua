-- The run of goodput.py and of tests/chaos_test.cc: two layers on the CPU, and faults that strike a rank within a step.
--
-- A fault has a kind, a step and a rank: "kill@12@1". These are the kinds:
--
--   kill    SIGKILL
--   stop    SIGSTOP: the others wait for it until --timeout
--   socket  all connections of the rank are shut down
--   disk    nothing more can be written to files, so that the next save fails
--   slow    each later step of the rank takes twice as long

local core = require "lockstep.core"
local dist = require "lockstep.distributed"
local ffi = require "ffi"
local files = require "lockstep.core.files"
local log = require "lockstep.log"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"
local torch = require "lockstep.torch"

ffi.cdef [[
  int getpid(void);
  int kill(int, int);
  int shutdown(int, int);
  void (*signal(int, void (*)(int)))(int);
  struct lockstep_limit { unsigned long now, most; };
  int setrlimit(int, const struct lockstep_limit*);
]]
local C, SIGKILL, SIGSTOP, SIGXFSZ, RLIMIT_FSIZE = ffi.C, 9, 19, 25, 1

local rank = dist.rank()
local config = run.config {
  steps = 3000, every = 10, async = true, memory_every = 0,
  width = 256, rows = 128,
  faults = { "none" }, -- by start of the run; several as "slow@3@1+kill@9@0"
  says_steps = true, -- with times, of the clock that all processes of the machine share
}

--- Prints a moment.
local function tell(what, step)
  print(("%s %d of start %d %.6f"):format(what, step, run.restarts, core.now()))
  io.stdout:flush()
end
print("I am " .. rank .. " pid " .. C.getpid())
local function tell_phase(name)
  if config.says_steps and rank == 0 then tell("phase " .. name, 0) end
end
tell_phase "script"

torch.manual_seed(1)
local model = sharding.data_parallel(nn.Sequential { nn.Linear(config.width, config.width), nn.Tanh(),
  nn.Linear(config.width, config.width) })
local optimizer = optim.AdamW(model:parameters(), { lr = 1e-3 })
run:state({ model = model, optimizer = optimizer }, { every = config.every, async = config.async,
  memory_every = config.memory_every > 0 and config.memory_every or nil })
tell_phase "state"
run:resume()
tell_phase "resumed"

local is_slow = false

local strike = {
  kill = function() C.kill(C.getpid(), SIGKILL) end,
  stop = function() C.kill(C.getpid(), SIGSTOP) end,
  socket = function()
    local list = io.popen("ls -l /proc/" .. C.getpid() .. "/fd")
    for line in list:lines() do
      local fd = line:match "(%d+) %-> socket:"
      if fd then C.shutdown(tonumber(fd), 2) end
    end
    list:close()
  end,
  disk = function()
    C.signal(SIGXFSZ, ffi.cast("void (*)(int)", 1)) -- SIG_IGN: write() fails instead
    C.setrlimit(RLIMIT_FSIZE, ffi.new("struct lockstep_limit", { 0, 0 }))
  end,
  slow = function() is_slow = true end,
}

local faults = {} -- of this rank, by step
for what, step, on in (config.faults[run.restarts + 1] or "none"):gmatch "(%w+)@(%d+)@(%d+)" do
  if tonumber(on) == rank then faults[tonumber(step)] = what end
end

local number = 0
for step in run:steps(function()
  number = number + 1
  return number
end, config.steps) do
  local start = core.now()
  if faults[step] then
    tell("fault " .. faults[step], step)
    strike[faults[step]]()
  end
  torch.manual_seed(step * dist.world_size() + rank) -- a resumed run draws the same
  local x = torch.randn({ config.rows, config.width })
  local loss = (model(x) - x):square():mean()
  loss:backward()
  optimizer:step()
  optimizer:zero_grad()
  log.step { loss = loss }
  if is_slow then
    local work = core.now() - start
    while core.now() < start + 2 * work do end
  end
  if config.says_steps and rank == 0 then tell("step", step) end
end

local all = {}
for _, p in ipairs(model:parameters()) do all[#all + 1] = p:detach() end
for _, state in ipairs(optimizer:state_dict().states) do
  for _, name in ipairs { "step", "exp_avg", "exp_avg_sq" } do all[#all + 1] = state[name] end
end
print("final bits of rank " .. rank .. ": " .. table.concat({ files.checksum_of(all) }, " "))
