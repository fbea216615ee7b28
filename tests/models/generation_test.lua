-- models.generate: stopping, sampling, and what a batch of prompts does to each. Greedy ids are compared with
-- transformers in parity_test.lua.

local core = require "lockstep.core"
local lora = require "lockstep.lora"
local models = require "lockstep.models"
local nn = require "lockstep.nn"
local run = require "lockstep.run"
local sampling = require "lockstep.models.sampling"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local model = models.load "tests/models/qwen2" -- with a window of 5 in its second layer
local PROMPTS = { { 3, 1, 4, 1, 5, 9, 2, 6 }, { 2, 7 }, { 1, 8, 2, 8, 1 } }

t.test("GreedyIdsAreThoseOfTheWholeSequenceAgain", function()
  local results = models.generate(model, PROMPTS, { max_new_tokens = 12 })

  for i, prompt in ipairs(PROMPTS) do
    local ids = { unpack(prompt) }
    for step = 1, 12 do
      local logits = torch.no_grad(model, { input_ids = torch.tensor(ids, { dtype = torch.int64 }) })
      ids[#ids + 1] = logits[-1]:argmax():item()
      t.equal(results[i][step], ids[#ids], "prompt " .. i)
    end
  end
end)

t.test("ASequenceEndsWithItsStopIdAndTheOthersGoOn", function()
  local all = models.generate(model, PROMPTS, { max_new_tokens = 20 })
  local stop = all[2][5]

  local results = models.generate(model, PROMPTS, { max_new_tokens = 20, stop = { stop } })

  for i, ids in ipairs(results) do
    local expected = {}
    for _, id in ipairs(all[i]) do
      expected[#expected + 1] = id
      if id == stop then break end
    end
    t.equal(ids, expected, "prompt " .. i)
  end
  t.truthy(#results[2] <= 5)
end)

t.test("TheConfigsEndOfSequenceStops", function()
  local ids = models.generate(model, { PROMPTS[1] }, { max_new_tokens = 9 })[1]
  model.config.eos_token_id = ids[4]
  local stopped = models.generate(model, { PROMPTS[1] }, { max_new_tokens = 9 })[1]
  local free = models.generate(model, { PROMPTS[1] }, { max_new_tokens = 9, stop = {} })[1]
  model.config.eos_token_id = nil

  t.truthy(#stopped <= 4 and stopped[#stopped] == ids[4])
  t.equal(free, ids)
end)

t.test("GenerationConfigComesBeforeTheConfig", function()
  local ids = models.generate(model, { PROMPTS[1] }, { max_new_tokens = 9 })[1]
  local path = run.dir .. "/stops"
  models.save(model, path, { like = "tests/models/qwen2" })
  core.write_file(path .. "/generation_config.json",
    { core.json_encode { eos_token_id = { ids[6], ids[3] }, do_sample = true } })
  local loaded = models.load(path)
  loaded.config.eos_token_id = ids[1]

  local stopped = models.generate(loaded, { PROMPTS[1] }, { max_new_tokens = 9 })[1]

  t.truthy(#stopped <= 3 and (stopped[#stopped] == ids[3] or stopped[#stopped] == ids[6]))
end)

t.test("AModelOfPicturesHasItsStopIdInTheTextsConfig", function()
  local vlm = models.load "tests/models/qwen3_vl"
  local ids = models.generate(vlm, { PROMPTS[1] }, { max_new_tokens = 9 })[1]
  vlm.config.text_config.eos_token_id = ids[2]

  t.truthy(#models.generate(vlm, { PROMPTS[1] }, { max_new_tokens = 9 })[1] <= 2)
end)

t.test("SuppressedIdsAreNeverDrawn", function()
  -- Logits of 0 in effect: each of 61 ids is equally probable.
  local o = { max_new_tokens = 200, temperature = 1e6, stop = {}, seed = 3, suppress = { 7, 60 } }
  local seen = {}
  for _, ids in ipairs(models.generate(model, { PROMPTS[1], PROMPTS[2] }, o)) do
    for _, id in ipairs(ids) do seen[id] = true end
  end
  t.equal({ seen[7], seen[60], seen[59], seen[6] }, { nil, nil, true, true })
  o.temperature, o.max_new_tokens, o.suppress = 0, 1, {}
  local best = models.generate(model, { PROMPTS[1] }, o)[1][1]
  o.suppress = { best }
  t.truthy(models.generate(model, { PROMPTS[1] }, o)[1][1] ~= best)
end)

t.test("OnTokenHearsEachIdInOrder", function()
  local heard = { {}, {}, {} }

  local results = models.generate(model, PROMPTS, { max_new_tokens = 6,
    on_token = function(prompt, id) table.insert(heard[prompt], id) end })

  t.equal(heard, results)
end)

t.test("TensorsOfOnTokenAreFitForTraining", function()
  local made = {}

  models.generate(model, PROMPTS, { max_new_tokens = 3,
    on_token = function(_, id) made[#made + 1] = torch.ones { id } end })

  for _, tensor in ipairs(made) do t.equal(tensor:is_inference(), false) end
  t.equal(#made, 9)
end)

t.test("NegativeSeedsDiffer", function()
  local drawn = {}
  for i = 1, 3 do
    drawn[i] = models.generate(model, { PROMPTS[1] }, { max_new_tokens = 20, temperature = 1e6, seed = -i })[1]
  end
  for i = 1, 3 do t.truthy(table.concat(drawn[i], " ") ~= table.concat(drawn[i % 3 + 1], " ")) end
end)

t.test("ASeedRepeatsAndDoesNotDependOnTheOtherPrompts", function()
  local o = { max_new_tokens = 15, temperature = 1.3, top_k = 20, seed = 4 }
  local results = models.generate(model, PROMPTS, o)

  t.equal(models.generate(model, PROMPTS, o), results)
  t.equal(models.generate(model, { PROMPTS[1] }, o)[1], results[1])
  o.numbers = { 7, 2, 9, 1 }
  o.numbers[#PROMPTS + 1] = nil
  local numbered = models.generate(model, PROMPTS, o)
  t.equal(numbered[2], results[2])
  t.truthy(table.concat(numbered[1], " ") ~= table.concat(results[1], " "))
  o.numbers = { 7 }
  t.equal(models.generate(model, { PROMPTS[1] }, o)[1], numbered[1])
  o.seed, o.numbers = 5, nil
  t.truthy(table.concat(models.generate(model, PROMPTS, o)[1], " ") ~= table.concat(results[1], " "))
end)

t.test("WithoutASeedTorchsGeneratorDecides", function()
  local function draw()
    torch.manual_seed(9)
    return models.generate(model, PROMPTS, { max_new_tokens = 15, temperature = 1 })
  end

  t.equal(draw(), draw())
end)

--- Shares of the ids that a sampler draws from one row of logits.
local function shares(logits, o)
  local rows, sequences = 4000, {}
  for i = 1, rows do sequences[i] = i end
  o.seed = 1
  local ids = sampling.sampler(o, rows)(logits:unsqueeze(0):expand(rows, -1), sequences)
  return torch.bincount(torch.tensor(ids, { dtype = torch.int64 }), nil, logits:size(0)):float() / rows
end

t.test("SamplesFollowTheDistribution", function()
  local logits = torch.tensor { 0.1, 2, -1, 1.5, 0.7 }

  t.near(shares(logits, { temperature = 1 }), logits:softmax(-1), 0.03)
  t.near(shares(logits, { temperature = 0.5 }), (logits / 0.5):softmax(-1), 0.03)
  -- The two best: 2 and 1.5.
  local two = torch.tensor({ 2, 1.5 }):softmax(-1)
  local expected = torch.stack { two[0] * 0, two[0], two[0] * 0, two[1], two[0] * 0 }
  t.near(shares(logits, { temperature = 1, top_k = 2 }), expected, 0.03)
end)

t.test("TopPKeepsTheFewestThatReachIt", function()
  local logits = torch.tensor({ 0.5, 0.3, 0.15, 0.05 }):log()

  t.near(shares(logits, { temperature = 1, top_p = 0.79 }), torch.tensor { 0.625, 0.375, 0, 0 }, 0.03)
  t.near(shares(logits, { temperature = 1, top_p = 0.9 }), torch.tensor({ 0.5, 0.3, 0.15, 0 }) / 0.95, 0.03)
  t.near(shares(logits, { temperature = 1, top_p = 0.01 }), torch.tensor { 1, 0, 0, 0 }, 0)
end)

t.test("GradientsAreNotRecorded", function()
  models.generate(model, PROMPTS, { max_new_tokens = 2 })

  for _, p in model:named_parameters() do t.equal(p.grad, nil) end
end)

t.test("AForwardOfItsOwnMayKeepTensorsForTraining", function()
  local changed, kept = models.load "tests/models/qwen2", {}
  local mlp = changed.model.layers[1].mlp
  local forward = mlp.forward
  function mlp:forward(x)
    kept[x:size(0)] = kept[x:size(0)] or torch.ones { x:size(0), 1 }
    return forward(self, x) * kept[x:size(0)]
  end

  models.generate(changed, { PROMPTS[1] }, { max_new_tokens = 2 })

  t.equal(kept[1]:is_inference(), false)
  changed:loss({ input_ids = torch.tensor({ 1 }, { dtype = torch.int64 }) }):backward()
end)

t.test("NewTokensRunInInferenceMode", function()
  local watched, seen = models.load "tests/models/qwen2", {}
  local head = watched.head
  function watched:head(x)
    seen[#seen + 1] = x:is_inference()
    return head(self, x)
  end

  models.generate(watched, PROMPTS, { max_new_tokens = 3 })

  t.equal(seen, { false, true, true }) -- the prompts do not: what they leave behind, training may use
end)

--- Calls of the two operators of a layer in three new tokens of two prompts each, what the head was given, and FLOPs.
local function operators_of(watched)
  local head, given, calls = watched.head, {}, { attention = 0, mlp = 0 }
  function watched:head(x)
    given[#given + 1] = x:clone()
    return head(self, x)
  end
  local counts = lockstep.flops(models.generate, watched, { PROMPTS[1], PROMPTS[3] }, { max_new_tokens = 4, stop = {} })
  watched.head = nil
  for _, op in ipairs(counts) do
    local kind = op.name:match("^lockstep::(%a+)_of_new_tokens$")
    if kind then calls[kind] = op.calls end
  end
  return calls, torch.cat(given), counts.total
end

t.test("ALayerRunsAsTwoOperatorsOnNewTokensWithTheBitsOfItsModules", function()
  for folder, expected in pairs { llama = { 2, 2 }, qwen2 = { 2, 2 }, qwen3 = { 2, 2 }, qwen3_moe = { 3, 1 },
    qwen3_vl = { 3, 3 }, qwen2_5_vl = { 2, 2 } } do
    local watched = models.load("tests/models/" .. folder)
    local calls, given, flops = operators_of(watched)
    for _, layer in ipairs(watched:decoder().layers) do layer.self_attn:register_forward_hook(function() end) end
    local calls_of_modules, given_of_modules, flops_of_modules = operators_of(watched)

    t.equal(calls, { attention = 3 * expected[1], mlp = 3 * expected[2] }, folder)
    t.equal(calls_of_modules, { attention = 0, mlp = 0 }, folder)
    t.equal(given, given_of_modules, folder)
    t.equal(flops, flops_of_modules, folder)
  end
end)

t.test("LayersThatTurnAPartOfEachHeadRunTheirModules", function()
  local Half = models.CausalLM:subclass("HalfForCausalLM")
  Half.keys = models.keys {}
  function Half.read(c) c.rotary_dim = c.head_dim / 2 end
  models.register("HalfForCausalLM", Half)
  local half = models.build({ architectures = { "HalfForCausalLM" }, vocab_size = 60, hidden_size = 32, head_dim = 8,
    intermediate_size = 48, num_hidden_layers = 2, num_attention_heads = 4, num_key_value_heads = 2 })

  t.equal(operators_of(half), { attention = 0, mlp = 0 })
  local answer = models.generate(half, { PROMPTS[1] }, { max_new_tokens = 4, stop = {} })[1]
  local ids = PROMPTS[1].input_ids or torch.tensor(PROMPTS[1], { dtype = torch.int64 })
  for _, id in ipairs(answer) do
    t.equal(torch.no_grad(half, { input_ids = ids })[-1]:argmax():item(), id)
    ids = torch.cat { ids, torch.tensor({ id }, { dtype = torch.int64 }) }
  end
end)

t.test("LayersWithHooksAdaptersOrAnotherDtypeRunTheirModules", function()
  local function calls_after(change)
    local changed = models.load "tests/models/qwen3"
    change(changed, changed.model.layers[1])
    local calls = operators_of(changed)
    return { calls.attention / 3, calls.mlp / 3 }
  end
  local heard = 0
  local function hook() heard = heard + 1 end

  t.equal(calls_after(function() end), { 2, 2 })
  for _, name in ipairs { "input_layernorm", "post_attention_layernorm", "mlp" } do
    local expected = name == "input_layernorm" and { 1, 1 } or { 2, 1 }
    t.equal(calls_after(function(_, layer) layer[name]:register_forward_hook(hook) end), expected, name)
  end
  for _, name in ipairs { "q_proj", "o_proj", "k_norm" } do
    t.equal(calls_after(function(_, layer) layer.self_attn[name]:register_forward_hook(hook) end), { 1, 1 }, name)
  end
  t.equal(heard, 6 * 4) -- the prompts, and three new tokens
  t.equal(calls_after(function(changed) lora.apply(changed, { r = 2, targets = { "v_proj" } }) end), { 0, 0 })
  t.equal(calls_after(function(changed) lora.apply(changed, { r = 2, targets = { "up_proj" } }) end), { 2, 0 })
  local before = nn.use_fused(false)
  t.equal(calls_after(function() end), { 0, 0 })
  nn.use_fused(before)
  t.equal(torch.autocast({ device = "cpu", dtype = torch.bfloat16 }, calls_after, function() end), { 0, 0 })
end)

t.test("LogitsThatAreNotFiniteNameThePromptAndTheStep", function()
  local broken = models.load "tests/models/qwen2"
  local head, calls = broken.head, 0
  function broken:head(x)
    calls = calls + 1
    local logits = head(self, x)
    if calls == 3 then logits[1][5] = self.value end
    return logits
  end
  for _, temperature in ipairs { 0, 0.7 } do
    for value, expected in pairs { [math.huge] = "inf", [-math.huge] = false, ["nan"] = "nan" } do
      calls, broken.value = 0, tonumber(value)
      local o = { max_new_tokens = 5, temperature = temperature, seed = 1, stop = {} }
      if expected then
        t.raises("models.generate: prompt 2, step 3: the largest logit is " .. expected, models.generate, broken,
          PROMPTS, o)
      else
        t.equal(#models.generate(broken, PROMPTS, o)[2], 5)
      end
    end
  end
end)

t.test("PromptsBeyondThePositionsAreCountedAndWarnedOfOnce", function()
  local short = models.load "tests/models/qwen2"
  short.config.max_position_embeddings = 10
  local function generate(max_new_tokens)
    local stderr, heard = io.stderr, {}
    io.stderr = { write = function(_, text) heard[#heard + 1] = text end } -- luacheck: ignore 122
    local ok, ids = pcall(models.generate, short, PROMPTS, { max_new_tokens = max_new_tokens })
    io.stderr = stderr -- luacheck: ignore 122
    assert(ok, ids)
    return table.concat(heard)
  end

  t.equal({ generate(3), short.num_too_long }, { "", nil }) -- the third id is drawn and not read
  t.equal(generate(6), "lockstep: warning: models.generate: prompt 1 has 8 positions and max_new_tokens is 6, but the "
    .. "model has max_position_embeddings = 10; text beyond may be bad. model.num_too_long counts such prompts\n")
  t.equal({ generate(5), short.num_too_long }, { "", 2 })
end)

t.test("BadOptionsAreNamed", function()
  local function fails(message, prompts, o)
    t.raises("models.generate: " .. message, models.generate, model, prompts, o)
  end

  fails("top_p must be above 0 and at most 1, got nan", PROMPTS, { top_p = 0 / 0 })
  fails("top_k must be a whole number of at least 1, got nan", PROMPTS, { top_k = 0 / 0 })
  fails("stop must be an array of ids, got the key a", PROMPTS, { stop = { a = 21 } })
  fails("stop[1] must be an id from 0 to 60, got nil", PROMPTS, { stop = { nil, 21 } })

  fails("prompts must be an array of at least one prompt", {})
  fails("prompts must be an array of arrays of ids", { 1, 2 })
  fails("prompt 2 holds no token", { { 1 }, {} })
  fails("max_new_tokens must be a whole number of at least 1, got 0", PROMPTS, { max_new_tokens = 0 })
  fails("temperature must be at least 0 and finite, got -1", PROMPTS, { temperature = -1 })
  fails("top_p must be above 0 and at most 1, got 1.5", PROMPTS, { temperature = 1, top_p = 1.5 })
  fails("top_k must be a whole number of at least 1, got 0", PROMPTS, { temperature = 1, top_k = 0 })
  fails("temperature must be at least 0 and finite, got nan", PROMPTS, { temperature = 0 / 0 })
  fails("stop must be an id or an array of ids, got <s>", PROMPTS, { stop = "<s>" })
  fails("stop[2] must be an id from 0 to 60, got <s>", PROMPTS, { stop = { 1, "<s>" } })
  fails("stop[1] must be an id from 0 to 60, got 61", PROMPTS, { stop = 61 })
  fails("on_token must be a function, got a string", PROMPTS, { on_token = "print" })
  fails("seed must be a whole number from -2^53 to 2^53, got 0.5", PROMPTS, { temperature = 1, seed = 0.5 })
  fails("seed must be a whole number from -2^53 to 2^53, got 1e+16", PROMPTS, { temperature = 1, seed = 1e16 })
  fails("numbers must be an array of one for each of", PROMPTS, { numbers = {} })
  fails("numbers must be whole and at least 1, got 0", { PROMPTS[1] }, { numbers = { 0 } })
  fails("prompt 1 must be a list of ids, at least one, got shape {0}", { torch.arange(0) })
  fails("suppress[2] must be an id from 0 to 60, got 61", PROMPTS, { suppress = { 3, 61 } })
  fails("suppress[1] must be an id from 0 to 60, got -1", PROMPTS, { suppress = { -1 } })
  fails("suppress[1] must be an id from 0 to 60, got 0.5", PROMPTS, { suppress = { 0.5 } })
  fails("suppress[1] must be an id from 0 to 60, got <s>", PROMPTS, { suppress = { "<s>" } })
  fails("suppress holds all 61 ids of the vocabulary", PROMPTS, { suppress = torch.arange(61):totable() })
  local function at(positions) return { { 1, 2 }, { input_ids = { 1, 2, 3 }, position_ids = positions } } end
  fails("prompt 2: position_ids must be a tensor of whole numbers of shape [3] or [3, 3], got torch.int64 {2}",
    at(torch.arange(2)))
  fails("prompt 2: position_ids must be a tensor of whole numbers of shape [3] or [3, 3], got torch.float32 {3}",
    at(torch.zeros { 3 }))
  fails("prompt 2: position_ids must be a tensor of whole numbers of shape [3] or [3, 3], got a table", at { 0, 1, 2 })
  fails("prompt 2: position_ids must be at least 0, got -1", at(torch.arange(3) - 1))
  fails('unknown option "max_tokens"', PROMPTS, { max_tokens = 3 })
  t.raises("input_ids holds the id 61", models.generate, model, { { 61 } })
end)

t.test("ExactAnswersAreCountedAndTheFirstAreShown", function()
  local said = { "a", "b", "c", "d" } -- the answers, one after another
  local tokenizer = {}
  function tokenizer.decode(_, ids) return ids.is_question and "asked" or table.remove(said, 1) end
  local rows, prompts = { { text = "none" } }, 0
  for i, answer in ipairs { "a", "x", "c", "d", "e" } do
    rows[i + 1] = { messages = { { role = "user", content = "q" }, { role = "assistant", content = answer } } }
  end
  local function encode(row, is_prompt)
    t.equal(#row.messages, 1)
    if not is_prompt then return { input_ids = { is_question = true } } end
    prompts = prompts + 1
    return PROMPTS[1]
  end
  local wrapped, share = { full = function(_, fn, ...) return fn(...) end, parameters = function() return {} end }, nil
  local printed = t.printed(function()
    share = models.exact_answers(wrapped, model, { rows = rows, encode = encode, tokenizer = tokenizer, most = 4,
      max_new_tokens = 2, title = "before" })
  end)

  t.equal({ share, prompts, model.training }, { 0.75, 4, true })
  t.truthy(printed:find("before: asked -> a\nbefore: asked -> b\nbefore: asked -> c\n", 1, true), printed)
  t.equal(printed:find("-> d", 1, true), nil)
  t.equal(#rows[2].messages, 2)
  t.equal(models.exact_answers(wrapped, model, { rows = { rows[1] }, encode = encode, tokenizer = tokenizer }), nil)
  -- The second of three parts of the questions, which are five.
  said, prompts = { "x", "e" }, 0
  t.equal(models.exact_answers(wrapped, model, { rows = rows, encode = encode, tokenizer = tokenizer, rank = 1,
    ranks = 3, max_new_tokens = 2 }), 1)
  t.equal(prompts, 2)
end)

t.test("AnswersAreTextWithoutReasoningAndWithoutWhiteSpaceAround", function()
  local texts = { "<think>so\n</think>\n\n4 ", " yes.\n", "a <think>b</think>" }
  local tokenizer = {}
  function tokenizer.decode(_, ids, opts)
    t.truthy(opts.skip_special)
    t.equal(#ids, 3)
    return table.remove(texts, 1)
  end
  t.equal(models.answers(model, tokenizer, PROMPTS, { max_new_tokens = 3, stop = {} }),
    { "4", "yes.", "a <think>b</think>" })
  t.equal(models.answers(model, tokenizer, {}), {})
end)
