--- Plans from an index of sizes: batching.describe, and prepare and stream with `load`. batching/outline_test.cc and
--- prepare_property_test.cc test what the index holds.

local batching = require "lockstep.batching"
local data = require "lockstep.data"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

--- Sample i: text, or an image of 4 i patches between words; longer than seq_len = 12 from time to time.
local function sample_of(i)
  local ids, mask, types = {}, {}, {}
  local images = i % 3 == 0 and 1 + i % 2 or 0
  for k = 1, 1 + i * 5 % 17 + 3 * images do
    ids[k], mask[k] = 100 * i + k, k % 4 ~= 1
    types[k] = images > 0 and (k == 2 or k == 3 or images == 2 and k == 5) and 1 or 0
  end
  local sample = { input_ids = ids, loss_mask = mask }
  if images > 0 then
    local placeholders = images == 2 and 3 or 2
    sample.mm_token_type_ids = types
    sample.pixel_values = torch.arange(placeholders * 4 * 3, { dtype = torch.float32 }):view { placeholders * 4, 3 } + i
    sample.image_grid_thw = torch.tensor(images == 2 and { { 1, 2, 4 }, { 1, 2, 2 } } or { { 1, 2, 4 } },
      { dtype = torch.int64 })
  end
  if i % 4 == 0 then sample.advantages = torch.full({ #ids }, i) end
  if i % 5 == 0 then sample.experts = torch.full({ #ids, 2, 3 }, i, { dtype = torch.int32 }) end
  return sample
end

local STREAMS = { advantages = 0.5, experts = { absent = -1, padding = -2 } }

local function index_of(count)
  local samples, index = {}, {}
  for i = 1, count do
    samples[i] = sample_of(i)
    index[i] = batching.describe(samples[i], { streams = STREAMS })
    index[i].id = i
  end
  return samples, index
end

t.test("AnEntryHoldsSizesAndNoValues", function()
  t.equal(batching.describe({ input_ids = { 5, 6, 7, 8 }, loss_mask = { 0, 1, 1, 0 }, kind = "code" }),
    { tokens = 4, loss = { 1, 3 }, kind = "code", tensors = {}, streams = {}, items = {} })
  local image = batching.describe(sample_of(3))
  t.equal(image.items, { image = { { 1, 3, 8 }, { 4, 5, 4 } } })
  t.equal(image.tensors.pixel_values, { dtype = "float32", shape = { 12, 3 } })
  t.equal(image.streams, { mm_token_type_ids = "int64" })
  local routed = batching.describe({ input_ids = { 5, 6 }, loss_mask = { 0, 1 },
    experts = torch.zeros({ 2, 3, 4 }, { dtype = torch.int32 }) }, { streams = { experts = 0 } })
  t.equal(routed.streams, { experts = { dtype = "int32", shape = { 2, 3, 4 } } })
  local unlocated = sample_of(3)
  unlocated.mm_token_type_ids = nil
  t.equal(batching.describe(unlocated).items, { image = { { 8 }, { 4 } } })
end)

t.test("AnIndexFromAFileGivesTheSameBatchesAndLoadsOnlyOwnSamples", function()
  local samples, index = index_of(20)
  local path = os.tmpname()
  data.save_json(path, index)
  index = data.json(path)
  os.remove(path)
  local opts = { seq_len = 12, ranks = 3, streams = STREAMS }
  opts.samples = samples
  local batches, report = batching.prepare(opts)
  t.truthy(report.truncated_samples > 0)
  opts.samples, opts.index = nil, index
  local num_loads = 0
  for rank = 0, 2 do
    opts.rank = rank
    local own = {}
    function opts.load(entry, number)
      t.equal(entry.id, number)
      own[#own + 1] = number
      return sample_of(number)
    end

    local from_index, its_report = batching.prepare(opts)

    t.equal(from_index[rank + 1], batches[rank + 1])
    t.equal(its_report, report)
    num_loads = num_loads + #own
  end
  t.truthy(num_loads <= 20 + 3 * report.padding_micro_batches, num_loads .. " samples were loaded")
end)

t.test("AStreamOfEntriesGivesTheSameWindows", function()
  local samples, index = index_of(40)
  local function make(source, load)
    return batching.stream { source = data.loader { source = source, shuffle = false, epochs = 1, rank = 0, world = 1 },
      load = load, buffer = 8, seq_len = 12, ranks = 2, rank = 1, streams = STREAMS }
  end
  local whole, entries = make(samples), make(index, function(entry) return sample_of(entry.id) end)
  local windows = 0
  for micro_batches, report in whole do
    local own, its_report = entries()
    t.equal(own, micro_batches)
    t.equal(its_report, report)
    windows = windows + 1
    if windows == 2 then
      local state = entries:state_dict()
      entries = make(index, function(entry) return sample_of(entry.id) end)
      entries:load_state_dict(state)
    end
  end
  t.equal(entries(), nil)
  t.truthy(windows > 3)
end)

t.test("WhatIsWrongIsNamed", function()
  local _, index = index_of(3)
  local function prepare(entries, load)
    return batching.prepare { index = entries, load = load or sample_of, seq_len = 12, ranks = 1, streams = STREAMS }
  end
  local function load(_, i) return sample_of(i) end
  t.raises("sample 2 is not the one that the index describes; tokens: 11 and 22", prepare, index,
    function(_, i) return i == 2 and sample_of(3) or sample_of(i) end)
  t.raises("index_test.lua:", prepare, index, function() error "no such row" end)
  t.raises("sample 1 of the index has no loss", prepare, { { tokens = 4 } }, load)
  t.raises("sample 1 of the index.tokens", prepare, { { tokens = "4", loss = {} } }, load)
  t.raises("sample 1 of the index.length is unknown", prepare, { { length = 4, loss = {} } }, load)
  t.raises('"float" is not a dtype', prepare, { { tokens = 1, loss = {}, streams = { advantages = "float" } } }, load)
  t.raises("loss must hold pairs", prepare, { { tokens = 1, loss = { 0 } } }, load)
  t.raises("loss must hold ascending runs", prepare, { { tokens = 1, loss = { 0, 2 } } }, load)
  t.raises("item 2 has 1 numbers", prepare, { { tokens = 9, loss = {}, items = { image = { { 1, 2, 4 }, { 4 } } } } },
    load)
  t.raises("give it, or both index and load", batching.prepare, { index = index, seq_len = 4 })
  t.raises("samples excludes index and load", batching.prepare, { index = index, samples = {}, seq_len = 4 })
  t.raises('the option "samples" is missing', batching.prepare, { seq_len = 4 })
end)
