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

t.test("AFolderOfAnotherModelIsNoConfigForTheWeights", function()
  local model, path = models.load(SOURCE .. "qwen3"), new_path()
  local function refuses(like, message)
    t.raises("models.save: like = " .. like .. " has " .. message .. "; give the folder that the model comes from, or "
      .. "leave like out", models.save, model, path, { like = like })
  end
  refuses(SOURCE .. "llama", 'architectures "LlamaForCausalLM", but the model has "Qwen3ForCausalLM"')
  local other = new_path()
  models.save(model, other, { like = SOURCE .. "qwen3" })
  local config = data.json(other .. "/config.json")
  config.num_hidden_layers = 7
  data.save_json(other .. "/config.json", config)
  refuses(other, ('num_hidden_layers "7", but the model has "%d"'):format(#model.model.layers))
  local _, message = pcall(models.save, model, path, { like = other })
  t.equal(select(2, message:gsub("models%.save: ", "")), 1)
  t.equal(files.list(path), {})
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
end)

-- mv model model.old, and a new training into model.
t.test("NeighboursOfTheFolderStay", function()
  local model, path = models.load(SOURCE .. "qwen3"), new_path()
  local function names()
    local pipe = assert(io.popen(("ls -d '%s'*"):format(path)))
    local found = pipe:read "*a"
    pipe:close()
    return found
  end
  local neighbours = {}
  for i, suffix in ipairs { ".old", ".part", ".bak", ".tmp", "-old", ".new" } do
    neighbours[i] = path .. suffix
    models.save(model, neighbours[i])
  end
  local before = names()

  for _ = 1, 2 do models.save(model, path .. "/") end

  t.equal(names(), path .. "\n" .. before)
  for _, neighbour in ipairs(neighbours) do t.equal(files.list(neighbour), { "config.json", "model.safetensors" }) end
end)

t.test("WeightsOfAUserAreNoFilesOfAModel", function()
  local model, path = models.load(SOURCE .. "qwen3"), new_path()
  models.save(model, path)
  for _, name in ipairs { "model-backup.safetensors", "model_ema.safetensors", "adapter_model.safetensors" } do
    files.rename(path .. "/model.safetensors", path .. "/" .. name)
    t.raises("holds " .. name .. ", which is no file of a model", models.save, model, path)
    files.rename(path .. "/" .. name, path .. "/model.safetensors")
  end
end)

t.test("ALinkGivesWayAndWhereItLeadsStays", function()
  local model, path, target = models.load(SOURCE .. "qwen3"), new_path(), new_path()
  models.save(model, target)
  core.write_file(target .. "/notes.txt", { "mine" })
  local before = files.list(target)
  assert(os.execute(("ln -s '%s' '%s'"):format(target, path)) == 0)

  models.save(models.load(SOURCE .. "llama"), path)

  t.equal({ files.list(path), files.list(target) }, { before, before })
  t.equal(read(path .. "/notes.txt"), "mine")
  t.equal(models.load(target):state_dict(), model:state_dict())
end)

-- Everything that changes the disk is one of these. A save ends before the n-th of them, for each n, as a process that
-- is killed does: nothing cleans up behind it.
local CHANGES = { { files, "rename" }, { files, "remove" }, { files, "remove_folder" }, { files, "temporary_folder" },
  { core, "write_file" }, { core, "make_folder" }, { require "lockstep.core.safetensors", "write" } }

--- Returns whether fn() came to its end before the n-th change.
local function dies(n, fn)
  local real, count = {}, 0
  for i, change in ipairs(CHANGES) do
    local of, name = unpack(change)
    real[i] = of[name]
    of[name] = function(...)
      count = count + 1
      if count >= n then error("killed", 0) end
      return real[i](...)
    end
  end
  local ok, message = pcall(fn)
  for i, change in ipairs(CHANGES) do change[1][change[2]] = real[i] end
  if not ok and not tostring(message):find "killed" then error(message, 0) end
  return not ok
end

t.test("AtAnyMomentOfDeathNothingIsLost", function()
  local old, new = models.load(SOURCE .. "qwen3"), models.load(SOURCE .. "qwen3")
  torch.no_grad(function() new:head_weight():add_(1) end)
  local state_of_old, state_of_new = old:state_dict(), new:state_dict()
  local was_lost, n = 0, 0
  repeat
    n = n + 1
    local path = new_path()
    models.save(old, path)
    core.write_file(path .. "/tokenizer.json", { "a tokenizer" })
    core.write_file(path .. "/notes.txt", { "mine" })

    local died = dies(n, function() models.save(new, path) end)

    if #files.list(path) == 0 then -- between the two renames
      was_lost = was_lost + 1
      t.raises("a save into it was killed, and left the model in " .. path .. ".lockstep-save", models.load, path)
    else
      local state = models.load(path):state_dict()
      t.truthy(pcall(t.equal, state, state_of_old) or pcall(t.equal, state, state_of_new), "a model is there, whole")
    end
    -- The next one dies, too, wherever it came to, and the one after it does not.
    dies(n % 5 + 1, function() models.save(new, path) end)
    models.save(new, path, { max_shard_bytes = 12000 })
    t.equal(models.load(path):state_dict(), state_of_new)
    t.equal({ read(path .. "/tokenizer.json"), read(path .. "/notes.txt") }, { "a tokenizer", "mine" })
    t.equal(files.list(path .. ".lockstep-save"), {})
    t.equal(io.open(path .. ".lockstep-save"), nil)
  until not died
  t.equal(was_lost, 1)
  t.truthy(n > 8, n)
end)

t.test("ATextThatComesWhileTheModelIsWrittenStays", function()
  local model, path, sync = models.load(SOURCE .. "qwen3"), new_path(), files.sync
  models.save(model, path)
  files.sync = function(folder)
    core.write_file(path .. "/notes.txt", { "mine" })
    sync(folder)
  end
  local ok, message = pcall(models.save, model, path)
  files.sync = sync

  t.truthy(ok, message)
  t.equal(files.list(path), { "config.json", "model.safetensors", "notes.txt" })
end)

t.test("AFolderOfTheNameThatASaveUsesIsLeftAlone", function()
  local model, path = models.load(SOURCE .. "qwen3"), new_path()
  local work = path .. ".lockstep-save"
  core.make_folder(work .. "/old")
  core.write_file(work .. "/old/thesis.tex", { "x" })
  t.raises(work .. " is where a save keeps its files, and holds old/thesis.tex, which none wrote; move it away",
    models.save, model, path)

  core.write_file(work .. "/mine.txt", { "x" })
  t.raises("holds mine.txt, which none wrote; move it away", models.save, model, path)
  t.equal({ files.list(work), files.list(work .. "/old") }, { { "mine.txt", "old" }, { "thesis.tex" } })
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
