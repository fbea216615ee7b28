-- One lookup of a model's folder, for everything that takes one.

local core = require "lockstep.core"
local images = require "lockstep.images"
local lora = require "lockstep.lora"
local models = require "lockstep.models"
local run = require "lockstep.run"
local t = require "lockstep.testing"
local text = require "lockstep.text"

local read = t.read_file

--- Puts the files of a vision-language model into the cache of Hugging Face, under a revision; returns their folder.
local function put_into_cache(name, revision, is_main)
  local repository = run.dir .. "/hub/models--" .. name:gsub("/", "--")
  local folder = repository .. "/snapshots/" .. revision
  core.make_folder(folder)
  for _, file in ipairs { "config.json", "model.safetensors" } do
    core.write_file(folder .. "/" .. file, { read("tests/models/qwen3_vl/" .. file) })
  end
  core.write_file(folder .. "/tokenizer.json", { read "driver/text/testdata/qwen2.json" })
  core.write_file(folder .. "/chat_template.jinja", { "{% for m in messages %}{{ m.content }}{% endfor %}" })
  core.write_file(folder .. "/preprocessor_config.json", { '{"image_processor_type": "Qwen2VLImageProcessor"}' })
  core.make_folder(repository .. "/refs")
  if is_main then core.write_file(repository .. "/refs/main", { revision }) end
  return folder
end

--- Calls fn(...) with other variables of the environment.
local function with_variables(variables, fn, ...)
  local getenv = os.getenv
  os.getenv = function(name) return variables[name] end -- luacheck: ignore
  local results = { pcall(fn, ...) }
  os.getenv = getenv -- luacheck: ignore
  if not results[1] then error(results[2], 0) end
  return unpack(results, 2)
end

require("lockstep.core.files").remove(run.dir .. "/hub")
local HUB = { HF_HUB_CACHE = run.dir .. "/hub" }

-- The functions that take a model's folder.
local READERS = {
  ["models.load"] = models.load, ["text.tokenizer"] = text.tokenizer, ["text.chat"] = text.chat,
  ["images.processor"] = images.processor,
  ["lora.load"] = function(name) return lora.load(models.load "tests/models/qwen3_vl", name) end,
}

t.test("ANameOfTheHubIsTheMainRevisionInTheCache", function()
  put_into_cache("Some/Model_1.5", "aaa", false)
  local folder = put_into_cache("Some/Model_1.5", "bbb", true)

  with_variables(HUB, function()
    t.equal(models.load("Some/Model_1.5"):state_dict(), models.load(folder):state_dict())
    t.equal(text.tokenizer("Some/Model_1.5"):encode "Hello", text.tokenizer(folder):encode "Hello")
    t.equal(text.chat("Some/Model_1.5").dir, folder)
    t.equal(text.chat("Some/Model_1.5"):encode { { role = "user", content = "Hello" } },
      text.chat(folder):encode { { role = "user", content = "Hello" } })
    t.equal(images.processor("Some/Model_1.5").config, images.processor(folder).config)
    t.raises(folder .. "/adapter_config.json", READERS["lora.load"], "Some/Model_1.5")
  end)
end)

t.test("TheCacheIsWhereTheLibrariesOfHuggingFaceHaveIt", function()
  local folder = put_into_cache("An/Other", "aaa", true)
  core.make_folder(run.dir .. "/xdg/huggingface")
  os.execute(("ln -sfn ../../hub '%s/xdg/huggingface/hub'"):format(run.dir))

  for _, variables in ipairs {
    HUB, { HF_HOME = run.dir }, { XDG_CACHE_HOME = run.dir .. "/xdg" },
    { HF_HUB_CACHE = run.dir .. "/hub", HF_HOME = "/nowhere" }, { HF_HUB_CACHE = "", HF_HOME = run.dir },
  } do
    local found = with_variables(variables, text.chat, "An/Other").dir
    t.equal(read(found .. "/tokenizer.json"), read(folder .. "/tokenizer.json"))
  end
end)

t.test("ASingleRevisionNeedsNoMainOne", function()
  local folder = put_into_cache("Some/Pinned", "abc", false)
  t.equal(with_variables(HUB, text.chat, "Some/Pinned").dir, folder)

  put_into_cache("Some/Pinned", "def", false)
  t.raises("Some/Pinned has 2 revisions in " .. run.dir .. "/hub/models--Some--Pinned and no main one; give the folder "
    .. "of one: snapshots/abc, snapshots/def", with_variables, HUB, text.chat, "Some/Pinned")
end)

t.test("WhatIsNowhereIsNamedWithTheCommandThatDownloadsIt", function()
  for caller, reader in pairs(READERS) do
    t.raises(("%s: Some/Absent is neither a folder here nor in %s/hub; to download it: hf download Some/Absent")
      :format(caller, run.dir), with_variables, HUB, reader, "Some/Absent")
    t.raises(caller .. ": there is no folder no/such/folder, and a name of the Hub would be OWNER/MODEL", reader,
      "no/such/folder")
    t.raises(caller .. ": there is no folder , and", reader, "")
    t.raises(caller .. ": expected a folder, or OWNER/MODEL of the Hub; got a number", reader, 3)
  end
end)

t.test("AFolderComesBeforeTheCache", function()
  t.equal(with_variables({}, text.chat, put_into_cache("Some/Own", "aaa", true) .. "/").tokens, {})
  t.equal(#with_variables({}, text.tokenizer, "driver/text/testdata/qwen2.json"):encode "Hello" > 0, true)
end)
