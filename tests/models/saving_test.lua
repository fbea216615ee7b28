-- models.save: what is in the folder, and that it is complete or absent. check.py loads such folders with transformers.

local core = require "lockstep.core"
local data = require "lockstep.data"
local files = require "lockstep.core.files"
local lora = require "lockstep.lora"
local models = require "lockstep.models"
local run = require "lockstep.run"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local SOURCE = "tests/models/"

local read = t.read_file

local num_folders = 0

local function new_path()
  num_folders = num_folders + 1
  return run.dir .. "/saved-" .. num_folders
end

for _, folder in ipairs { "llama", "qwen3", "qwen3_yarn", "qwen3_moe" } do
  t.test("ASavedFolderLoadsAsTheSameModel_" .. folder, function()
    local model, path = models.load(SOURCE .. folder), new_path()

    models.save(model, path, { like = SOURCE .. folder })

    t.equal(models.load(path):state_dict(), model:state_dict())
    t.equal(read(path .. "/config.json"), read(SOURCE .. folder .. "/config.json"))
    local _, metadata = data.safetensors(path .. "/model.safetensors")
    t.equal(metadata, { format = "pt" })
  end)
end

t.test("TensorsHaveTheNamesOfTheSourceOnDisk", function()
  local path = new_path()
  models.save(models.load(SOURCE .. "qwen3_moe"), path)

  t.equal(data.safetensors(path .. "/model.safetensors"), data.safetensors(SOURCE .. "qwen3_moe/model.safetensors"))
end)

t.test("ShardsHoldAtMostSoManyBytesAndTheIndexNamesThem", function()
  local model, path = models.load(SOURCE .. "qwen3"), new_path()

  models.save(model, path, { max_shard_bytes = 12000 })

  local index = core.json_decode(read(path .. "/model.safetensors.index.json"))
  local seen, total, elements = {}, 0, 0
  for name, file in pairs(index.weight_map) do
    t.truthy(file:match("^model%-%d%d%d%d%d%-of%-%d%d%d%d%d%.safetensors$"), file)
    seen[file] = (seen[file] or 0) + model:state_dict()[name]:numel() * 4
    total, elements = total + model:state_dict()[name]:numel() * 4, elements + model:state_dict()[name]:numel()
  end
  local num_files = 0
  for file, bytes in pairs(seen) do
    num_files = num_files + 1
    t.truthy(bytes <= 12000, file .. " holds " .. bytes .. " bytes")
  end
  t.truthy(num_files > 3)
  t.equal(index.metadata, { total_size = total, total_parameters = elements })
  t.equal(models.load(path):state_dict(), model:state_dict())
end)

t.test("FilesOfTheTokenizerAreCopiedAndWeightsAreNot", function()
  local like, path = new_path(), new_path()
  models.save(models.load(SOURCE .. "qwen3_yarn"), like, { like = SOURCE .. "qwen3_yarn" })
  core.write_file(like .. "/tokenizer.json", { "{}" })
  core.write_file(like .. "/chat_template.jinja", { "{{ messages }}" })
  core.write_file(like .. "/pytorch_model.bin", { "old" })

  models.save(models.load(SOURCE .. "qwen3_yarn"), path, { like = like })

  t.equal(files.list(path), { "chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json" })
end)

t.test("TheConfigNamesTheDtypeOfTheWeights", function()
  for _, folder in ipairs { "qwen3", "llama" } do
    local path = new_path()
    models.save(models.load(SOURCE .. folder, { dtype = torch.bfloat16 }), path, { like = SOURCE .. folder })

    t.equal((read(path .. "/config.json"):gsub("bfloat16", "float32")), read(SOURCE .. folder .. "/config.json"))
    t.equal(models.load(path):head_weight().dtype, torch.bfloat16)
  end
end)

t.test("ABuiltModelHasTheConfigItWasBuiltWith", function()
  local path = new_path()
  local model = models.build { model_type = "qwen3", vocab_size = 50, hidden_size = 24, intermediate_size = 40,
    num_hidden_layers = 2, num_attention_heads = 4, num_key_value_heads = 2, head_dim = 8, rope_theta = 1e6 }

  models.save(model, path)

  local config = core.json_decode(read(path .. "/config.json"))
  t.equal({ config.architectures, config.model_type, config.dtype, config.rope_theta },
    { { "Qwen3ForCausalLM" }, "qwen3", "float32", 1e6 })
  t.equal(models.load(path):state_dict(), model:state_dict())
end)

t.test("AModelsFolderIsReplacedAlsoByTheModelThatWasReadFromIt", function()
  local path = new_path()
  models.save(models.load(SOURCE .. "qwen3_yarn"), path, { max_shard_bytes = 12000 })
  local model = models.load(path)
  torch.no_grad(function() model:head_weight():add_(1) end)

  models.save(model, path)

  t.equal(files.list(path), { "config.json", "model.safetensors" })
  t.equal(models.load(path):state_dict(), model:state_dict())
  t.equal({ files.list(path .. ".part"), files.list(path .. ".old") }, { {}, {} })
end)

t.test("TextsOfAFolderThatGetsAModelStay", function()
  local path = new_path()
  core.make_folder(path)
  for _, name in ipairs { "tokenizer.json", "notes.txt", "LICENSE" } do
    core.write_file(path .. "/" .. name, { name })
  end

  for _ = 1, 2 do models.save(models.load(SOURCE .. "qwen3"), path) end

  t.equal(files.list(path), { "LICENSE", "config.json", "model.safetensors", "notes.txt", "tokenizer.json" })
  t.equal(read(path .. "/notes.txt"), "notes.txt")
end)

t.test("AConfigWithoutATypeAndADtypeGetsThem", function()
  local path, like = new_path(), new_path()
  local config = core.json_decode(read(SOURCE .. "qwen3/config.json"))
  config.model_type, config.dtype, config.torch_dtype = nil, nil, nil
  core.make_folder(like)
  core.write_file(like .. "/config.json", { core.json_encode(config) })

  models.save(models.load(SOURCE .. "qwen3", { dtype = torch.bfloat16 }), path, { like = like })

  local written = core.json_decode(read(path .. "/config.json"))
  t.equal({ written.model_type, written.dtype, written.hidden_size }, { "qwen3", "bfloat16", config.hidden_size })
end)

t.test("AFolderWithOtherFilesIsLeftAlone", function()
  local path = new_path()
  core.make_folder(path)
  core.write_file(path .. "/thesis.tex", { "x" })

  t.raises("holds thesis.tex, which is no file of a model; save into a folder of its own", models.save,
    models.load(SOURCE .. "qwen3"), path)
  t.equal(files.list(path), { "thesis.tex" })
end)

t.test("AFailureLeavesTheOldFolder", function()
  local model, path = models.load(SOURCE .. "qwen3"), new_path()
  models.save(model, path)
  local write_file = core.write_file
  core.write_file = function() error("no space left", 0) end -- luacheck: ignore

  local ok, message = pcall(models.save, model, path)
  core.write_file = write_file -- luacheck: ignore

  t.truthy(not ok and message:find "saving_test.lua:%d+: models.save: no space left", message)
  t.equal(models.load(path):state_dict(), model:state_dict())
end)

t.test("AModelWithAdaptersIsRefused", function()
  local model, path = models.load(SOURCE .. "qwen3"), new_path()
  lora.apply(model, { r = 2 })
  t.raises('_proj.lora_', models.save, model, path)
  t.raises("call lora.merge before, or save them with lora.save", models.save, model, path)
  lora.merge(model)
  models.save(model, path)
  t.equal(models.load(path):state_dict(), model:state_dict())
end)

t.test("BadTargetsAreNamed", function()
  local model = models.load(SOURCE .. "qwen3")
  t.raises("models.save: the folder must be a path, got a nil", models.save, model)
  t.raises("models.save: the folder must be a path, got an empty string", models.save, model, "")
  for given, got in pairs { [0] = "0", [0.5] = "0.5", [1000.5] = "1000.5", [-1] = "-1" } do
    t.raises("models.save: max_shard_bytes must be a whole number of at least 1, got " .. got, models.save, model,
      new_path(), { max_shard_bytes = given })
  end
  t.raises("there is no folder nowhere", models.save, model, new_path(), { like = "nowhere" })
end)
