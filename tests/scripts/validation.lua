-- Validation on two shards of unequal length. sharding.pack makes 338 and 327 batches of 100 tokens of them. The model
-- gathers its weights from all ranks for each batch. Then training goes on.
--
-- lockstep --nproc 2 validation.lua MODE: "plain", a loop over the rank's own batches, or a policy of
-- sharding.lockstep. On one rank: the batches of both shards that those steps take. See hang_test.cc.

local dist = require "lockstep.distributed"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"
local torch = require "lockstep.torch"

local SEQ_LEN, VOCAB, HIDDEN = 100, 16, 4
local NUM_BATCHES = { 338, 327 }
local mode = run.args[1]

-- Samples of 1 to 60 tokens, until their batches are full and one is begun.
local function samples_of(shard)
  local left, seed = NUM_BATCHES[shard] * SEQ_LEN + 37, shard
  return function()
    if left == 0 then return nil end
    seed = (seed * 48271) % 2147483647
    local length = math.min(left, seed % 60 + 1)
    left = left - length
    return { input_ids = torch.remainder(torch.arange(length):add(seed % 1000), VOCAB) }
  end
end

local function loader_of(shard)
  return sharding.pack { source = samples_of(shard), seq_len = SEQ_LEN, drop_last = true }
end

-- Each rank keeps a slice of the weight; forward gathers all of it, as fully sharded training does.
local weight = torch.arange(VOCAB * HIDDEN, { dtype = torch.float64 }):sin():view(VOCAB, HIDDEN)
local rows = VOCAB / dist.world_size()
local own = weight:narrow(0, dist.rank() * rows, rows):clone()

-- The sum of the losses over the tokens of the batch.
local function loss_of(batch)
  local whole = torch.cat(dist.all_gather(own), 0)
  local ids = batch.input_ids
  local hidden = torch.embedding(whole, ids)
  local logits = torch.matmul(hidden, whole:t())
  local targets = torch.remainder(ids:mul(3):add(1), VOCAB)
  return torch.cross_entropy_loss(logits, targets, { reduction = 2 }):item()
end

local sum, count, batches = 0, 0, 0
local function validate(batch, real)
  local loss = loss_of(batch)
  if real then sum, count, batches = sum + loss, count + batch.input_ids:numel(), batches + 1 end
end

local steps, dropped, filled = 0, 0, 0
if dist.world_size() == 1 then
  local first, second = loader_of(1), loader_of(2)
  repeat
    local a, b = first(), second()
    local more = mode == "until_first" and a and b or mode == "until_last" and (a or b)
    if more then
      if a then validate(a, true) end
      if b then validate(b, true) end
      steps = steps + 1
    end
  until not more
elseif mode == "plain" then
  for batch in loader_of(dist.rank() + 1) do validate(batch, true) end
else
  local it = sharding.lockstep(loader_of(dist.rank() + 1), { policy = mode })
  for batch, real in it do validate(batch, real) end
  steps, dropped, filled = it.steps, it.dropped, it.filled
end

-- A later collective, such as a checkpoint's.
dist.barrier()
local loss = sharding.weighted_mean(sum, count)
local text = "rank %d is done: %d steps of %d batches, %d dropped, %d filled; loss %.15f"
print(text:format(dist.rank(), steps, batches, dropped, filled, loss))
