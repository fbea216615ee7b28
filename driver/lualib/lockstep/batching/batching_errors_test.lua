--- batching from Lua, wrong use: one clear error, which names the sample as Lua counts it, or the option.

local batching = require "lockstep.batching"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local function with(base, fields)
  for name, value in pairs(fields or {}) do base[name] = value end
  return base
end

local function text(tokens, fields)
  return with({ input_ids = torch.arange(tokens), loss_mask = torch.ones({ tokens }):bool() }, fields)
end

--- A token, an image of two, three tokens.
local function image(fields)
  return with(text(6, {
    mm_token_type_ids = { 0, 1, 1, 0, 0, 0 }, pixel_values = torch.ones { 8, 3 },
    image_grid_thw = torch.tensor({ { 1, 2, 4 } }, { dtype = torch.int64 }),
  }), fields)
end

local function prepare(samples, opts)
  return batching.prepare(with({ samples = samples, seq_len = 8, ranks = 2 }, opts))
end

t.test("TheSampleAndTheFieldAreNamed", function()
  local function grid(values) return torch.tensor({ values }, { dtype = torch.int64 }) end
  local no_types = with(text(9), { pixel_values = torch.ones { 8, 3 }, image_grid_thw = grid { 1, 2, 4 } })
  for message, sample in pairs {
    ["sample 2 must be a table, not the number 5"] = 5,
    ["sample 2 has no input_ids"] = {},
    ["sample 2 has no loss_mask"] = { input_ids = { 1 } },
    ["sample 2 has no tokens"] = { input_ids = {}, loss_mask = {} },
    ["sample 2: input_ids: torch.tensor: 1.5 is not one"] = { input_ids = { 1.5 }, loss_mask = { 1 } },
    ['sample 2: input_ids: torch.tensor: at [1]: expected a number'] = { input_ids = { "a" }, loss_mask = { 1 } },
    ["sample 2: input_ids must be a tensor of one dimension"] = { input_ids = { { 1 } }, loss_mask = { 1 } },
    ["sample 2: input_ids must be a table, not the number 7"] = { input_ids = 7, loss_mask = { 1 } },
    ["sample 2: input_ids must be of an integer dtype, not Float"] = text(1, { input_ids = torch.ones { 1 } }),
    ["sample 2: loss_mask has shape [1], but input_ids has 2 tokens"] = { input_ids = { 1, 2 }, loss_mask = { true } },
    ["sample 2: loss_mask holds 0.5; each element must be 0, 1, true or false"] = text(2, { loss_mask = { 1, 0.5 } }),
    ["sample 2: loss_mask holds nan;"] = text(2, { loss_mask = { 0 / 0, 1 } }),
    ["sample 2: loss_mask holds 0.25;"] = text(1, { loss_mask = torch.tensor { 0.25 } }),
    ["sample 2: loss_mask holds -100;"] = text(2, { loss_mask = { -100, 1 } }),
    ["sample 2: loss_mask holds 2;"] = text(2, { loss_mask = torch.tensor({ 0, 2 }, { dtype = torch.int64 }) }),
    ["sample 2: position_ids has shape [1]; for 2 tokens it must have the shape [2], or with pictures [3, 2]"] =
      text(2, { position_ids = { 0 } }),
    ["sample 2: position_ids has shape [2, 4]; for 4 tokens it must have the shape [4], or with pictures [3, 4]"] =
      text(4, { position_ids = torch.zeros({ 2, 4 }, { dtype = torch.int64 }) }),
    ["sample 2: position_ids must be of an integer dtype, not Float"] = text(1, { position_ids = torch.ones { 1 } }),
    ["sample 2: kind must be a string, not the number 5"] = text(1, { kind = 5 }),
    ["sample 2: kind is empty"] = text(1, { kind = "" }),
    ["sample 2: advantages"] = text(2, { advantages = { 1, 2 } }),
    ["sample 2: weights has shape [3], but input_ids has 2 tokens"] = text(2, { weights = { 1, 2, 3 } }),
    ["sample 2: pixel_values is a table; beside"] = image { pixel_values = { { 1, 2, 3 } } },
    ["sample 2: pixel_values has no dimension 0"] = image { pixel_values = torch.tensor(3) },
    ["sample 2: pixel_values has 7 rows, but image_grid_thw counts 8"] = image { pixel_values = torch.ones { 7, 3 } },
    ["sample 2: image_grid_thw must hold integers"] = image { image_grid_thw = torch.ones { 1, 3 } },
    ["sample 2: image_grid_thw holds -4"] = image { image_grid_thw = grid { 1, -2, -4 } },
    ["sample 2: mm_token_type_ids has shape [2]"] = image { mm_token_type_ids = { 0, 1 } },
    ["give the sample mm_token_type_ids or set image_token_id"] = no_types,
    ["sample 2: clips has 3 rows, which follow no declared count"] = text(2, { clips = torch.ones { 3 } }),
    ["sample 2: labels has 3 rows, which follow no declared count: a tensor has 1 row for the whole sample, and a "
      .. "stream a row for each of its 2 tokens; declare values per token in streams, or name the tensor in own_rows; "
      .. "in place of labels give loss_mask, which is true where a label is not -100"] = text(2, {
      labels = torch.ones { 3 } }),
    ["sample 2: attention_mask has 2 rows, which follow no declared count: a tensor has 1 row for the whole sample, "
      .. "and a stream a row for each of its 2 tokens; declare values per token in streams, or name the tensor in "
      .. "own_rows; leave attention_mask out"] = text(2, { attention_mask = torch.ones { 2 } }),
    ["sample 2: seq_lens is a field of every micro-batch"] = text(2, { seq_lens = torch.ones { 2 } }),
    ["sample 2: fields are named, but there is the key the number 1"] = text(2, { [1] = 5 }),
  } do
    t.raises(message, prepare, { text(2), sample }, { streams = { weights = 1 } })
  end
end)

t.test("SamplesOfAKindHoldTheSameTensors", function()
  t.raises('sample 2 has image_grid_thw and sample 1 has none, but both are of kind "image"', prepare,
    { text(2, { kind = "image" }), image() })
  t.raises('sample 1 has image_grid_thw and sample 2 has none, but both are of kind "text"', prepare,
    { image { kind = "text" }, text(2) })
  t.raises("sample 2 has audio and sample 1 has none", prepare,
    { image { kind = "a" }, image { kind = "a", audio = torch.ones { 1 } } })
end)

t.test("TheListOfSamplesIsAnArray", function()
  t.raises("samples must be a table, not the string", prepare, "x")
  t.raises("sample 2 must be a table, not nil", prepare, { text(1), nil, text(2) })
  t.raises('samples is an array, but there is the key the string "a"', prepare, { a = text(1) })
end)

t.test("TheOptionIsNamed", function()
  local function raises(message, opts) t.raises(message, prepare, { text(1) }, opts) end
  raises("seq_len must be from 1 to 2147483647, not 0", { seq_len = 0 })
  raises("seq_len must be from 1 to 2147483647, not 9007199254740992", { seq_len = 2 ^ 53 })
  raises("seq_len must be a whole number, not the number 1.5", { seq_len = 1.5 })
  raises("ranks must be from 1 to 1048576, not 0", { ranks = 0 })
  raises("ranks must be from 1 to 1048576, not 4294967297", { ranks = 2 ^ 32 + 1 })
  raises("rank must be from 0 to ranks - 1 = 1, not 2", { rank = 2 })
  raises("rank must be from 0 to ranks - 1 = 1, not -1", { rank = -1 })
  raises("pad_to_multiple_of (3) must divide seq_len (8)", { pad_to_multiple_of = 3 })
  raises("worth_a_step must be a share from 0 to 1, not nan", { worth_a_step = 0 / 0 })
  raises('"makespan" or "round_robin", not "fair"', { balance = "fair" })
  raises("streams must be {name = value for samples without it}, not the number 1 as a name", {
    streams = { "weights" } })
  raises("streams.weights must be a number", { streams = { weights = "x" } })
  raises('streams.weights: unknown option "pading"; did you mean "padding"?', {
    streams = { weights = { absent = 1, pading = 0 } } })
  raises("streams.weights.padding must be a number", { streams = { weights = { padding = "x" } } })
  raises("mix_kinds must be a boolean", { mix_kinds = "no" })
  raises("own_rows", { own_rows = "clips" })
  raises("own_rows's names must be a string", { own_rows = { 5 } })
  raises('own_rows must be an array of names, as {"clips"}, but there is the key the string "clips"',
    { own_rows = { clips = true } })
  raises('own_rows names "input_ids", which every sample may have', { own_rows = { "input_ids" } })
  raises('own_rows names "seq_lens" is a field of every micro-batch', { own_rows = { "seq_lens" } })
  for _, key in ipairs { "mix_kinds", "worth_a_step" } do
    local _, heard = t.listening(prepare, { text(2) },
      { balance = "round_robin", [key] = key == "mix_kinds" or 0.1 })
    t.equal(heard, "lockstep: batching.prepare: " .. key .. ' has no effect with balance = "round_robin", which keeps '
      .. "kinds apart and weighs no costs\n")
  end
  raises("streams.input_ids is a field of every micro-batch", { streams = { input_ids = 0 } })
  raises("check must be a boolean", { check = "no" })
  raises("image_token_id must be a number", { image_token_id = "<image>" })
  t.raises('did you mean "seq_len"?', batching.prepare, { samples = {}, seqlen = 8 })
  t.raises('"samples" is missing', batching.prepare, { seq_len = 8 })
  t.raises("streams.turns.absent = 0.5 would become 0; turns is Long", prepare,
    { text(2, { turns = torch.arange(2) }) }, { streams = { turns = 0.5 } })
end)

t.test("AMisspelledNameOfOwnRowsIsNamed", function()
  local function samples() return { text(2, { clips = torch.ones { 3 } }), text(1) } end
  local message = 'declare values per token in streams, or name the tensor in own_rows; own_rows has "clps"'
  t.raises(message, prepare, samples(), { own_rows = { "clps" } })
  local index = {}
  for i, sample in ipairs(samples()) do index[i] = batching.describe(sample) end
  t.raises(message, batching.prepare, { index = index, load = function(_, i) return samples()[i] end, seq_len = 8,
    ranks = 2, own_rows = { "clps" } })

  -- Another call's samples may have it, or something like it.
  prepare(samples(), { own_rows = { "clips", "waveforms", "clips_b" } })
  prepare({ text(2) }, { own_rows = { "turns" }, streams = { turns = 0 } })
  prepare({ text(2) }, { own_rows = { "clips" } })
  prepare({ text(2) }, { balance = "round_robin", mix_kinds = false })
end)

t.test("AStreamHoldsItsFill", function()
  local function raises(message, values, fill)
    t.raises(message, prepare, { text(2, { x = values }) }, { streams = { x = fill } })
  end
  raises("streams.x.absent = 2 would become true", torch.ones { 2 }:bool(), 2)
  raises("streams.x.padding = 257 would become 256; x is BFloat16", torch.ones { 2 }:bfloat16(), { padding = 257 })
  raises("streams.x.absent = 300 does not fit", torch.arange(2):to(torch.int8), 300)
  raises("x: 0.5 would become true; a stream whose value for absent samples is a boolean holds 0, 1, true or false",
    { 0.5, 1 }, true)
  raises("x: 2 would become true", 2, false)
  local batch = prepare({ text(2, { x = { 1, 0 } }) }, { ranks = 1, streams = { x = true } })[1][1]
  t.equal(batch.x:totable(), { true, false })
end)

t.test("ACostIsAFiniteNumberFromZeroOn", function()
  local function raises(message, cost) t.raises(message, prepare, { text(1), text(8), text(2) }, { cost = cost }) end
  raises("cost must be batching.cost.tokens()", 3)
  raises("what the cost function returns must be a number, not nil", function() end)
  raises("sample 2, of 8 tokens, costs -1", function(seq_lens) return seq_lens[1] == 8 and -1 or 1 end)
  raises("sample 2, of 8 tokens, costs", function(seq_lens) return seq_lens[1] == 8 and 0 / 0 or 1 end)
  raises("sample 1, of 1 tokens, costs", { linear = 0 / 0 })
  raises("the cost function returned inf", function(seq_lens) return #seq_lens > 1 and math.huge or 1 end)
  raises("no such luck", function() error("no such luck") end)
end)

t.test("TheFieldOfAConfigurationIsNamed", function()
  local function raises(message, config) t.raises(message, batching.cost.transformer, config) end
  raises("hidden_size must be above 0", {})
  raises('did you mean "hidden_size"?', { hiden_size = 1 })
  raises("n_shared_experts must be a number, not a string", { n_shared_experts = "2" })
  raises("hidden_size must be a whole number", { hidden_size = 1.5 })
  raises("q_lora_rank must be at least 0, not -1", {
    hidden_size = 8, num_hidden_layers = 1, num_attention_heads = 2, vocab_size = 8, intermediate_size = 8,
    q_lora_rank = -1,
  })
end)
