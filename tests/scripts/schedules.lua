-- Random schedules for sharding.lockstep: shards of 0 to 50 batches, an iterator that fails somewhere, a
-- rank that stops. Every rank must leave each loop at the same step, with the same error.
--
-- lockstep --nproc N schedules.lua FIRST_SEED COUNT. See schedules_test.cc.

local dist = require "lockstep.distributed"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"

local first, count = tonumber(run.args[1]), tonumber(run.args[2])
local rank, world = dist.rank(), dist.world_size()

-- The same on every rank: what each of them will do.
local function schedule_of(seed)
  math.randomseed(seed)
  local schedule = { policy = math.random(2) == 1 and "until_first" or "until_last", ranks = {} }
  for r = 1, world do
    schedule.ranks[r] = { length = math.random(0, 50) }
    if math.random(6) == 1 then schedule.ranks[r].length = 0 end
    if math.random(8) == 1 then schedule.ranks[r].fails_at = math.random(50) end
    if math.random(8) == 1 then schedule.ranks[r].stops_at = math.random(50) end
  end
  return schedule
end

-- This rank's result: steps taken, their sum, and how the loop ended.
local function follow(schedule)
  local own, read, steps = schedule.ranks[rank + 1], 0, 0
  local function iterator()
    read = read + 1
    if read == own.fails_at then error("batch " .. read .. " cannot be read", 0) end
    if read <= own.length then return read end
  end
  local it = sharding.lockstep(iterator, { policy = schedule.policy, filler = function() return 0 end })
  local fine, message = pcall(function()
    for _ in it do
      steps = steps + 1
      if steps == own.stops_at then it:stop() end
    end
  end)
  return { steps = steps, ending = fine and "over" or tostring(message):gsub("^[^ ]*:%d+: ", "") }
end

local failed = 0
for seed = first, first + count - 1 do
  local schedule = schedule_of(seed)
  local seen = dist.all_gather_object(follow(schedule))
  local shortest, longest, disturbed = math.huge, 0, false
  for r = 1, world do
    local own = schedule.ranks[r]
    shortest, longest = math.min(shortest, own.length), math.max(longest, own.length)
    disturbed = disturbed or own.fails_at ~= nil or own.stops_at ~= nil
  end
  local same = true
  for r = 2, world do
    same = same and seen[r].steps == seen[1].steps and seen[r].ending == seen[1].ending
  end
  local expected = schedule.policy == "until_first" and shortest or longest
  local right = disturbed and seen[1].steps <= expected or seen[1].steps == expected and seen[1].ending == "over"
  if not (same and right) then
    failed = failed + 1
    for r = 1, world do
      print(("seed %d, rank %d of %d: %d steps, %s"):format(seed, r - 1, world, seen[r].steps, seen[r].ending))
    end
  end
end
if rank == 0 then print(("%d schedules on %d ranks, %d failed"):format(count, world, failed)) end
