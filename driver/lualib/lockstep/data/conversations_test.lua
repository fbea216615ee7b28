--- data.conversations: each form gives the rows that lockstep.text reads one by one; data sets of the Hub's cache.

local core = require "lockstep.core"
local data = require "lockstep.data"
local run = require "lockstep.run"
local t = require "lockstep.testing"
local text = require "lockstep.text"

local function user(content) return { role = "user", content = content } end
local function assistant(content) return { role = "assistant", content = content } end
local function turn(from, value) return { from = from, value = value } end

--- Writes samples as lines below the run's folder, and returns the path.
local function write(name, samples)
  local path = run.dir .. "/" .. name
  core.make_folder(path:match "^(.*)/")
  data.save_jsonl(path, samples)
  return path
end

local CHAT = { user "a", assistant "b" }

-- A sample of each form, its kind, and the form's name.
local FORMS = {
  { { messages = CHAT }, "conversation", "messages" },
  { { conversations = CHAT, system = "s" }, "conversation", "messages" },
  { { conversations = { turn("human", "a"), turn("gpt", "b") }, system = "s" }, "conversation", "ShareGPT" },
  { { instruction = "a", input = "x", output = "b" }, "conversation", "Alpaca" },
  { { prompt = "a", completion = "b" }, "conversation", "prompt/completion" },
  { { prompt = { user "a" }, completion = { assistant "b" } }, "conversation", "prompt/completion" },
  { { text = "ab" }, "conversation", "text" },
  { { prompt = "a", chosen = "b", rejected = "c" }, "preference", "preference pairs" },
  { { chosen = CHAT, rejected = { user "a", assistant "c" } }, "preference", "preference pairs" },
  { { conversations = { turn("human", "a") }, chosen = turn("gpt", "b"), rejected = turn("gpt", "c") }, "preference",
    "preference pairs" },
  { { prompt = "a" }, "prompt", "prompt" },
  { { prompt = { user "a" } }, "prompt", "prompt" },
  { { question = "a", answer = "b" }, "prompt", "prompt" },
}

t.test("EachFormIsRecognisedAndGivesTheRowsOfLockstepText", function()
  local tools = { { type = "function", ["function"] = { name = "f" } } }
  for i, case in ipairs(FORMS) do
    local sample, kind, form = unpack(case)
    sample.tools = i % 2 == 0 and tools or core.json_encode(tools)
    local source = data.conversations(write("form.jsonl", { sample, sample, sample }))
    local row = source[2]
    t.equal({ #source, source.form, source.kind }, { 3, form, kind })
    t.equal(row.tools, tools)
    if kind == "preference" then
      t.equal(row, text.preference(sample))
      t.equal({ row.chosen, row.rejected, row.first }, { CHAT, { user "a", assistant "c" }, 2 })
    elseif kind == "prompt" then
      t.equal(row.messages, text.prompt(sample))
    else
      t.equal(row, text.row(sample))
      t.equal(text.row(row), row) -- chat:encode_sample reads a row again
    end
    for name in pairs { form = true, kind = true } do
      t.equal(data.conversations({ sample }, { [name] = case[name == "kind" and 2 or 3] })[1].tools, tools)
    end
  end
end)

t.test("OtherColumnsStayUnlessARowMeansSomethingElseByThem", function()
  local sample = { messages = CHAT, prompt = "a", text = "a", id = 7, source = data.null, answer = { 1, 2 } }
  t.equal(data.conversations({ sample })[1], { messages = CHAT, id = 7, answer = { 1, 2 } })
end)

t.test("AFormOrAKindThatIsGivenIsTheOnlyOne", function()
  local ultra = { prompt = "a", messages = CHAT, chosen = CHAT, rejected = { user "a", assistant "c" } }
  t.equal(data.conversations({ ultra }).form, "preference pairs")
  t.equal(data.conversations({ ultra }, { kind = "conversation" })[1].messages, CHAT)
  t.equal(data.conversations({ ultra }, { form = "messages" }).form, "messages")
  local function complains(message, samples, opts)
    return t.raises("data.conversations: " .. message, data.conversations, samples, opts)
  end
  local mixed = data.conversations({ { instruction = "a", output = "b" }, { messages = CHAT } }, { form = "Alpaca" })
  t.raises('sample 2: data.conversations: this is not of the form "Alpaca": its keys are messages. Known are ',
    function() return mixed[2] end)
  complains('there is no form "alpaca" (known: Alpaca, ShareGPT, messages, preference pairs, prompt, '
    .. "prompt/completion, text)", { ultra }, { form = "alpaca" })
  complains('kind must be "conversation", "preference" or "prompt", not chat', { ultra }, { kind = "chat" })
  complains("this is no known form of a sample: its keys are id. Known are messages; ShareGPT", { { id = 1 } })
  complains("there are no samples in " .. run.dir .. "/empty.jsonl", write("empty.jsonl", {}))
  local broken = run.dir .. "/broken.jsonl"
  core.write_file(broken, { '{"messages": [\n' })
  local message = t.raises(broken .. ", line 1: syntax error", data.conversations, broken)
  t.equal(select(2, message:gsub("%.lua:%d+: ", "")), 1, message) -- one place in a script
end)

t.test("ASampleThatCannotBeReadIsNamedAndTheOthersAreRead", function()
  local wrong = { messages = { user "a", { role = "gpt", content = "b" } } }
  local path = write("wrong.jsonl", { wrong, { messages = CHAT }, wrong })
  local source = data.conversations(path)
  t.equal({ source.form, source[2].messages }, { "messages", CHAT })
  t.raises(path .. ', line 3: data.conversations: message 2 of "messages" has the unknown role "gpt"', function()
    return source[3]
  end)
  t.equal(source:place(3), path .. ", line 3")
  t.raises("conversations[4]: it has the samples 1 to 3", function() return source[4] end)
  t.equal(#data.conversations(path, { roles = "gpt" })[3].messages, 2)
  t.raises(path .. ", line 1: data.conversations: ", data.conversations, write("wrong.jsonl", { wrong }))
end)

t.test("RowsOfParquetFilesLackTheKeysThatAreNull", function()
  local source = data.conversations "driver/data/parquet/testdata/types.parquet"
  local row = source[1]
  t.equal(row.messages[2], { role = "assistant", weight = 0.5 })
  t.equal({ row.messages[1].content[2], row.ints }, { { type = "text", text = "hi" }, { 1, data.null, 3 } })
  t.equal(source:place(2), "driver/data/parquet/testdata/types.parquet, row 2")
end)

t.test("ALoaderReadsRowsAlsoInWorkersAndInParts", function()
  local samples = {}
  for i = 1, 20 do samples[i] = { prompt = "a", completion = tostring(i), id = i } end
  local train, held_out = data.split(data.conversations(write("loaded.jsonl", samples)), { held_out = 5, seed = 1 })
  local seen = {}
  for i = 1, 5 do seen[held_out[i].id] = true end
  for _, workers in ipairs { 0, 2 } do
    local found = {}
    for row in data.loader { source = train, workers = workers, epochs = 1 } do
      t.equal(row.messages[2].content, tostring(row.id))
      t.equal(seen[row.id] or found[row.id], nil)
      found[row.id] = true
    end
  end
  t.truthy(held_out:place(1):find "loaded.jsonl, line %d+$")
end)

t.test("WhatWasRecognisedIsPrintedWithTheFirstSampleAndTheColumnsThatAreNotRead", function()
  local row = { conversations = { turn("human", "ab"), turn("gpt", "cd") }, id = 7, source = data.null }
  local tokenizer = { stream = function()
    return { push = function(_, id) return string.char(id) end, finish = function() return "" end }
  end }
  local function encode(sample)
    local shown = sample.messages[1].content .. sample.messages[2].content
    return { input_ids = { shown:byte(1, -1) }, loss_mask = { 0, 0, 1, 1 } }
  end
  local reads
  local printed = t.printed(function()
    reads = data.conversations({ row, row }):show { encode = encode, tokenizer = tokenizer }
  end)
  t.truthy(printed:find("data: ShareGPT (conversations), 2 samples; not read: id\n  first: ab[[cd]]\n", 1, true),
    printed)
  t.equal(reads, { "chat_template_kwargs", "chosen", "documents", "first", "lockstep_is_completed", "messages",
    "prompt",
    "rejected", "text", "tools", "id" })
end)

t.test("QuestionsOfAFileAreATaskOfGrpo", function()
  local dir = run.dir .. "/model"
  core.make_folder(dir)
  core.write_file(dir .. "/tokenizer.json", { t.read_file "driver/text/testdata/qwen2.json" })
  core.write_file(dir .. "/chat_template.jinja", { "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    .. "{% if add_generation_prompt %}assistant: {% endif %}" })
  local tokenizer = text.tokenizer(dir)
  local path = write("questions.jsonl", { { question = "2 + 2?", answer = "2 + 2 is\n#### 4" },
    { prompt = { user "3 + 3?" }, answer = 6 }, { prompt = "5?" }, { prompt = { assistant "6?" }, answer = 6 } })
  local task
  local printed = t.printed(function()
    task = dofile("scripts/questions.lua").new(dir, false, { data = path, split = "" })
  end)
  t.truthy(printed:find("data: question, 4 samples\n  first: user: 2 + 2?\n          assistant: \n", 1, true), printed)
  for number, wanted in ipairs { { "2 + 2?", "4" }, { "3 + 3?", "6" } } do
    local problem = task.problem(number + 4)
    t.equal(tokenizer:decode(problem.prompt.input_ids:totable()), ("user: %s\nassistant: "):format(wanted[1]))
    local answer = wanted[2]
    for said, reward in pairs { [answer] = 1, ["It is " .. answer .. ". "] = 1, ["1" .. answer] = 0,
      [answer .. "0"] = 0, [""] = 0 } do
      t.equal({ said, task.reward(problem, tokenizer:encode(said)) }, { said, reward })
    end
  end
  t.raises(path .. ', line 3: a question needs an "answer"', task.problem, 3)
  t.raises(path .. ", line 4: the prompt ends with the assistant", task.problem, 4)
end)

-- The Hub's cache -----------------------------------------------------------------------------------

--- Calls fn(...) with a cache of the Hub in the run's folder.
local function with_hub(fn, ...)
  local getenv = os.getenv
  os.getenv = function(name) -- luacheck: ignore
    return name == "HF_HUB_CACHE" and run.dir .. "/hub" or getenv(name)
  end
  local results = { pcall(fn, ...) }
  os.getenv = getenv -- luacheck: ignore
  if not results[1] then error(results[2], 0) end
  return unpack(results, 2)
end

--- Puts files into a snapshot. Each has one conversation, whose answer is the file's name.
local function put(name, files)
  local repository = "hub/datasets--" .. name:gsub("/", "--")
  core.make_folder(run.dir .. "/" .. repository .. "/refs")
  core.write_file(run.dir .. "/" .. repository .. "/refs/main", { "abc" })
  for _, file in ipairs(files) do
    write(repository .. "/snapshots/abc/" .. file, { { messages = { user "a", assistant(file) } } })
  end
end

local function answers(name, opts)
  local source, found = with_hub(data.conversations, name, opts), {}
  for i = 1, #source do found[i] = source[i].messages[2].content end
  return found
end

t.test("ADataSetOfTheHubIsTheSplitsFilesInTheCache", function()
  put("a/sharded", { "data/train_sft-00000-of-00002.jsonl", "data/train_sft-00001-of-00002.jsonl",
    "data/test_sft-00000-of-00001.jsonl", "README.jsonl", ".gitattributes" })
  t.equal(answers("a/sharded", { split = "train_sft" }),
    { "data/train_sft-00000-of-00002.jsonl", "data/train_sft-00001-of-00002.jsonl" })
  t.raises('data.conversations: a/sharded: there is no split "train"; give split = "test_sft", or one of "train_sft"',
    answers, "a/sharded")

  put("a/words", { "train.jsonl", "valid.jsonl", "my-eval_set.jsonl", "dataset_info.json" })
  t.equal(answers "a/words", { "train.jsonl" })
  t.equal(answers("a/words", { split = "validation" }), { "valid.jsonl" })
  t.equal(answers("a/words", { split = "test" }), { "my-eval_set.jsonl" })

  put("a/folders", { "train/one.jsonl", "train/two.jsonl", "dev/one.jsonl" })
  t.equal(answers "a/folders", { "train/one.jsonl", "train/two.jsonl" })

  put("a/plain", { "chats.jsonl" })
  t.equal(answers "a/plain", { "chats.jsonl" })
  t.equal(answers("a/plain", { split = "" }), { "chats.jsonl" })

  put("a/subsets", { "main/train-00000-of-00001.jsonl", "socratic/train-00000-of-00001.jsonl" })
  t.raises('a/subsets: the split "train" has files in several folders; give a/subsets/main or a/subsets/socratic',
    answers, "a/subsets")
  t.equal(answers "a/subsets/socratic", { "socratic/train-00000-of-00001.jsonl" })
  t.raises("data.conversations: a/subsets has no folder other", answers, "a/subsets/other")
end)

t.test("AFolderLikeOneOfTheHubHasSplitsToo", function()
  local folder = run.dir .. "/hub/datasets--a--words/snapshots/abc"
  t.equal(answers(folder, { split = "validation" }), { "valid.jsonl" })
  t.raises("a split is of a folder or of a name of the Hub, not of " .. folder .. "/train.jsonl",
    data.conversations, folder .. "/train.jsonl", { split = "train" })
end)

t.test("ASourceKnowsTheFolderOfItsFirstFile", function()
  local folder = run.dir .. "/hub/datasets--a--folders/snapshots/abc"
  t.equal(data.conversations(folder, { split = "train" }).folder, folder .. "/train")
  t.equal(data.conversations(folder .. "/dev/*.jsonl").folder, folder .. "/dev")
  t.equal(data.conversations({ folder .. "/dev/one.jsonl", folder .. "/train/one.jsonl" }).folder, folder .. "/dev")
  t.equal(data.conversations({ { messages = CHAT } }).folder, ".")
end)

t.test("ANameThatIsNotThereIsNamedWithTheCommandThatDownloadsIt", function()
  t.raises(("data.conversations: a/none is neither a folder here nor in %s/hub; to download it: hf download "
    .. "--repo-type dataset a/none"):format(run.dir), answers, "a/none")
  t.raises("data.conversations: there is no file or folder none, and a name of the Hub would be OWNER/DATASET",
    answers, "none")
  put("a/nothing", {})
  core.make_folder(run.dir .. "/hub/datasets--a--nothing/snapshots/abc")
  t.raises("a/nothing: there is no file of data in ", answers, "a/nothing")
end)
