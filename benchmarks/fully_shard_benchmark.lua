-- Measures a step under sharding.fully_shard. fully_shard_benchmark.py runs this, and the same step in Python.
--
--     lockstep --nproc 2 benchmarks/fully_shard_benchmark.lua [--set hidden=512 --set layers=8 --set tokens=256]

local dist = require "lockstep.distributed"
local ffi = require "ffi"
local lockstep = require "lockstep"
local log = require "lockstep.log"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"
local torch = require "lockstep.torch"

-- trace: a file for the trace of a step; "": none.
local config = run.config { hidden = 32, layers = 32, tokens = 16, steps = 30, repeats = 3, trace = "" }

ffi.cdef "typedef struct { long s, ns; } bench_time; int clock_gettime(int clock, bench_time *time);"
local MONOTONIC, PROCESS = 1, 2
local function now(clock)
  local time = ffi.new "bench_time"
  ffi.C.clock_gettime(clock, time)
  return tonumber(time.s) + 1e-9 * tonumber(time.ns)
end

local Block = nn.Module:subclass("Block")
function Block:init(hidden)
  self.norm, self.up, self.down = nn.LayerNorm(hidden), nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
end
function Block:forward(x) return x + self.down(torch.gelu(self.up(self.norm(x)))) end

local Net = nn.Module:subclass("Net")
function Net:init()
  self.layers = nn.ModuleList {}
  for _ = 1, config.layers do self.layers:append(Block(config.hidden)) end
end
function Net:forward(x)
  for _, layer in ipairs(self.layers) do x = layer(x) end
  return x
end

--- The same first values as in Python: functions of the element's place.
local function fill(net)
  for _, p in ipairs(net:parameters()) do
    torch.no_grad(function()
      p:copy_((torch.arange(p:numel()):remainder(17):float() - 8):mul(0.1 / math.sqrt(config.hidden)):view(p.shape))
    end)
  end
  return net
end

local kinds = {
  plain = function(net) return net end,
  data_parallel = function(net) return sharding.data_parallel(net) end,
  fully_shard = function(net) return sharding.fully_shard(net) end,
}

local x = (torch.arange(config.tokens * config.hidden):remainder(13 + dist.rank()):float() - 6)
  :view { config.tokens, config.hidden }

for _, kind in ipairs { "plain", "data_parallel", "fully_shard" } do
  local model = kinds[kind](fill(Net()))
  local optimizer = optim.AdamW(model:parameters(), { lr = 1e-3 })
  local best = { wall = math.huge, cpu = math.huge, update = math.huge }
  local loss
  local function step()
    loss = model(x):pow(2):mean()
    loss:backward()
    local before = now(PROCESS)
    optimizer:step()
    optimizer:zero_grad()
    return now(PROCESS) - before
  end
  for _ = 1, 5 do step() end
  for _ = 1, config.repeats do
    dist.barrier()
    local wall, cpu, update = now(MONOTONIC), now(PROCESS), 0
    for _ = 1, config.steps do update = update + step() end
    best.wall = math.min(best.wall, now(MONOTONIC) - wall)
    best.cpu = math.min(best.cpu, now(PROCESS) - cpu)
    best.update = math.min(best.update, update)
  end
  if dist.rank() == 0 then
    for _, name in ipairs { "wall", "cpu", "update" } do
      log.print(("%s %s %.9g"):format(kind, name, best[name] / config.steps))
    end
    log.print(("%s loss %.9g"):format(kind, loss:item()))
  end
  if config.trace ~= "" then
    lockstep.profile({ path = config.trace .. "-" .. kind .. ".json", record_shapes = true }, step)
  end
end
