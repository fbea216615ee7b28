--- Tests the translation of samples and results. C++ tests next to the library cover the guarantees of a plan.

local batching = require "lockstep.batching"
local core = require "lockstep.core"
local data = require "lockstep.data"
local run = require "lockstep.run"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local function text(tokens, fields)
  local sample = { input_ids = {}, loss_mask = {} }
  for i = 1, tokens do sample.input_ids[i], sample.loss_mask[i] = 100 + i, i > 1 end
  for name, value in pairs(fields or {}) do sample[name] = value end
  return sample
end

local function image(patches)
  local types = { 0 }
  for i = 2, patches / 4 + 1 do types[i] = 1 end
  types[#types + 1] = 0
  return text(#types, {
    mm_token_type_ids = types, pixel_values = torch.ones({ patches, 3 }),
    image_grid_thw = torch.tensor({ { 1, 2, patches / 2 } }, { dtype = torch.int64 }),
  })
end

t.test("TheContractsExampleRuns", function()
  local batches, report = batching.prepare {
    samples = { text(6), text(3), image(8), text(4) }, seq_len = 8, ranks = 2,
    pad_to_multiple_of = 1, balance = "makespan", cost = batching.cost.tokens(), streams = { advantages = 0.0 },
    token_types = "mm_token_type_ids",
  }

  t.equal(#batches, 2)
  t.equal(#batches[1], report.micro_steps)
  t.equal(#batches[2], report.micro_steps)
  t.equal(report.micro_steps, 2)
  t.equal(report.tokens, 17)
  t.equal(report.padding_micro_batches, 1)
  for step = 1, 2 do t.equal(batches[1][step].kind, batches[2][step].kind) end
end)

t.test("AMicroBatchHasTheFieldsOfTheContract", function()
  local batches = batching.prepare {
    samples = { text(3), text(2, { advantages = { 0.5, 0.25 } }) }, seq_len = 8, ranks = 1,
    streams = { advantages = -1 },
  }
  local batch = batches[1][1]
  t.equal(batch.input_ids, torch.tensor({ 101, 102, 103, 101, 102 }, { dtype = torch.int64 }))
  t.equal(batch.loss_mask, torch.tensor { false, true, true, false, true })
  t.equal(batch.position_ids, torch.tensor({ 0, 1, 2, 0, 1 }, { dtype = torch.int64 }))
  t.equal(batch.advantages:totable(), { -1, -1, -1, 0.5, 0.25 })
  t.equal(batch.seq_lens, { 3, 2 })
  t.equal(batch.cu_seqlens:totable(), { 0, 3, 5 })
  t.equal(batch.samples, { 1, 2 })
  t.equal(batch.kind, "text")
  t.equal(batch.padding, false)
end)

t.test("KindsAreTheSetsOfTensors", function()
  local rewarded = text(3, { reward = torch.ones({ 1 }) })
  local batches = batching.prepare { samples = { rewarded, image(8), text(3) }, seq_len = 8, ranks = 1,
    mix_kinds = false }
  local kinds = {}
  for i, batch in ipairs(batches[1]) do kinds[i] = batch.kind end
  t.equal(kinds, { "image", "text", "text+reward" })

  local all_rewarded = batching.prepare { samples = { rewarded, image(8), rewarded }, seq_len = 8, ranks = 1 }[1]
  t.equal({ all_rewarded[1].kind, all_rewarded[2].kind }, { "image", "text" })
  t.equal(all_rewarded[2].reward, torch.ones { 2 })
end)

t.test("TextRidesInAnImageBatch", function()
  local samples = { image(8), text(3) }
  local apart, apart_report = batching.prepare { samples = samples, seq_len = 8, ranks = 2, mix_kinds = false }
  local batches, report = batching.prepare { samples = samples, seq_len = 8, ranks = 2 }
  batching.verify(apart)
  batching.verify(batches)
  t.equal({ apart_report.micro_steps, apart_report.padding_micro_batches }, { 2, 2 })
  t.equal({ report.micro_steps, report.padding_micro_batches }, { 1, 1 })
  t.equal(report.makespan, apart_report.makespan)
  local batch = batches[batches[1][1].padding and 2 or 1][1]
  t.equal({ batch.kind, batch.samples, batch.seq_lens }, { "image", { 1, 2 }, { 4, 3 } })
  t.equal(batch.mm_token_type_ids:totable(), { 0, 1, 1, 0, 0, 0, 0 })
  t.equal(batch.pixel_values:size(0), 8)
end)

t.test("AStreamHasTheTypeOfItsFill", function()
  local samples = { text(2, { is_tool = { true, false }, weight = { true, false } }), text(1),
    text(1, { is_tool = true, weight = 0.5 }), text(2, { is_tool = { 0, 1 } }) }
  local batch = batching.prepare { samples = samples, seq_len = 8, ranks = 1,
    streams = { is_tool = false, weight = 0, nobody_has = true } }[1][1]
  local want = { { true, false }, { false }, { true }, { false, true } }
  local is_tool = {}
  for _, sample in ipairs(batch.samples) do
    for _, value in ipairs(want[sample]) do is_tool[#is_tool + 1] = value end
  end
  t.equal(batch.is_tool, torch.tensor(is_tool))
  t.equal(batch.weight.dtype, torch.float32)
  t.near(batch.weight:sum():item(), 1.5, 0)
  t.equal(batch.nobody_has, torch.ones { 6 }:bool())
end)

t.test("AWholeNumberThatFloat32WouldRoundIsNoStream", function()
  local function prepare(ids) return batching.prepare { samples = { text(2, { ids = ids }) }, seq_len = 8, ranks = 1,
    streams = { ids = 0 } }[1][1] end
  t.raises("sample 1: ids: 16777217 would be rounded to float32", prepare, { 1, 16777217 })
  t.raises("sample 1: ids: 16777217 would be rounded to float32", prepare, 16777217)
  t.equal(prepare(torch.tensor({ 1, 16777217 }, { dtype = torch.int64 })).ids:totable(), { 1, 16777217 })
  t.equal(prepare({ 16777216, 33554432 }).ids:totable(), { 16777216, 33554432 })
  t.equal(prepare({ 0.1, 2 ^ 24 + 0.5 }).ids[0]:item(), torch.tensor(0.1):item())
end)

t.test("ATokenIdMarksPlaceholders", function()
  local sample = image(8)
  sample.mm_token_type_ids = nil
  sample.input_ids = { 101, 7, 7, 102 }
  local function prepare(seq_len, id)
    return batching.prepare({ samples = { sample }, seq_len = seq_len, ranks = 1, image_token_id = id })[1][1]
  end
  t.equal(prepare(3, 7).pixel_values:size(0), 8)
  t.equal(prepare(2, 7).kind, "text")
  t.equal(prepare(2, 7).seq_lens, { 1 })
  t.equal(prepare(4).kind, "image")
  t.raises("give the sample mm_token_type_ids or set image_token_id", prepare, 3)
end)

t.test("SamplesMayBeTensorsOrArrays", function()
  local ids = torch.tensor({ 7, 8 }, { dtype = torch.int64 })
  local masks = {
    { false, true }, { 0, 1 }, torch.tensor { false, true }, torch.tensor({ 0, 1 }, { dtype = torch.int64 }),
  }
  for _, mask in ipairs(masks) do
    for _, input_ids in ipairs { { 7, 8 }, ids, ids:to(torch.int32) } do
      local sample = { input_ids = input_ids, loss_mask = mask }
      local batches = batching.prepare { samples = { sample }, seq_len = 4, ranks = 1 }
      t.equal(batches[1][1].input_ids, ids)
      t.equal(batches[1][1].loss_mask, torch.tensor { false, true })
    end
  end
end)

t.test("PaddingKeepsImagesAndHasNoLoss", function()
  local batches = batching.prepare { samples = { image(8) }, seq_len = 8, ranks = 2 }
  local padding = batches[1][1].padding and batches[1][1] or batches[2][1]
  t.equal(padding.padding, true)
  t.equal(padding.samples, {})
  t.equal(padding.pixel_values:size(0), 8)
  t.equal(padding.loss_mask:any():item(), false)
end)

t.test("KindMayBeNamed", function()
  local batches = batching.prepare { samples = { text(2, { kind = "audio" }), text(2) }, seq_len = 8, ranks = 1 }
  t.equal(batches[1][1].kind, "audio")
  t.equal(batches[1][2].kind, "text")
end)

t.test("RoundRobinDealsInOrder", function()
  local batches = batching.prepare {
    samples = { text(4), text(4), text(4) }, seq_len = 4, ranks = 2, balance = "round_robin",
  }
  t.equal(batches[1][1].samples, { 1 })
  t.equal(batches[2][1].samples, { 2 })
  t.equal(batches[1][2].samples, { 3 })
  t.equal(batches[2][2].padding, true)
end)

t.test("TheBalanceOfTheLeastMakespanHasAnOldName", function()
  local function plan(balance)
    local samples = { text(6), text(5), image(8), text(4), text(3), text(1) }
    local batches, report = batching.prepare { samples = samples, seq_len = 8, ranks = 2, balance = balance }
    local ids = {}
    for rank, own in ipairs(batches) do
      ids[rank] = {}
      for step, batch in ipairs(own) do ids[rank][step] = batch.samples end
    end
    return { ids, report.makespan }
  end

  t.equal(plan "lockstep", plan "makespan")
  t.equal(plan(nil), plan "makespan")
end)

t.test("TheCostMayBeAFunctionOfTheSequences", function()
  local function square(seq_lens)
    local sum = 0
    for _, n in ipairs(seq_lens) do sum = sum + n * n end
    return sum
  end
  local _, report = batching.prepare { samples = { text(6), text(3), text(2) }, seq_len = 8, ranks = 1, cost = square }
  t.equal(report.makespan, 36 + 9 + 4)
  t.equal(report.ideal, 36 + 9 + 4)
end)

t.test("TheCostOfATransformerTakesHuggingFaceFields", function()
  local cost = batching.cost.transformer {
    hidden_size = 8, num_hidden_layers = 2, num_attention_heads = 2, num_key_value_heads = 1, intermediate_size = 16,
    vocab_size = 10,
  }
  -- For each layer and token: q, k, v, o of 8 x (8 + 4 + 4 + 8), and three of 8 x 16; then the head of 8 x 10.
  t.equal(cost.linear, 2 * 2 * (8 * 24 + 3 * 8 * 16) + 2 * 8 * 10)
  t.truthy(cost.quadratic > 0)
  local with_vision = batching.cost.transformer {
    hidden_size = 8, num_hidden_layers = 2, num_attention_heads = 2, intermediate_size = 16, vocab_size = 10,
    vision_config = { hidden_size = 4, depth = 1, intermediate_size = 8 },
  }
  t.truthy(with_vision.image_linear > 0)
end)

t.test("AWholeConfigurationIsTheSameAsTheFieldsThatCount", function()
  local fields = { hidden_size = 8, num_hidden_layers = 2, num_attention_heads = 2, intermediate_size = 16,
    vocab_size = 10, vision_config = { hidden_size = 4, depth = 1, intermediate_size = 8 } }
  local want = batching.cost.transformer(fields)
  t.truthy(want.image_linear > 0)
  local whole = core.json_decode([[{"model_type": "qwen2_5_vl", "architectures": ["A"], "rope_theta": 1e6,
    "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 10,
    "head_dim": null, "q_lora_rank": null, "tie_word_embeddings": true, "vision_config": {"model_type": "v",
    "hidden_size": 4, "depth": 1, "intermediate_size": 8, "patch_size": 14}}]], "config.json")
  t.equal(batching.cost.transformer(whole), want)
  -- Qwen3-VL nests the decoder. Qwen2-VL names its tower's width embed_dim.
  local nested = core.json_decode([[{"model_type": "qwen3_vl", "text_config": {"hidden_size": 8,
    "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 10, "rope_theta": 1},
    "vision_config": {"depth": 1, "embed_dim": 4, "hidden_size": 8, "mlp_ratio": 2}}]], "config.json")
  t.equal(batching.cost.transformer(nested), want)
  t.raises('unknown option "rope_theta"', batching.cost.transformer, { hidden_size = 8, rope_theta = 1 })
  t.raises("vision_config must be a table, not a number", batching.cost.transformer,
    { model_type = "x", hidden_size = 8, vision_config = 3 })
  t.raises('the option "depth" is missing', batching.cost.transformer,
    { model_type = "x", hidden_size = 8, vision_config = { hidden_size = 2, intermediate_size = 4 } })
end)

t.test("CutsAreCounted", function()
  local _, report = batching.prepare { samples = { text(10), text(3) }, seq_len = 8, ranks = 1 }
  t.equal(report.truncated_samples, 1)
  t.equal(report.truncated_tokens, 2)
end)

t.test("NoSamplesGiveEmptyLists", function()
  local batches, report = batching.prepare { samples = {}, seq_len = 8, ranks = 2 }
  t.equal(batches, { {}, {} })
  t.equal(report.micro_steps, 0)
end)

-- Checking and drawing --------------------------------------------------------------------------------

local function mixed() return { text(8), text(7), image(8), text(6), image(4), text(5) } end

t.test("VerifyFindsWhatWouldHang", function()
  local function plan() return (batching.prepare { samples = mixed(), seq_len = 8, ranks = 2 }) end
  batching.verify(plan())

  local batches = plan()
  batches[2][#batches[2]] = nil
  t.raises("rank 1 has", batching.verify, batches)
  t.raises("batching.verify: expected the lists of all ranks, got one rank's list", batching.verify, batches[1])
  batches = plan()
  batches[2][1].kind = "audio"
  t.raises('at micro-step 0 rank 1 has a micro-batch of kind "audio"', batching.verify, batches)
  batches = plan()
  batches[2][1].pixel_values = nil
  t.raises("at micro-step 0 rank 1 has the tensors", batching.verify, batches)
  batches = plan()
  batches[2][1].padding = true
  batches[2][1].loss_mask:fill_(true)
  t.raises("padding with loss", batching.verify, batches)
  t.raises("as batching.prepare returns", batching.verify, {})
  t.raises("what rank 0 has at micro-step 0 is no micro-batch", batching.verify, { { 5 } })
  t.raises("rank 1 has a number in place of a list", batching.verify, { { { kind = "text" } }, 5 })
end)

t.test("DrawShowsRanksStepsAndKinds", function()
  local batches = batching.prepare { samples = { text(8), text(4), image(8) }, seq_len = 8, ranks = 2 }
  t.equal(batching.draw(batches, { width = 34 }), table.concat({
    "rank 0 |IIIIIIII|TTTTTTTT........|",
    "rank 1 |iiiiii..|TTTTTTTTTTTTTTTT|",
  }, "\n"))
  local path = run.dir .. "/plan.svg"
  batching.draw(batches, { svg = path })
  local svg = t.read_file(path)
  t.raises("as batching.prepare returns", batching.draw, nil)
  t.raises("no micro-batch", batching.draw, { { 5 } })
  t.raises("a micro-batch has no cost", batching.draw, { { { kind = "text" } } })
  t.raises("width must be from 1 to 10000 characters, not inf", batching.draw, batches, { width = math.huge })
  t.truthy(svg:find("^<svg") and svg:find("</svg>\n$") and svg:find("text, cost 4", 1, true), svg)
  t.truthy(svg:find("a micro-step, as wide as its cost", 1, true), svg)
end)

-- Streaming -----------------------------------------------------------------------------------------

--- A source of `count` samples, number i with the tokens i, i, ...; of it what comes after `skip`.
local function source(count, skip)
  local i = skip or 0
  return function()
    i = i + 1
    if i > count then return nil end
    local sample = i % 5 == 0 and image(4) or text(1 + (7 * i) % 8)
    for k = 1, #sample.input_ids do sample.input_ids[k] = i end
    return sample
  end
end

--- The sample numbers in what the ranks' streams hand out, window after window.
local function windows_of(opts, count)
  local streams = {}
  for rank = 0, 1 do
    local o = { source = source(count), seq_len = 8, ranks = 2, rank = rank }
    for k, v in pairs(opts) do o[k] = v end
    streams[rank + 1] = batching.stream(o)
  end
  local windows = {}
  while true do
    local first, second = streams[1](), streams[2]()
    if not first then
      t.equal(second, nil)
      return windows, streams
    end
    batching.verify { first, second }
    windows[#windows + 1] = { first, second }
  end
end

local function numbers_in(windows)
  local times = {}
  for _, window in ipairs(windows) do
    for _, list in ipairs(window) do
      for _, batch in ipairs(list) do
        if not batch.padding then
          local seen = {}
          for _, id in ipairs(batch.input_ids:totable()) do seen[id] = true end
          for id in pairs(seen) do times[id] = (times[id] or 0) + 1 end
        end
      end
    end
  end
  return times
end

t.test("AStreamHandsOutEverySampleOnce", function()
  for _, buffer in ipairs { 1, 3, 10, 200 } do
    local times = numbers_in((windows_of({ buffer = buffer }, 100)))
    for i = 1, 100 do t.equal(times[i], 1, "sample " .. i .. " with buffer " .. buffer) end
  end
end)

t.test("AStreamPadsLessThanWindowsByThemselves", function()
  local _, streams = windows_of({ buffer = 7 }, 200)
  local _, alone = windows_of({ buffer = 7, max_wait = 0 }, 200)
  t.truthy(streams[1].padding_tokens < alone[1].padding_tokens,
    streams[1].padding_tokens .. " against " .. alone[1].padding_tokens)
  t.equal(streams[1].tokens, alone[1].tokens)
end)

t.test("AStreamResumesWithTheSameBits", function()
  for cost_name, cost in pairs { tokens = batching.cost.tokens(), ["function"] = function(lens) return #lens end } do
    for stop_after = 0, 4 do
      local function make(skip, state)
        return batching.stream {
          source = source(60, skip), buffer = 10, seq_len = 8, ranks = 2, rank = 1, state = state, cost = cost,
        }
      end
      local whole, first = make(), make()
      for _ = 1, stop_after do t.equal((first()), (whole())) end
      local state = first:state()
      for _ in first do end -- what the first one does now does not touch the state
      local second = make(state.drawn, state)
      for micro_batches in whole do t.equal((second()), micro_batches, cost_name .. " after " .. stop_after) end
      t.equal(second(), nil)
      t.equal(second.tokens, whole.tokens)
    end
  end
end)

t.test("AStreamOverALoaderIsAState", function()
  local samples = {}
  for sample in source(60) do samples[#samples + 1] = sample end
  local function make()
    local loader = data.loader { source = samples, seed = 3, epochs = 1, rank = 0, world = 1 }
    return batching.stream { source = loader, buffer = 10, seq_len = 8, ranks = 2, rank = 1 }
  end
  for stop_after = 0, 4 do
    local whole, first = make(), make()
    for _ = 1, stop_after do t.equal((first()), (whole())) end
    local second = make()
    second:load_state_dict(first:state_dict())
    for micro_batches in whole do t.equal((second()), micro_batches, "after " .. stop_after) end
    t.equal(second(), nil)
    t.raises("the stream has begun", second.load_state_dict, second, first:state_dict())
  end
  local plain = batching.stream { source = source(3), buffer = 10, seq_len = 8 }
  t.raises("the source is a function without state_dict", plain.state_dict, plain)
end)

t.test("AStreamGoesOnOnAnotherNumberOfRanks", function()
  local samples = {}
  for sample in source(60) do samples[#samples + 1] = sample end
  local function make(ranks)
    local streams = {}
    for rank = 0, ranks - 1 do
      local loader = data.loader { source = samples, seed = 3, epochs = 1, rank = 0, world = 1 }
      streams[rank + 1] = batching.stream { source = loader, buffer = 10, seq_len = 8, ranks = ranks, rank = rank }
    end
    return streams
  end
  local function take(streams, windows, count)
    for _ = 1, count do
      local window = {}
      for i, stream in ipairs(streams) do window[i] = stream() end
      if #window == 0 then return end
      windows[#windows + 1] = window
    end
  end
  for _, after in ipairs { 1, 3 } do
    local first, second, windows = make(2), make(after), {}
    take(first, windows, 2)
    local state = first[1]:state_dict()
    t.equal(first[2]:state_dict(), state)
    for _, stream in ipairs(second) do stream:load_state_dict(state) end
    take(second, windows, 100)

    local times = numbers_in(windows)
    for i = 1, 60 do t.equal(times[i], 1, ("sample %d, then %d ranks"):format(i, after)) end
  end
end)

t.test("TheNextWindowIsPreparedWhileThisOneTrains", function()
  local core_batching = require "lockstep.core.batching"
  local start, waited = core_batching.start, 0
  local under_way = {}
  core_batching.start = function(opts)
    local preparation = start(opts)
    under_way[#under_way + 1] = opts.samples
    return { wait = function()
      waited = waited + 1
      return preparation:wait()
    end }
  end
  local stream = batching.stream { source = source(30), buffer = 10, seq_len = 8, max_wait = 0 }
  local ok, err = pcall(function()
    for window = 1, 3 do
      t.truthy(stream())
      t.equal(waited, window)
      t.equal(#under_way, math.min(window + 1, 3))
    end
    t.equal(stream(), nil)
  end)
  core_batching.start = start
  t.truthy(ok, err)
end)

t.test("AnErrorInTheBackgroundArrives", function()
  local function wrong() return { input_ids = { 1 }, loss_mask = {} } end
  local stream = batching.stream { source = wrong, buffer = 2, seq_len = 4 }
  t.raises("sample 1: loss_mask has shape [0]", stream)
end)

t.test("WrongStreamsAreRefused", function()
  t.raises("the source must be a function", batching.stream, { source = 5, buffer = 2, seq_len = 4 })
  t.raises("buffer must be a whole number", batching.stream, { source = print, buffer = 0, seq_len = 4 })
  t.raises("this is not a state of a stream", batching.stream, { source = print, buffer = 1, seq_len = 4, state = {} })
  t.raises("state must be what stream:state() returned, not a number", batching.stream,
    { source = print, buffer = 1, seq_len = 4, state = 5 })
  t.raises("max_wait must be a number of windows from 0 on, not nan", batching.stream,
    { source = print, buffer = 1, seq_len = 4, max_wait = 0 / 0 })
  t.raises("sample 1 must be a table, not the number 5",
    batching.stream { source = function() return 5 end, buffer = 1, seq_len = 4 })
end)
