-- Measures the cost of mimo.slice for each key of a batch, the balance of mimo.reorder, and the speed of the bridge
-- relative to a bare send and receive of the same backend. Ratios of one run:
--
--     bazel-bin/driver/lockstep --nproc 2 benchmarks/mimo_benchmark.lua [ROUNDS]
--
-- Rank 0 sends, rank 1 receives; contenders take turns, figures are medians of rounds.

local core = require "lockstep.core"
local dist = require "lockstep.distributed"
local mimo = require "lockstep.mimo"
local run = require "lockstep.run"
local torch = require "lockstep.torch"

local ROUNDS, REPEATS = tonumber(run.args[1] or 15), 4

local function median(values)
  table.sort(values)
  return values[math.ceil(#values / 2)]
end

-- Slicing: 64 tensors in a table of tables.
local function nested_batch()
  local batch = { input_ids = torch.zeros { 64, 16 } }
  for i = 1, 7 do
    local inner = {}
    for j = 1, 9 do inner["key_" .. j] = torch.zeros { 64, 16, j } end
    batch["modality_" .. i] = inner
  end
  return batch
end

local batch = nested_batch()
local function check(part, whole)
  for key, value in pairs(part) do
    if type(value) == "table" then
      check(value, whole[key])
    else
      assert(value:size(0) == 16 and value:is_set_to(whole[key]:narrow(0, 16, 16)), key)
    end
  end
end
check(mimo.slice(batch, 1, 4), batch)

local slices = {}
for round = 1, ROUNDS do
  local started = os.clock() -- CPU time: one thread, and others may be busy
  for _ = 1, 500 do mimo.slice(batch, 1, 4) end
  slices[round] = (os.clock() - started) / 500 / 64
end

-- Reordering: samples of 0 to 3 images with log-normally many patches (median 665, sigma 0.7 and 1.2). Returns the load
-- of the heaviest replica relative to the mean of all, before and after.
local function spreads(sigma, micro_batch, replicas, rounds)
  local before, after, seconds = {}, {}, 0
  for round = 1, rounds do
    local items = torch.randint(0, 4, { micro_batch }, { dtype = torch.int64 })
    local tokens = (torch.randn { items:sum():item() } * sigma + 6.5):exp():ceil():to(torch.int64)
    local images = mimo.ownership { items = items, tokens = tokens }
    local costs, as_is = images:costs(), {}
    for i = 1, micro_batch do as_is[i] = i end
    local started = os.clock()
    local order = mimo.balanced_order(costs, replicas)
    seconds = seconds + os.clock() - started
    local mean = images:num_rows() / replicas
    before[round] = math.max(unpack(mimo.group_costs(costs, as_is, replicas))) / mean
    after[round] = math.max(unpack(mimo.group_costs(costs, order, replicas))) / mean
  end
  return torch.tensor(before), torch.tensor(after), seconds / rounds
end

if dist.rank() == 0 then
  torch.manual_seed(1)
  for _, case in ipairs { { 0.7, 32, 4 }, { 0.7, 64, 8 }, { 1.2, 32, 4 }, { 1.2, 64, 8 } } do
    local sigma, micro_batch, replicas = unpack(case)
    local before, after, seconds = spreads(sigma, micro_batch, replicas, 1000)
    print(("reorder, sigma %.1f, %d samples on %d replicas: heaviest / mean %.2f (99th percentile %.2f), reordered "
      .. "%.3f (%.3f); %.1f us an order"):format(sigma, micro_batch, replicas, before:mean():item(),
      before:quantile(0.99):item(), after:mean():item(), after:quantile(0.99):item(), 1e6 * seconds))
  end
end

if dist.rank() == 0 then print(("slice, a key of 64 in a nested batch: %.2f us"):format(1e6 * median(slices))) end
if dist.world_size() == 1 then return end

-- The bridge.
local topology = mimo.topology { modules = { { name = "vision" }, { name = "language", first_rank = 1 } } }
local bridge = mimo.bridge { topology = topology, from = "vision", to = "language" }
local is_sender = dist.rank() == 0

local function timed(pass)
  dist.barrier()
  local started = core.now()
  for _ = 1, REPEATS do pass() end
  dist.barrier()
  return (core.now() - started) / REPEATS
end

for _, megabytes in ipairs { 1, 16, 64 } do
  local x = torch.full({ megabytes * 256, 1024 }, 3)
  local buffer = torch.zeros_like(x)
  local gradient = torch.full({ megabytes * 256, 1024 }, 2)
  local function bare_into(target)
    if is_sender then
      dist.send(x, 1)
    else
      dist.recv(target(), 0)
    end
  end
  local contenders = {
    { "bare, into one buffer", function() bare_into(function() return buffer end) end },
    { "bare, into a new tensor", function() bare_into(function() return torch.empty_like(x) end) end },
    { "bridge", function()
      local y = torch.no_grad(function() return bridge(is_sender and x or nil) end)
      assert(is_sender or y[0][0]:item() == 3)
    end },
    { "bare, there and back", function()
      bare_into(function() return torch.empty_like(x) end)
      if is_sender then dist.recv(torch.empty_like(x), 1) else dist.send(gradient, 0) end
    end },
    { "bridge, forward and backward", function()
      local leaf = is_sender and x:detach():requires_grad_(true) or nil
      local y = bridge(leaf)
      if is_sender then torch.sum(y):backward() else y:backward(gradient) end
      assert(not leaf or leaf.grad[0][0]:item() == 2)
    end },
  }
  local times = {}
  for i = 1, #contenders do times[i] = {} end
  for round = 0, ROUNDS do -- the first is for warming up
    for i, contender in ipairs(contenders) do
      local seconds = timed(contender[2])
      if round > 0 then times[i][round] = seconds end
    end
  end
  local function ratio(of, to)
    local ratios = {}
    for round = 1, ROUNDS do ratios[round] = times[to][round] / times[of][round] end
    return median(ratios)
  end
  local ratios = { [3] = { ratio(3, 1), ratio(3, 2) }, [5] = { ratio(5, 4) } }
  for i, contender in ipairs(contenders) do
    local text = ""
    for _, r in ipairs(ratios[i] or {}) do text = text .. ("  %.3f"):format(r) end
    local moved = (i >= 4 and 2 or 1) * megabytes
    if dist.rank() == 1 then
      print(("%2d MB  %-30s %8.2f ms %8.0f MB/s%s"):format(megabytes, contender[1], 1e3 * median(times[i]),
        moved / median(times[i]), text))
    end
  end
  bridge = mimo.bridge { topology = topology, from = "vision", to = "language" } -- for the next size
end
