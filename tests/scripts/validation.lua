-- Two ranks validate on 11 and 8 batches, with a collective for each batch, and go on.
--
-- lockstep --nproc 2 validation.lua MODE: "plain", a loop over the rank's own batches, or a policy of
-- sharding.lockstep. See hang_test.cc.

local dist = require "lockstep.distributed"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"
local torch = require "lockstep.torch"

local NUM_BATCHES = { 11, 8 }
local mode = run.args[1]

-- The loss of batch i on rank r: 100 r + i.
local function new_loader()
  local i = 0
  return function()
    i = i + 1
    if i <= NUM_BATCHES[dist.rank() + 1] then return 100 * dist.rank() + i end
  end
end

local loader = new_loader()
local it = mode ~= "plain" and sharding.lockstep(loader, { policy = mode }) or nil
local sum, count = 0, 0
local function validate(loss, real)
  -- As a model does that is sharded over the ranks.
  dist.all_reduce(torch.tensor { loss })
  if real then sum, count = sum + loss, count + 1 end
end

if it then
  for loss, real in it do validate(loss, real) end
else
  for loss in loader do validate(loss, true) end
end

-- What comes next: a checkpoint, say.
dist.barrier()
local mean = sharding.weighted_mean(sum, count)
local steps, dropped, filled = count, 0, 0
if it then steps, dropped, filled = it.steps, it.dropped, it.filled end
local text = "rank %d is done: %d steps, %d real, %d dropped, %d filled, mean %.4f"
print(text:format(dist.rank(), steps, count, dropped, filled, mean))
