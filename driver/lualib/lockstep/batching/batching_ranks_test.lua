--- batching on several ranks: that they agree on what they train on is checked before they do.

local batching = require "lockstep.batching"
local dist = require "lockstep.distributed"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local RANK, WORLD = dist.rank(), dist.world_size()

local function text(tokens, kind)
  return { input_ids = torch.arange(tokens), loss_mask = torch.ones({ tokens }):bool(), kind = kind }
end

local function mixed() return { text(8), text(5), text(7, "image"), text(4), text(6, "image"), text(3) } end

--- Expects that fn raises on every rank, with the same message, which shows each rank's value.
local function expect_disagreement(values, fn, ...)
  local message = t.raises("the ranks disagree", fn, ...)
  for _, other in ipairs(dist.all_gather_object(message)) do t.equal(other, message) end
  for rank, value in pairs(values) do
    t.truthy(message:find(("rank %d: %s"):format(rank, value), 1, true), message)
  end
  t.truthy(message:find("batching_ranks_test.lua:", 1, true), message)
end

t.test("RanksThatPrepareTheSameAgree", function()
  for _, rank in ipairs { RANK, false } do
    local batches, report = batching.prepare { samples = mixed(), seq_len = 8, rank = rank or nil }
    t.equal(#batches[RANK + 1], report.micro_steps)
    t.equal(#batches, WORLD)
  end
end)

t.test("TogetherEachRankIsGivenTheMicroBatchesOfAll", function()
  local all, report = batching.prepare { samples = mixed(), seq_len = 8, ranks = 2 }
  local function compare(own)
    t.equal(#own, report.micro_steps)
    for step, micro_batches in ipairs(own) do
      t.equal(#micro_batches, 2)
      for row = 1, 2 do
        t.equal(micro_batches[row].input_ids, all[row][step].input_ids)
        t.equal(micro_batches[row].padding_values, all[row][step].padding_values)
        t.equal(micro_batches[row].kind, micro_batches.kind)
      end
    end
  end

  local batches = batching.prepare { samples = mixed(), seq_len = 8, ranks = 2, together = true }
  compare(batches[RANK + 1])
  local samples = mixed()
  local stream = batching.stream { source = function() return table.remove(samples, 1) end, buffer = 6, seq_len = 8,
    ranks = 2, together = true, max_wait = 0 }
  compare((stream()))
  t.equal(stream(), nil)
  t.raises("with together = true a rank is given the micro-batches of all ranks; leave rank out, got 7",
    batching.prepare, { samples = mixed(), seq_len = 8, ranks = 2, together = true, rank = 7 })
end)

t.test("TogetherAnotherKindOnOneRankIsNamed", function()
  local samples = mixed()
  if RANK == 1 then samples[1].kind, samples[2].kind = "image", "image" end
  local message = t.raises("the ranks disagree", batching.prepare,
    { samples = samples, seq_len = 8, ranks = 2, together = true })
  for _, other in ipairs(dist.all_gather_object(message)) do t.equal(other, message) end
end)

t.test("AnotherKindOnOneRankIsNamedBeforeTraining", function()
  local samples = mixed()
  if RANK == 1 then samples[1].kind, samples[2].kind = "image", "image" end
  expect_disagreement({ [0] = "2 micro-steps: 1 x image, 1 x text", [1] = "3 micro-steps: 2 x image, 1 x text" },
    batching.prepare, { samples = samples, seq_len = 8, rank = RANK })
end)

t.test("AnotherNumberOfMicroStepsIsNamed", function()
  local samples = {}
  for i = 1, WORLD * (RANK == 2 and 4 or 3) do samples[i] = text(8) end
  expect_disagreement({ [0] = "3 micro-steps: 3 x text", [2] = "4 micro-steps: 4 x text" }, batching.prepare,
    { samples = samples, seq_len = 8 })
end)

t.test("OtherSamplesOfTheSameKindsAreNamed", function()
  local function prepare(mine, theirs)
    return batching.prepare { samples = { text(4), text(RANK == 1 and mine or theirs) }, seq_len = 8 }
  end
  expect_disagreement({ [0] = "1 micro-step: 1 x text; 8 tokens", [1] = "1 micro-step: 1 x text; 7 tokens" },
    prepare, 3, 4)
  -- As many tokens, in another order: every rank would train on what it takes to be the other's.
  expect_disagreement({}, function()
    local samples = { text(4), text(6) }
    return batching.prepare { samples = RANK == 1 and { samples[2], samples[1] } or samples, seq_len = 8 }
  end)
end)

t.test("OneRankMayPlanForAll", function()
  if RANK ~= 1 then return end
  t.equal(#batching.prepare { samples = mixed(), seq_len = 8, ranks = WORLD }, WORLD)
  t.equal(#batching.prepare { samples = mixed(), seq_len = 8, ranks = 1 }, 1)
  t.equal(#batching.prepare { samples = mixed(), seq_len = 8, rank = RANK, check = false }, WORLD)
  t.equal(#batching.prepare { samples = mixed(), seq_len = 8, rank = RANK, ranks = WORLD + 1 }, WORLD + 1)
end)

t.test("StreamsAreCheckedAtEachWindow", function()
  local function make(differs_at, check)
    local i = 0
    return batching.stream {
      source = function()
        i = i + 1
        if i <= 30 then return text(1 + i % 8, i == differs_at and "image" or nil) end
      end,
      buffer = 10, seq_len = 8, max_wait = 0, check = check,
    }
  end
  local windows = 0
  for _ in make() do windows = windows + 1 end
  t.equal(windows, 3)
  local stream = make(RANK == 1 and 15 or nil)
  t.truthy(stream())
  expect_disagreement({ [0] = "", [1] = "" }, stream)
  stream = make(RANK == 1 and 15 or nil, false)
  for _ in stream do windows = windows + 1 end
  t.equal(windows, 6)
end)

t.test("AStreamThatEndsEarlyIsNamed", function()
  local left = RANK == 0 and 4 or 8
  local stream = batching.stream {
    source = function()
      left = left - 1
      return left >= 0 and text(8) or nil
    end,
    buffer = 4, seq_len = 8, max_wait = 0,
  }
  t.truthy(stream())
  expect_disagreement({ [0] = "the end of the source", [1] = "" }, stream)
end)

t.test("MicroBatchesFromElsewhereAreCheckedToo", function()
  batching.agree {}
  batching.agree { { kind = "text" }, { kind = "image" } }
  expect_disagreement({ [0] = "1 micro-step: 1 x text", [1] = "1 micro-step: 1 x image" }, batching.agree,
    { { kind = RANK == 1 and "image" or "text" } })
  t.raises("element 1 of the list is no micro-batch", batching.agree, { { { kind = "text" } } })
  t.raises("expected this rank's list of micro-batches, not a nil", batching.agree, nil)
end)
