-- A full evaluation: the mean loss over all tokens of 1,003 samples, whatever the number of ranks. Prints
-- it with all its digits, and the mean of the ranks' means, which depends on the sharding. See
-- schedules_test.cc.

local dist = require "lockstep.distributed"
local sharding = require "lockstep.sharding"

local SAMPLES = 1003
local sum, count = 0, 0
local shard = sharding.dataset { size = SAMPLES, rank = dist.rank(), world = dist.world_size(), seed = 7 }
for index in shard do
  local tokens = index * index % 97 + 1
  -- Losses of all sizes, so that the order of summing shows in float32.
  sum = sum + tokens * (1 + math.sin(index)) * 10 ^ (index % 5 - 2)
  count = count + tokens
end
local exact = sharding.weighted_mean(sum, count)
local naive = sharding.weighted_mean(sum / count, 1)
print(("rank %d: mean %.17g, mean of means %.17g"):format(dist.rank(), exact, naive))
