-- The families of lockstep.models.families against transformers' answers, as in parity_test.lua. A saved folder is the
-- model, LoRA learns and merges, and keys that change results are read or refused.

local lora = require "lockstep.lora"
local models = require "lockstep.models"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local parity = dofile "tests/models/parity_fixture.lua"

local FOLDERS = dofile "tests/models/families_fixture.lua"

local HAS_EXPERTS = { mixtral = true, gpt_oss = true, deepseek_v3 = true, deepseek_v3_plain = true,
  qwen3_next = true }

local function difference(a, b) return (a - b):abs():max():item() end

for _, folder in ipairs(FOLDERS) do
  parity.add_text_tests(folder)

  t.test("ASavedFolderIsTheModel_" .. folder, function()
    local _, batch = parity.answers_of(folder)
    local model = parity.load(folder)
    torch.no_grad(function() for _, p in ipairs(model:parameters()) do p:mul_(1.01) end end)

    for name, like in pairs { like = "tests/models/" .. folder, alone = false } do
      models.save(model, run.dir .. "/" .. folder .. name, { like = like or nil })

      local saved = models.load(run.dir .. "/" .. folder .. name)
      t.equal(difference(torch.no_grad(saved, batch), torch.no_grad(model, batch)), 0, name)
    end
  end)

  t.test("TilesAndRecomputedLayersChangeNothing_" .. folder, function()
    local _, batch = parity.answers_of(folder)
    local plain, model = parity.load(folder), parity.load(folder)
    model.checkpoint = {}
    if not HAS_EXPERTS[folder] then model.tiled_mlp = { tiles = 3 } end

    local expected, sum = (plain:loss(batch)), (model:loss(batch))
    expected:backward()
    sum:backward()

    t.near(sum:item() / expected:item(), 1, 1e-6)
    local gradients = {}
    for name, p in plain:named_parameters() do gradients[name] = p.grad end
    for name, p in model:named_parameters() do t.near(p.grad, gradients[name], 1e-4, name) end
  end)

  t.test("Bfloat16IsNearFloat32_" .. folder, function()
    local _, batch = parity.answers_of(folder)
    local logits = torch.no_grad(parity.load(folder), batch)
    local model = models.load("tests/models/" .. folder, { dtype = torch.bfloat16 })

    local low = torch.no_grad(model, batch)

    t.equal(low.dtype, torch.bfloat16)
    t.truthy((low:to(torch.float32) - logits):norm():item() < 0.1 * logits:norm():item())
    local prompt = { 3, 1, 4, 1, 5, 9, 2, 6 }
    local ids = models.generate(model, { prompt, { 2, 7 } }, { max_new_tokens = 6 })
    t.equal(#ids[1], 6)
    -- The cache gives what the whole sequence gives, but for rounding.
    for i = 1, 5 do prompt[#prompt + 1] = ids[1][i] end
    local whole = torch.no_grad(model, { input_ids = torch.tensor(prompt, { dtype = torch.int64 }) })[#prompt - 1]
    t.truthy((whole:max() - whole[ids[1][6]]):item() < 0.2, "the last id is far from the best")
  end)

  t.test("LoraLearnsAndMerges_" .. folder, function()
    local _, batch = parity.answers_of(folder)
    local model = parity.load(folder)
    local before = torch.no_grad(model, batch)
    lora.apply(model, { r = 4, alpha = 8, targets = "all-linear" })
    t.equal(difference(torch.no_grad(model, batch), before), 0)
    local optimizer, losses = optim.AdamW(model:parameters(), { lr = 0.01 }), {}
    for step = 1, 4 do
      local sum, count = model:loss(batch)
      losses[step] = sum:item() / count
      ;(sum / count):backward()
      optimizer:step()
      optimizer:zero_grad()
    end
    t.truthy(losses[4] < losses[1], losses[4] .. " after " .. losses[1])
    local logits = torch.no_grad(model, batch)
    local ids = models.generate(model, { { 3, 1, 4, 1, 5, 9 }, { 2 } }, { max_new_tokens = 8 })

    lora.merge(model)

    t.near(torch.no_grad(model, batch), logits, 1e-4)
    t.equal(models.generate(model, { { 3, 1, 4, 1, 5, 9 }, { 2 } }, { max_new_tokens = 8 }), ids)
  end)
end

--- A small config, changed.
local function config_of(model_type, changes)
  local config = { model_type = model_type, vocab_size = 31, hidden_size = 16, intermediate_size = 24,
    num_hidden_layers = 2, num_attention_heads = 4, num_key_value_heads = 2 }
  for key, value in pairs(changes or {}) do config[key] = value end
  return config
end

local function settings_of(...) return models.build(config_of(...), { device = "meta" }).settings end

t.test("AMistralWithoutTheKeyHasWindowsAndWithNullNone", function()
  local null = require("lockstep.data").null
  t.equal(settings_of("mistral").windows, { 4096, 4096 })
  t.equal(settings_of("mistral", { sliding_window = 7 }).windows, { 7, 7 })
  t.equal(settings_of("mistral", { sliding_window = null }).windows, { false, false })
  t.equal(settings_of("mistral", { layer_types = { "full_attention", "full_attention" } }).windows, { 4096, 4096 },
    "transformers does not read the key")
  t.equal(settings_of("ministral", { layer_types = { "full_attention", "sliding_attention" } }).windows,
    { false, 4096 })
  local config = config_of "mistral"
  config.num_key_value_heads = nil
  t.raises("num_attention_heads 4 is not a multiple of num_key_value_heads 8", models.build, config)
  config.num_key_value_heads = null
  t.equal(models.build(config, { device = "meta" }).settings.num_key_value_heads, 4)
end)

t.test("SmolLM3TurnsWhatItsListNamesAndEveryFourthLayerNot", function()
  local deep = { num_hidden_layers = 5 }
  t.equal(settings_of("smollm3", deep).turns, { true, true, true, false, true })
  t.equal(settings_of("smollm3", { no_rope_layer_interval = 2 }).turns, { true, false })
  t.equal(settings_of("smollm3", { no_rope_layers = { 0, 1, 1 } }).turns, { false, true })
  t.equal(settings_of("smollm3", { use_sliding_window = true, sliding_window = 9, no_rope_layers = { 1, 0 } }).windows,
    { false, 9 })
  t.equal(settings_of("smollm3").rope.rope_theta, 2e6)
  t.raises("no_rope_layers must be an array of 0 and 1 for each of 2 layers, got 1 elements", models.build,
    config_of("smollm3", { no_rope_layers = { 1 } }))
  t.raises('layer_types[1] is "sliding_attention", but use_sliding_window is false', models.build,
    config_of("smollm3", { sliding_window = 9, layer_types = { "full_attention", "sliding_attention" } }))
end)

t.test("Gemma3ReadsBothFormsOfItsConfig", function()
  local deep = { num_hidden_layers = 7 }
  local settings = settings_of("gemma3_text", deep)
  t.equal(settings.windows, { 4096, 4096, 4096, 4096, 4096, false, 4096 })
  t.equal({ settings.rope.rope_theta, settings.windowed_rope.rope_theta, settings.tie_word_embeddings },
    { 1e6, 1e4, true })
  settings = settings_of("gemma3_text", { sliding_window_pattern = 2, rope_theta = 5, rope_local_base_freq = 6,
    rope_scaling = { rope_type = "linear", factor = 8 }, sliding_window = 3, query_pre_attn_scalar = 16 })
  t.equal(settings.windows, { 3, false })
  t.equal(settings.rope, { rope_type = "linear", factor = 8, rope_theta = 5 })
  t.equal(settings.windowed_rope, { rope_type = "default", rope_theta = 6 })
  t.equal(settings.attention_scale, 0.25)
  settings = settings_of("gemma3_text", { rope_parameters = { full_attention = { rope_theta = 7 } } })
  t.equal({ settings.rope.rope_theta, settings.windowed_rope.rope_theta }, { 7, 1e4 })
  for key, value in pairs { final_logit_softcapping = 30, attn_logit_softcapping = 50,
    use_bidirectional_attention = true, hidden_activation = "gelu" } do
    t.raises(('"%s" is %s; only '):format(key, tostring(value)), models.build,
      config_of("gemma3_text", { [key] = value }))
  end
end)

t.test("ABuiltGemma3HasNormsOfZeroWhichScaleByOne", function()
  local model = models.build(config_of "gemma3_text")

  t.equal(model.model.norm.weight:abs():max():item(), 0)
  t.equal(model.model.layers[1].self_attn.q_norm.weight:abs():max():item(), 0)
  local x = torch.randn { 3, 16 }
  t.near(model.model.norm(x), x * torch.rsqrt((x * x):mean({ -1 }, true) + 1e-6), 1e-6)
  local low = model.model.norm:to(torch.bfloat16)
  t.equal(low(x:to(torch.bfloat16)).dtype, torch.bfloat16)
end)

t.test("Olmo3ScalesTheRotationOfLayersWithoutAWindow", function()
  local settings = settings_of("olmo3", { num_hidden_layers = 4, rope_theta = 3, rope_scaling = { rope_type = "yarn",
    factor = 8, original_max_position_embeddings = 64 } })
  t.equal(settings.windows, { 4096, 4096, 4096, false })
  t.equal(settings.windowed_rope, { rope_type = "default", rope_theta = 3 })
  t.equal({ settings.rope.rope_type, settings.rope.rope_theta, settings.rope.factor }, { "yarn", 3, 8 })
  t.equal(settings_of("olmo3").rope.rope_theta, 5e5)
end)

t.test("Phi3AndMixtralRefuseWhatTheyDoNotCompute", function()
  t.raises('"resid_pdrop" is 0.1; only 0 is supported', models.build, config_of("phi3", { resid_pdrop = 0.1 }))
  local kept = models.build(config_of("phi3", { resid_pdrop = 0.1 }), { device = "meta", ignore = "resid_pdrop" })
  t.equal(kept.settings.resid_pdrop, 0)
  for _, name in ipairs { "longrope", "su", "yarn" } do
    t.raises('"longrope" needs 2 numbers "short_factor", one for each pair of dimensions, got 3', models.build,
      config_of("phi3", { rope_scaling = { type = name, short_factor = { 1, 1, 1 }, long_factor = { 1, 2 } } }))
  end
  t.raises("partial_rotary_factor must be a number above 0 and at most 1, got 1.5", models.build,
    config_of("phi3", { partial_rotary_factor = 1.5 }))
  t.raises('"router_jitter_noise" is 0.1; only 0 is supported', models.build,
    config_of("mixtral", { router_jitter_noise = 0.1 }))
  t.raises('"num_local_experts" must be a whole number of at least 1, got 0', models.build,
    config_of("mixtral", { num_local_experts = 0 }))
end)

t.test("AMixtralIsWrittenAsMistralPublishedIt", function()
  local names = {}
  for name in pairs(parity.load("mixtral"):layouts()[1]) do names[name] = true end
  t.truthy(names["model.layers.1.block_sparse_moe.gate.weight"])
  for _, which in ipairs { "w1", "w2", "w3" } do
    t.truthy(names["model.layers.0.block_sparse_moe.experts.4." .. which .. ".weight"])
  end
end)

t.test("GptOssReadsBothNamesOfItsExpertsAndHasYarnByDefault", function()
  local settings = settings_of("gpt_oss", { num_experts = 6, num_hidden_layers = 3 })
  t.equal({ settings.num_local_experts, settings.rope.rope_type, settings.rope.factor, settings.rope.rope_theta,
    settings.rope.truncate }, { 6, "yarn", 32, 150000, false })
  t.equal(settings.windows, { 128, false, 128 })
  settings = settings_of("gpt_oss", { rope_parameters = { rope_type = "default" },
    sliding_window = require("lockstep.data").null })
  t.equal({ settings.num_local_experts, settings.rope.rope_type, settings.windows[1] }, { 128, "default", false })
  t.raises("num_experts_per_tok is 4, but there are 3 experts", models.build,
    config_of("gpt_oss", { num_experts = 3 }))
  local model = models.build(config_of("gpt_oss", { num_local_experts = 5 }))
  t.equal(model.model.layers[1].self_attn.sinks:abs():max():item(), 0)
  t.equal(model.model.layers[1].mlp.experts.down_proj_bias:abs():max():item(), 0)
end)

t.test("DeepseekV3RefusesWhatItDoesNotCompute", function()
  local function refuses(message, changes)
    local config = config_of("deepseek_v3", { num_key_value_heads = 4, n_routed_experts = 6, n_group = 3,
      topk_group = 2, num_experts_per_tok = 2 })
    for key, value in pairs(changes) do config[key] = value end
    t.raises(message, models.build, config)
  end
  refuses("n_routed_experts 7 must be at least 2 in each of n_group 3 groups", { n_routed_experts = 7 })
  refuses("n_routed_experts 3 must be at least 2 in each of n_group 3 groups", { n_routed_experts = 3 })
  refuses("topk_group 1 of 3 groups of 2 experts cannot give num_experts_per_tok 3",
    { topk_group = 1, num_experts_per_tok = 3 })
  refuses("num_key_value_heads 2 must be num_attention_heads 4", { num_key_value_heads = 2 })
  refuses('"kv_lora_rank" must be a whole number of at least 1, got 0', { kv_lora_rank = 0 })
end)

t.test("TheBiasOfDeepseeksRouterStaysFloat32AndUntrained", function()
  local path = run.dir .. "/deepseek_low"
  local model = models.load("tests/models/deepseek_v3", { dtype = torch.bfloat16 })
  local bias = model.model.layers[2].mlp.gate.e_score_correction_bias
  t.equal({ bias.dtype, bias.requires_grad }, { torch.float32, false })

  models.save(model, path, { like = "tests/models/deepseek_v3" })

  local text = assert(io.open(path .. "/config.json")):read "*a"
  t.truthy(text:find('"torch_dtype": "bfloat16"', 1, true), text)
  local saved = models.load(path).model.layers[2].mlp.gate
  t.equal({ saved.weight.dtype, saved.e_score_correction_bias.dtype }, { torch.bfloat16, torch.float32 })
  t.equal(difference(saved.e_score_correction_bias, bias), 0)
  local built = models.build(models.load("tests/models/deepseek_v3").config)
  t.equal(built.model.layers[2].mlp.gate.e_score_correction_bias:abs():max():item(), 0)
end)

-- DeepSeek-V3 has 61 layers, and one more that predicts a further token.
t.test("LayersBehindTheLastOneAreNotRead", function()
  local data, core = require "lockstep.data", require "lockstep.core"
  local path, like = run.dir .. "/deepseek_more", "tests/models/deepseek_v3"
  core.make_folder(path)
  core.write_file(path .. "/config.json", { (assert(io.open(like .. "/config.json")):read "*a") })
  local tensors = data.safetensors(like .. "/model.safetensors")
  tensors["model.layers.3.eh_proj.weight"] = torch.zeros { 2, 3 }
  data.save_safetensors(path .. "/model.safetensors", tensors)
  local _, batch = parity.answers_of "deepseek_v3"

  local model = models.load(path)

  t.equal(difference(torch.no_grad(model, batch), torch.no_grad(parity.load "deepseek_v3", batch)), 0)
  tensors["model.layers.2.eh_proj.weight"] = torch.zeros { 2, 3 }
  data.save_safetensors(path .. "/model.safetensors", tensors)
  t.raises("1 are not in the model: model.layers.2.eh_proj.weight", models.load, path)
end)

--- The gated delta rule token by token, from its definition.
local function by_tokens(q, k, v, decay, beta, seq_lens)
  local outputs, states, at = {}, {}, 0
  for i, length in ipairs(seq_lens) do
    local state = torch.zeros({ q:size(1), q:size(2), v:size(2) }, { dtype = q.dtype })
    for t_ = at, at + length - 1 do
      state = state * decay[t_]:exp():view(-1, 1, 1)
      local error_ = v[t_] - torch.matmul(k[t_]:unsqueeze(1), state):squeeze(1)
      state = state + k[t_]:unsqueeze(2) * (error_ * beta[t_]:unsqueeze(1)):unsqueeze(1)
      outputs[#outputs + 1] = torch.matmul(q[t_]:unsqueeze(1), state):squeeze(1)
    end
    states[i], at = state, at + length
  end
  return torch.stack(outputs), torch.stack(states)
end

t.test("TheDeltaRuleInChunksIsTheRuleTokenByToken", function()
  local delta_rule = require "lockstep.models.families.delta_rule"
  local f64 = { dtype = torch.float64 }
  for seed, seq_lens in ipairs { { 5, 130, 0, 1, 64, 65 }, { 3 }, { 1, 1 }, { 0, 70 } } do
    torch.manual_seed(seed)
    local total = 0
    for _, length in ipairs(seq_lens) do total = total + length end
    local k = torch.randn({ total, 2, 3 }, f64)
    local given = { torch.randn({ total, 2, 3 }, f64), k / k:norm(2, { -1 }, true), torch.randn({ total, 2, 4 }, f64),
      -torch.rand({ total, 2 }, f64) * 20 * torch.rand({ total, 2 }, f64):gt(0.7), torch.rand({ total, 2 }, f64) }
    local weight = torch.randn({ total, 2, 4 }, f64)
    local function results(rule)
      local inputs = {}
      for i, x in ipairs(given) do inputs[i] = x:clone():requires_grad_(true) end
      local y, states = rule(inputs[1], inputs[2], inputs[3], inputs[4], inputs[5], seq_lens)
      ;((y * weight):sum() + states:sin():sum()):backward()
      local gradients = {}
      for i, x in ipairs(inputs) do gradients[i] = x.grad end
      return y, states, gradients
    end
    local y, states, gradients = results(by_tokens)

    local found, found_states, found_gradients = results(delta_rule.sequences)

    t.near(found, y, 1e-10, "outputs")
    t.near(found_states, states, 1e-10, "states")
    for i = 1, 5 do t.near(found_gradients[i], gradients[i], 1e-9, "gradient " .. i) end
    local rows = #seq_lens
    local more = {}
    for i, x in ipairs(given) do more[i] = torch.randn({ rows, unpack(x:size(), 2) }, f64) end
    local ones = {}
    for i = 1, rows do ones[i] = 1 end
    local next_y, next_states = delta_rule.next_tokens(more[1], more[2], more[3], more[4], more[5], states)
    local longer, at = {}, 0
    for i, length in ipairs(seq_lens) do
      for j, x in ipairs(given) do
        longer[j] = longer[j] or {}
        table.insert(longer[j], x:narrow(0, at, length))
        table.insert(longer[j], more[j]:narrow(0, i - 1, 1))
      end
      at, ones[i] = at + length, length + 1
    end
    for j, parts in ipairs(longer) do longer[j] = torch.cat(parts) end
    local all, all_states = delta_rule.sequences(longer[1], longer[2], longer[3], longer[4], longer[5], ones)
    local last, sum = {}, 0
    for i, length in ipairs(ones) do
      sum = sum + length
      last[i] = all[sum - 1]
    end
    t.near(next_y, torch.stack(last), 1e-10, "a further token")
    t.near(next_states, all_states, 1e-10, "the state behind it")
  end
end)

t.test("TheConvolutionSeesNothingBeforeItsSequence", function()
  local delta_rule = require "lockstep.models.families.delta_rule"
  torch.manual_seed(3)
  local x, weight, seq_lens = torch.randn { 9, 5 }, torch.randn { 5, 1, 4 }, { 4, 0, 1, 4 }

  local y, tails = delta_rule.convolve(x, weight, seq_lens)

  local at = 0
  for i, length in ipairs(seq_lens) do
    local padded = torch.cat { torch.zeros { 3, 5 }, x:narrow(0, at, length) }
    for j = 0, length - 1 do
      t.near(y[at + j], (padded:narrow(0, j, 4) * weight:squeeze(1):t()):sum(0), 1e-5)
    end
    t.equal(tails[i - 1], padded:narrow(0, length, 3))
    at = at + length
  end
  local more = torch.randn { 4, 5 }
  local next_y, next_tails = delta_rule.convolve_next(more, weight, tails)
  t.near(next_y[0], (torch.cat { x:narrow(0, 1, 3), more:narrow(0, 0, 1) } * weight:squeeze(1):t()):sum(0), 1e-5)
  t.equal(next_tails[0], torch.cat { x:narrow(0, 2, 2), more:narrow(0, 0, 1) })
end)

t.test("Qwen3NextReadsItsConfigAndRefusesWhatDoesNotFit", function()
  local settings = settings_of("qwen3_next", { num_hidden_layers = 5, rope_theta = 1e7 })
  t.equal(settings.layer_types, { "linear_attention", "linear_attention", "linear_attention", "full_attention",
    "linear_attention" })
  t.equal({ settings.rotary_dim, settings.num_experts, settings.num_experts_per_tok }, { 64, 512, 10 })
  t.equal(settings_of("qwen3_next", { rope_parameters = { rope_theta = 5, partial_rotary_factor = 0.5 } }).rotary_dim,
    128)
  local large = models.build({ model_type = "qwen3_next", vocab_size = 151936, hidden_size = 2048,
    intermediate_size = 5120, num_hidden_layers = 48, num_attention_heads = 16 }, { device = "meta" })
  t.equal(large:num_parameters(), 79674391296) -- of Qwen3-Next-80B-A3B, as published
  local function refuses(message, changes) t.raises(message, models.build, config_of("qwen3_next", changes)) end
  refuses('layer_types[1] is "sliding_attention"; expected linear_attention or full_attention for each of 2 layers',
    { layer_types = { "linear_attention", "sliding_attention" } })
  refuses("linear_num_value_heads 32 is not a multiple of linear_num_key_heads 5", { linear_num_key_heads = 5 })
  refuses("partial_rotary_factor must be a number above 0 and at most 1, got 2", { partial_rotary_factor = 2 })
  refuses('"linear_conv_kernel_dim" must be a whole number of at least 1, got 0', { linear_conv_kernel_dim = 0 })
  local built = models.build(models.load("tests/models/qwen3_next").config).model.layers[1].linear_attn
  t.equal(built.dt_bias:totable(), { 1, 1, 1, 1 })
  t.truthy(built.A_log:exp():max():item() > 1 and built.A_log:exp():max():item() < 16)
end)

t.test("TensorsOfFurtherTokensArePassedOver", function()
  local data, core = require "lockstep.data", require "lockstep.core"
  local path, like = run.dir .. "/qwen3_next_mtp", "tests/models/qwen3_next"
  core.make_folder(path)
  core.write_file(path .. "/config.json", { t.read_file(like .. "/config.json") })
  local tensors = data.safetensors(like .. "/model.safetensors")
  tensors["mtp.fc.weight"], tensors["mtp.layers.0.mlp.gate.weight"] = torch.zeros { 2, 3 }, torch.zeros { 2, 3 }
  data.save_safetensors(path .. "/model.safetensors", tensors)
  local _, batch = parity.answers_of "qwen3_next"

  local model = models.load(path)

  t.equal(difference(torch.no_grad(model, batch), torch.no_grad(parity.load "qwen3_next", batch)), 0)
end)

t.test("LayersWithAStateTrainAfterInferenceAndInAutocast", function()
  local _, batch = parity.answers_of "qwen3_next"
  local model = parity.load "qwen3_next"
  local whole = torch.no_grad(model, batch)

  torch.inference_mode(model, { input_ids = batch.input_ids })
  model:loss({ input_ids = batch.input_ids }):backward()

  t.truthy(model.model.layers[1].linear_attn.A_log.grad:abs():max():item() > 0)
  local low = torch.autocast({ device = "cpu", dtype = torch.bfloat16 }, torch.no_grad, model, batch)
  local net, lengths = model.model.layers[1].linear_attn, { 70, 3 }
  local mixed, decay, beta = torch.randn { 73, 64 }, -torch.rand { 73, 4 }, torch.rand { 73, 4 }
  t.equal((torch.autocast({ device = "cpu", dtype = torch.bfloat16 }, net.recur, net, mixed, decay, beta, lengths)),
    (net:recur(mixed, decay, beta, lengths)))
  t.truthy((low:to(torch.float32) - whole):norm():item() < 0.2 * whole:norm():item())
end)
