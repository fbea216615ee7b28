--- Streams: what padding and samples without a stream get, and values per token of any rank.
--- batching/prepare_streams_test.cc tests the packing.

local batching = require "lockstep.batching"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

--- Three samples with an image of 8 patches and 4 tokens each, whose advantages are 1, 2 and 3.
local function rollouts()
  local samples = {}
  for i = 1, 3 do
    samples[i] = {
      input_ids = { 0, 7, 7, 0 }, loss_mask = { 0, 1, 1, 1 }, mm_token_type_ids = { 0, 1, 1, 0 },
      pixel_values = torch.ones({ 8, 3 }), image_grid_thw = torch.tensor({ { 1, 2, 4 } }, { dtype = torch.int64 }),
      advantages = i,
    }
  end
  return samples
end

local STREAMS = { advantages = 0.0, rl_weights = { absent = 1.0, padding = 0.0 } }

local function prepare(balance, streams)
  return (batching.prepare { samples = rollouts(), seq_len = 12, ranks = 4, pad_to_multiple_of = 6, balance = balance,
    streams = streams or STREAMS })
end

--- The sum over all ranks of a loss that reads weights, and no loss_mask.
local function loss_of(batches)
  local sum = 0
  for _, list in ipairs(batches) do
    for _, batch in ipairs(list) do sum = sum + (batch.advantages * batch.rl_weights):sum():item() end
  end
  return sum
end

local WANT = 4 * (1 + 2 + 3)

t.test("PaddingTrainsNothingWhereALossReadsNoMask", function()
  for _, balance in ipairs { "lockstep", "round_robin" } do
    local batches = prepare(balance)
    batching.verify(batches)
    t.equal(loss_of(batches), WANT)
    local padding = 0
    for _, list in ipairs(batches) do
      for _, batch in ipairs(list) do
        t.equal(batch.padding_values, { advantages = 0, rl_weights = 0 })
        if batch.padding then
          padding = padding + 1
          t.equal(batch.padding_tokens, #batch.input_ids)
          t.equal(4 * batch.mm_token_type_ids:eq(1):sum():item(), batch.pixel_values:size(0))
        end
      end
    end
    t.truthy(padding > 0)
  end
end)

t.test("CopiesWithAClearedMaskStillTrainAndVerifyFindsThem", function()
  local batches = prepare("round_robin")
  local real = batches[1][1]
  t.equal(real.padding, false)
  for rank = 2, 4 do
    local copy = batches[rank][1]
    t.equal(copy.padding, true)
    copy.advantages, copy.rl_weights = real.advantages:clone(), real.rl_weights:clone()
    t.equal(copy.loss_mask:any():item(), false)
  end
  t.equal(loss_of(batches), 4 * WANT)
  t.raises("at micro-step 0 rank 1 has padding whose", batching.verify, batches)
end)

t.test("VerifyFindsPaddingToAMultipleThatTrains", function()
  local batches = prepare("lockstep")
  for rank = 1, 4 do
    local batch = batches[rank][1]
    if not batch.padding then
      t.equal(batch.padding_tokens, 2)
      batch.advantages[5] = 1
      t.raises(('rank %d has padding whose "advantages" is not 0'):format(rank - 1), batching.verify, batches)
      batch.advantages[5] = 0
      batch.loss_mask[5] = true
      t.raises("has padding with loss tokens", batching.verify, batches)
      batch.loss_mask[5] = false
    end
  end
  batching.verify(batches)
end)

t.test("AValueAloneIsThatOfPaddingToo", function()
  local batches = prepare("lockstep", { advantages = 0.0, rl_weights = { absent = 1.0 }, temperatures = 1,
    is_tool = true })
  for _, list in ipairs(batches) do
    t.equal(list[1].temperatures, torch.ones { #list[1].input_ids })
    t.equal(list[1].is_tool, torch.ones({ #list[1].input_ids }):bool())
    t.equal(list[1].padding_values, { advantages = 0, rl_weights = 0, temperatures = 1, is_tool = true })
  end
  batching.verify(batches)
end)

t.test("ValuesPerTokenMayHaveAnyRank", function()
  local experts = torch.arange(24, { dtype = torch.int32 }):view(4, 2, 3)
  local function sample(fields)
    local result = { input_ids = { 1, 2, 3, 4 }, loss_mask = { 0, 1, 1, 1 } }
    for name, value in pairs(fields) do result[name] = value end
    return result
  end
  local batch = batching.prepare { samples = { sample { experts = experts }, sample {} }, seq_len = 12, ranks = 1,
    pad_to_multiple_of = 12, streams = { experts = { absent = -1, padding = -2 } } }[1][1]
  t.equal(batch.experts.shape, { 12, 2, 3 })
  t.equal(batch.experts:narrow(0, 0, 4), experts)
  t.truthy(batch.experts:narrow(0, 4, 4):eq(-1):all():item())
  t.truthy(batch.experts:narrow(0, 8, 4):eq(-2):all():item())

  local cut = batching.prepare { samples = { sample { experts = experts } }, seq_len = 3, ranks = 1,
    streams = { experts = 0 } }[1][1]
  t.equal(cut.experts, experts:narrow(0, 0, 3))
  local pairs_of = batching.prepare { samples = { sample { votes = { { 1, 2 }, { 3, 4 }, { 5, 6 }, { 7, 8 } } } },
    seq_len = 4, ranks = 1, streams = { votes = 0 } }[1][1]
  t.equal(pairs_of.votes:totable(), { { 1, 2 }, { 3, 4 }, { 5, 6 }, { 7, 8 } })

  -- Not declared, the rows of a tensor would follow nothing: 12 tokens and 4 rows.
  t.raises("sample 1: experts has 4 rows, which follow no declared count", batching.prepare,
    { samples = { sample { experts = experts } }, seq_len = 12, ranks = 1, pad_to_multiple_of = 12 })
  local own = batching.prepare { samples = { sample { clips = experts } }, seq_len = 12, ranks = 1,
    pad_to_multiple_of = 12, own_rows = { "clips" } }[1][1]
  t.equal(own.clips, experts)
end)

t.test("AStreamOfWindowsHasPaddingValuesToo", function()
  local samples = rollouts()
  local next_sample = 0
  local windows = batching.stream {
    source = function()
      next_sample = next_sample + 1
      return samples[next_sample]
    end,
    buffer = 3, seq_len = 12, ranks = 1, rank = 0, pad_to_multiple_of = 12, streams = STREAMS,
  }
  for micro_batches in windows do
    t.equal(micro_batches[1].padding_values, { advantages = 0, rl_weights = 0 })
    batching.verify { micro_batches }
  end
end)
