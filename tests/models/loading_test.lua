-- models.load and models.build: what they read, and what they say of folders that are broken.

local core = require "lockstep.core"
local data = require "lockstep.data"
local files = require "lockstep.core.files"
local models = require "lockstep.models"
local run = require "lockstep.run"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local SOURCE = "tests/models/"

local read = t.read_file

local num_folders = 0

--- A copy of a folder, whose config and tensors a test may change.
local function copy(name, change_config, change_tensors)
  num_folders = num_folders + 1
  local path = run.dir .. "/loading-" .. num_folders
  core.make_folder(path)
  for _, file in ipairs(files.list(SOURCE .. name)) do
    if file ~= "answers.safetensors" then
      core.write_file(path .. "/" .. file, { read(SOURCE .. name .. "/" .. file) })
    end
  end
  if change_config then
    local config = core.json_decode(read(path .. "/config.json"))
    change_config(config)
    core.write_file(path .. "/config.json", { core.json_encode(config) })
  end
  if change_tensors then
    local tensors = data.safetensors(path .. "/model.safetensors")
    change_tensors(tensors)
    data.save_safetensors(path .. "/model.safetensors", tensors)
  end
  return path
end

local function batch() return { input_ids = torch.tensor({ 3, 1, 4, 1, 5 }, { dtype = torch.int64 }) } end

-- Folders that load --------------------------------------------------------------------------------------------

t.test("NamesOfParametersAreThoseOfTheFile", function()
  local model = models.load(SOURCE .. "llama")

  local on_disk = data.safetensors(SOURCE .. "llama/model.safetensors")

  t.equal(model:state_dict(), on_disk)
  for _, p in model:named_parameters() do t.truthy(p.requires_grad and p.is_leaf) end
end)

t.test("LoadingCopiesNothingWhereTheDtypeIsThatOfTheFile", function()
  local path = run.dir .. "/large"
  models.save(models.build { model_type = "qwen3", vocab_size = 40000, hidden_size = 256, intermediate_size = 8,
    num_hidden_layers = 1, num_attention_heads = 2, num_key_value_heads = 1, tie_word_embeddings = true }, path)
  collectgarbage()
  collectgarbage()
  local before = core.resident_bytes()

  local model = models.load(path)

  t.truthy(model:head_weight():numel() * 4 > 40e6)
  local grown = core.resident_bytes() - before
  t.truthy(grown < 5e6, "the process grew by " .. grown .. " bytes")
end)

t.test("ATiedHeadIsTheEmbedding", function()
  local model = models.load(SOURCE .. "qwen3")

  t.equal(model.lm_head, nil)
  t.truthy(rawequal(model:head_weight(), model.model.embed_tokens.weight))
end)

t.test("ACopyOfATiedHeadIsPassedOver", function()
  local path = copy("qwen3", nil, function(tensors)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]:clone()
  end)

  t.near(models.load(path)(batch()):detach(), models.load(SOURCE .. "qwen3")(batch()):detach(), 0)
end)

t.test("TheDtypeIsTheOptionsThenTheConfigs", function()
  local path = copy("qwen3", function(config) config.dtype = "bfloat16" end)
  local old = copy("qwen2", function(config) config.torch_dtype = "float16" end)

  t.equal(models.load(path)(batch()).dtype, torch.bfloat16)
  t.equal(models.load(old):head_weight().dtype, torch.float16)
  t.equal(models.load(path, { dtype = torch.float64 }):head_weight().dtype, torch.float64)
end)

t.test("TrainingDoesNotChangeTheFile", function()
  local path = copy "qwen3_moe"
  local before = read(path .. "/model.safetensors")

  local model = models.load(path)
  torch.no_grad(function()
    for _, p in model:named_parameters() do p:add_(1) end
  end)

  t.truthy(read(path .. "/model.safetensors") == before)
end)

t.test("ExpertsAreReadOneByOnePackedAndTransposed", function()
  local expected = models.load(SOURCE .. "qwen3_moe_packed")
  local one_by_one, packed = run.dir .. "/one_by_one", run.dir .. "/packed"
  models.save(expected, one_by_one)
  models.save(expected, packed)
  data.save_safetensors(packed .. "/model.safetensors", expected:state_dict())

  t.truthy(data.safetensors(one_by_one .. "/model.safetensors")["model.layers.1.mlp.experts.3.up_proj.weight"])
  t.equal(models.load(one_by_one):state_dict(), expected:state_dict())
  t.equal(models.load(packed):state_dict(), expected:state_dict())
end)

t.test("BuiltModelsStartAsTransformersDoes", function()
  torch.manual_seed(1)
  local model = models.build({ architectures = { "Qwen2ForCausalLM" }, vocab_size = 300, hidden_size = 64,
    intermediate_size = 128, num_hidden_layers = 2, num_attention_heads = 4, num_key_value_heads = 2,
    initializer_range = 0.05 }, { dtype = torch.bfloat16 })

  for name, p in model:named_parameters() do
    t.equal(p.dtype, torch.bfloat16)
    if name:find("bias$") then
      t.equal(p:abs():max():item(), 0, name)
    elseif name:find("norm") then
      t.equal({ p:min():item(), p:max():item() }, { 1, 1 }, name)
    else
      t.near(p:float():std():item(), 0.05, 0.003, name)
    end
  end
  t.equal(tostring(model(batch()).shape), "{5, 300}")
end)

t.test("ArchitecturesCanBeRegistered", function()
  local Mine = models.CausalLM:subclass("MineForCausalLM")
  Mine.keys = models.keys {}
  models.register("MineForCausalLM", Mine)
  local path = copy("qwen3", function(config)
    config.architectures, config.attention_bias, config.use_sliding_window = { "MineForCausalLM" }, nil, nil
    config.sliding_window, config.max_window_layers, config.layer_types = nil, nil, nil
  end, function(tensors)
    for name in pairs(tensors) do
      if name:find("[qk]_norm") then tensors[name] = nil end
    end
  end)

  t.equal(models.load(path).class_name, "MineForCausalLM")
end)

-- Refused folders -----------------------------------------------------------------------------------------

local function refuses(message, path, opts) t.raises(message, models.load, path, opts) end

t.test("AMissingFolderOrFileIsNamed", function()
  refuses("there is no folder nowhere", "nowhere")
  local path = copy "qwen3"
  files.remove(path .. "/model.safetensors")
  refuses("has no *.safetensors file and no *.safetensors.index.json; other formats of weights are not read", path)
  files.remove(path .. "/config.json")
  core.write_file(path .. "/other.txt", { "x" })
  refuses(("cannot read %s/config.json"):format(path), path)
end)

t.test("AMissingShardIsNamed", function()
  local path = copy "qwen3_yarn"
  files.remove(path .. "/model-00002-of-00002.safetensors")
  refuses(("1 of the 2 files that %s/model.safetensors.index.json names are not in %s: "
    .. "model-00002-of-00002.safetensors"):format(path, path), path)
end)

t.test("AnIndexThatContradictsItsFilesIsNamed", function()
  local path = copy "qwen3_yarn"
  local index = core.json_decode(read(path .. "/model.safetensors.index.json"))
  index.weight_map["model.norm.weight"] = "model-00001-of-00002.safetensors"
  core.write_file(path .. "/model.safetensors.index.json", { core.json_encode(index) })
  refuses('says that "model.norm.weight" is in model-00001-of-00002.safetensors, which does not have it', path)
end)

t.test("ATruncatedFileIsNamed", function()
  local path = copy "qwen3"
  core.write_file(path .. "/model.safetensors", { read(path .. "/model.safetensors"):sub(1, 30000) })
  refuses("is cut short", path)
end)

t.test("AConfigThatContradictsTheWeightsIsNamed", function()
  refuses("model.layers.0.mlp.down_proj.weight has shape {20, 36}, the config makes it {20, 40}",
    copy("qwen3", function(config) config.intermediate_size = 40 end))
  refuses("11 are missing: model.layers.2.input_layernorm.weight",
    copy("qwen3", function(config) config.num_hidden_layers, config.layer_types = 3, nil end))
  refuses("1 are missing: lm_head.weight", copy("qwen3", function(config) config.tie_word_embeddings = false end))
  refuses("11 are not in the model: model.layers.1.input_layernorm.weight",
    copy("qwen3", function(config) config.num_hidden_layers = 1 end))
  refuses("but lm_head.weight differs from it", copy("qwen3", nil, function(tensors)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + 1
  end))
  refuses("quantized weights are not supported", copy("qwen3", nil, function(tensors)
    tensors["model.norm.weight"] = tensors["model.norm.weight"]:to(torch.uint8)
  end))
end)

-- Of SmolLM2-135M-Instruct's config.json, and of others.
t.test("KeysThatNobodyReadsAreALine", function()
  local path = copy("qwen3", function(config)
    config.is_llama_config, config.rope_interleaved, config.pretraining_tp = true, false, 1
    config["transformers.js_config"] = { dtype = "q4" }
    config.dual_chunk_attention_config = { chunk_size = 262144 }
    config.rms_norm_epsilon = 1e-6
  end)
  local model, heard = t.listening(models.load, path)

  t.equal(heard, 'lockstep: models: Qwen3ForCausalLM reads no "dual_chunk_attention_config", "is_llama_config", '
    .. '"rms_norm_epsilon" (is "rms_norm_eps" meant?), "rope_interleaved", "transformers.js_config" of the config, nor '
    .. "does transformers\n")
  local _, silent = t.listening(models.load, path, { ignore = { "dual_chunk_attention_config", "is_llama_config",
    "rms_norm_epsilon", "rope_interleaved", "transformers.js_config" } })
  t.equal(silent, "")
  local plain_model, nothing = t.listening(models.load, copy "qwen3")
  t.equal(nothing, "")
  local tokens = { input_ids = torch.tensor({ 3, 1, 4, 1, 5 }, { dtype = torch.int64 }) }
  t.equal(model(tokens), plain_model(tokens))
end)

t.test("AnEndBeyondTheVocabularyIsALine", function()
  local path = copy("qwen3", function(config) config.eos_token_id = { 1, 151645 } end)
  local model, heard = t.listening(models.load, path)

  t.equal(heard, "lockstep: models: eos_token_id 151645 of config.json is beyond the vocabulary, which ends with 60: "
    .. "no sequence ends by it\n")
  t.equal(#models.generate(model, { torch.tensor({ 3, 1 }, { dtype = torch.int64 }) }, { max_new_tokens = 2 }), 1)
end)

t.test("KeysThatChangeResultsAreRefused", function()
  refuses('"hidden_act" is gelu; only silu is supported', copy("qwen3", function(c) c.hidden_act = "gelu" end))
  refuses('"attention_dropout" is 0.1; only 0', copy("qwen3", function(c) c.attention_dropout = 0.1 end))
  for _, theta in ipairs { 0, -1 } do
    refuses("rope_theta of the config must be a number above 0, got " .. theta,
      copy("qwen3", function(c) c.rope_parameters.rope_theta = theta end))
    refuses("factor of the config must be a number above 0, got " .. theta,
      copy("qwen3", function(c) c.rope_parameters.rope_type, c.rope_parameters.factor = "linear", theta end))
  end
  for _, id in ipairs { -1, 1.5 } do
    refuses("eos_token_id of config.json must be an id from 0 to 60, got " .. id,
      copy("qwen3", function(c) c.eos_token_id = { 1, id } end))
  end
  refuses("architectures of the config must be an array of names, got 5",
    copy("qwen3", function(c) c.architectures = 5 end))
  refuses("layer_types must be an array of names, got 5", copy("qwen3", function(c) c.layer_types = 5 end))
  refuses('unknown rope_type "spiral"', copy("qwen3", function(c) c.rope_parameters.rope_type = "spiral" end))
  refuses('needs 4 numbers "short_factor"', copy("qwen3", function(c) c.rope_parameters.rope_type = "longrope" end))
  local quantized = copy("qwen3", function(c) c.quantization_config = { bits = 4 } end)
  refuses('the config has "quantization_config": of quantized weights those with quant_method "mxfp4" and '
    .. '"bitsandbytes", and "fp8" with weight_block_size are read, not any without quant_method', quantized)
  for _, ignore in ipairs { { "quantization_config" }, "x, quantization_config" } do
    t.equal(models.load(quantized, { ignore = ignore }).class_name, "Qwen3ForCausalLM")
  end
  refuses("ignore must be an array of the config's keys, got 5", quantized, { ignore = 5 })
end)

t.test("BadValuesOfTheConfigAreNamed", function()
  refuses('the config lacks "hidden_size"', copy("qwen3", function(c) c.hidden_size = nil end))
  refuses('"hidden_size" must be a whole number of at least 1, got 2.5', copy("qwen3",
    function(c) c.hidden_size = 2.5 end))
  refuses('"tie_word_embeddings" must be a boolean, got "yes"', copy("qwen3",
    function(c) c.tie_word_embeddings = "yes" end))
  refuses("num_attention_heads 6 is not a multiple of num_key_value_heads 4",
    copy("qwen3", function(c) c.num_key_value_heads = 4 end))
  for key, folder in pairs { hidden_size = "qwen3", num_key_value_heads = "qwen3", head_dim = "llama" } do
    refuses(('"%s" must be a whole number of at least 1, got "40"'):format(key), copy(folder,
      function(c) c[key] = "40" end))
  end
  refuses('has the dtype "int4"', copy("qwen3", function(c) c.dtype = "int4" end))
end)

-- They would be built for hours, until the memory is full.
t.test("CountsThatNoModelHasAreRefusedBeforeAnythingIsBuilt", function()
  local function set(key, value)
    return function(config)
      config.layer_types = nil
      if config[key] then config[key] = value else config.vision_config[key] = value end
    end
  end
  for key, folder in pairs { num_hidden_layers = "llama", num_local_experts = "qwen3_moe", depth = "qwen3_vl" } do
    for _, value in ipairs { 2 ^ 31, 2 ^ 53, 1e300, 10001 } do
      local message = t.raises("models", models.load, copy(folder, set(key, value)))
      t.truthy(message:find "expected at most 10000" or message:find "tensors: some layers have none", message)
    end
  end
  refuses('config.json says "num_hidden_layers": 2147483648, but the files in',
    copy("qwen3", set("num_hidden_layers", 2 ^ 31)))
  refuses('config.json says "vision_config.depth": 900, but the files in', copy("qwen3_vl", set("depth", 900)))

  local config = core.json_decode(read(SOURCE .. "llama/config.json"))
  config.num_hidden_layers = 2 ^ 31
  t.raises('"num_hidden_layers" is 2147483648; expected at most 10000', models.build, config)
  config.num_hidden_layers, config.hidden_size, config.intermediate_size = 100, 2 ^ 17, 2 ^ 19
  config.head_dim = 2 ^ 15
  local message = t.raises("models.build: the config makes ", models.build, config)
  t.truthy(message:find "GiB as .*float32, and this machine has %d+", message)
end)

-- Links in a folder that was downloaded lead anywhere.
t.test("AFileWithoutAnEndIsRefusedBeforeItIsRead", function()
  for _, name in ipairs { "config.json", "generation_config.json", "model.safetensors",
    "model.safetensors.index.json" } do
    for _, command in ipairs { "ln -s /dev/zero %s", "mkfifo %s" } do
      local path = copy(name:find "index" and "qwen3_yarn" or "qwen3")
      local file = path .. "/" .. name
      os.remove(file)
      assert(os.execute(command:format("'" .. file .. "'")) == 0)

      t.raises("it is not a regular file", models.load, path)
    end
  end
end)

t.test("ADtypeIsOneOfFloatingPointNumbers", function()
  for given, got in pairs { [torch.int64] = "torch.int64", float32 = '"float32"' } do
    local message = "dtype must be torch.float32, torch.bfloat16, torch.float16, torch.float64, got " .. got
    t.raises("models.load: " .. message, models.load, SOURCE .. "qwen3", { dtype = given })
    t.raises("models.build: " .. message, models.build, { model_type = "qwen3" }, { dtype = given })
  end
end)

t.test("AnUnknownArchitectureIsRefusedWithWhatIsKnown", function()
  local message = t.raises('unknown architecture "OddForCausalLM"', models.load,
    copy("qwen3", function(c) c.architectures = { "OddForCausalLM" } end))
  t.truthy(message:find("Qwen3ForCausalLM", 1, true) and message:find("models.register", 1, true), message)
end)

t.test("BadBatchesAreNamed", function()
  local model = models.load(SOURCE .. "qwen3")
  local ids = batch().input_ids
  local function fails(message, b) t.raises(message, model, b) end

  fails("input_ids holds the id 61, but vocab_size is 61", { input_ids = ids + 56 })
  fails("input_ids holds the id -1", { input_ids = ids - 2 })
  for _, tokens in ipairs { 20, 50 } do
    local longer = torch.zeros({ tokens }, { dtype = torch.int64 })
    longer[tokens - 2] = 61
    fails("input_ids holds the id 61", { input_ids = longer })
  end
  fails("input_ids must be a tensor of whole numbers of shape [T], got torch.int64 {1, 5}",
    { input_ids = ids:unsqueeze(0) })
  fails("seq_lens add up to 4 tokens, but input_ids holds 5", { input_ids = ids, seq_lens = { 1, 3 } })
  fails("position_ids must be a tensor of shape [T], got a table",
    { input_ids = ids, position_ids = { 0, 1, 2, 3, 4 } })
  fails("position_ids have shape {4}, but input_ids holds 5", { input_ids = ids, position_ids = torch.arange(4) })
  fails("takes text alone, but the batch has pixel_values", { input_ids = ids, pixel_values = torch.zeros { 1 } })
  t.raises("models: loss_mask must be a tensor of shape [T], got a table", model.loss, model,
    { input_ids = ids, loss_mask = { 1, 1, 1, 1, 1 } })
  fails("seq_lens must be an array of numbers, got a tensor", { input_ids = ids, seq_lens = torch.tensor { 5 } })
  fails("seq_lens[2] must be a whole number of at least 0, got -1", { input_ids = ids, seq_lens = { 6, -1 } })
  fails("seq_lens[1] must be a whole number of at least 0, got 1.5", { input_ids = ids, seq_lens = { 1.5, 3.5 } })
  fails("seq_lens[1] must be a whole number of at least 0, got a string", { input_ids = ids, seq_lens = { "5" } })
  t.raises("loss_mask has shape {4}", model.loss, model, { input_ids = ids, loss_mask = torch.ones { 4 } })
  for message, value in pairs { ["holds 0.5 at position 1"] = 0.5, ["holds nan at position 1"] = 0 / 0 } do
    t.raises("models: loss_mask " .. message .. "; each element must be 0, 1, true or false", model.loss, model,
      { input_ids = ids, loss_mask = torch.tensor { 1, value, 0, 1, 1 } })
  end
end)

t.test("FieldsOfABatchThatOthersReadAreErrors", function()
  local model = models.load(SOURCE .. "qwen3")
  local function loss(more)
    more.input_ids = torch.arange(5)
    return model:loss(more)
  end
  t.raises('the field "labels", which models do not read: the labels are the next tokens; say with loss_mask', loss,
    { labels = torch.arange(5) })
  t.raises("give their lengths as seq_lens", loss, { attention_mask = torch.ones { 5 } })
  t.raises('"losmask", which models do not read: did you mean "loss_mask"?', loss, { losmask = torch.ones { 5 } })
  loss { kind = "text", samples = { 1 }, advantages = torch.ones { 5 } }
end)
