--- The option on_cut of batching.stream: samples longer than seq_len are cut, left out, or an error.

local batching = require "lockstep.batching"
local data = require "lockstep.data"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local SEQ_LEN = 8

--- Returns samples of 1 to 12 tokens with random masks, in the forms that samples have.
local function random_samples(count)
  local samples = {}
  for n = 1, count do
    local ids, mask = {}, {}
    for i = 1, math.random(12) do ids[i], mask[i] = 100 * n + i, math.random(2) - 1 end
    samples[n] = { input_ids = ids, loss_mask = mask }
    if n % 3 == 1 then
      samples[n] = { input_ids = torch.tensor(ids, { dtype = torch.int64 }), loss_mask = torch.tensor(mask):bool() }
    elseif n % 3 == 2 then
      for i, bit in ipairs(mask) do mask[i] = bit == 1 end
    end
  end
  return samples
end

local function is_long(sample) return #sample.input_ids > SEQ_LEN end

local function stream_of(samples, on_cut)
  local loader = data.loader { source = samples, shuffle = false, epochs = 1, rank = 0, world = 1 }
  return batching.stream { source = loader, buffer = 5, seq_len = SEQ_LEN, on_cut = on_cut }
end

-- The reference is a stream over the samples that fit.
t.test("SamplesThatAreLeftOutAreAsIfTheSourceLackedThem", function()
  for seed = 1, 20 do
    math.randomseed(seed)
    local samples, fitting, lost = random_samples(40), {}, { 0, 0, 0 }
    samples[40] = { input_ids = { 1, 2 }, loss_mask = { 0, 1 } } -- of what comes last, no window would tell
    for _, sample in ipairs(samples) do
      if is_long(sample) then
        local mask = torch.tensor(sample.loss_mask):ne(0)
        lost = { lost[1] + 1, lost[2] + #sample.input_ids, lost[3] + mask:sum():item() - (mask[0]:item() and 1 or 0) }
      else
        fitting[#fitting + 1] = sample
      end
    end
    local dropping, reference, found, num_samples = stream_of(samples, "drop"), stream_of(fitting), { 0, 0, 0 }, 0
    for micro_batches, report in dropping do
      local expected, of_reference = reference()
      t.equal(micro_batches, expected, "seed " .. seed)
      t.equal({ report.tokens, report.samples }, { of_reference.tokens, of_reference.samples })
      local counts = batching.lost(report)
      found = { found[1] + counts.dropped_samples, found[2] + counts.truncated_tokens,
        found[3] + counts.truncated_loss_tokens }
      num_samples = num_samples + report.samples
    end
    t.equal(reference(), nil)
    t.equal({ found, num_samples }, { lost, #fitting }, "seed " .. seed)
  end
end)

t.test("AResumedStreamCountsWhatItsWindowLeftOut", function()
  math.randomseed(3)
  local samples = random_samples(60)
  for stop_after = 0, 3 do
    local whole, first, second = stream_of(samples, "drop"), stream_of(samples, "drop"), stream_of(samples, "drop")
    for _ = 1, stop_after do t.equal({ first() }, { whole() }) end
    second:load_state_dict(first:state_dict())
    for micro_batches, report in whole do t.equal({ second() }, { micro_batches, report }) end
    t.equal(second(), nil)
  end
  local earlier = stream_of(samples, "cut"):state_dict() -- of a version without on_cut
  earlier.lost = nil
  local resumed = stream_of(samples, "drop")
  resumed:load_state_dict(earlier)
  t.truthy(resumed())
end)

t.test("ACutIsAnErrorWhereTheRuleSaysSo", function()
  math.randomseed(4)
  local samples = random_samples(5)
  for _, sample in ipairs(samples) do
    if is_long(sample) then sample.input_ids, sample.loss_mask = { 1, 2 }, { 0, 1 } end
  end
  t.equal(select(2, stream_of(samples, "error")()).samples, 5)
  samples[2] = { input_ids = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 }, loss_mask = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 1 } }
  t.raises("batching.stream: 1 of 5 samples are longer than seq_len = 8. A cut would lose 2 tokens, 1 of them with a "
    .. "loss. Raise seq_len, or set on_cut to \"cut\", or to \"drop\" to leave the samples out", stream_of(samples,
    "error"))
  local _, report = stream_of(samples)()
  t.equal({ report.samples, report.truncated_samples, report.truncated_tokens }, { 5, 1, 2 })
end)

t.test("ARuleThatIsNoneAndASourceThatNeverFitsAreErrors", function()
  t.raises('batching.stream: on_cut must be "cut", "drop" or "error", not "skip"', stream_of, { {} }, "skip")
  local long = { input_ids = { 1, 2, 3 }, loss_mask = { 0, 0, 1 } }
  local stream = batching.stream { source = function() return long end, buffer = 1, seq_len = 2, on_cut = "drop" }
  t.raises("100000 samples in a row are longer than seq_len = 2", stream)
  t.raises('on_cut = "drop" needs samples', batching.stream, { source = function() end, buffer = 1, seq_len = 2,
    on_cut = "drop", load = function() end })
end)
