-- The run: its configuration (run.merge, which run.config gives the command line's --set to), its steps,
-- its folder. Named so because run_test.lua is what runs tests.

local core = require "lockstep.core"
local dist = require "lockstep.distributed"
local options = require "lockstep.options"
local run = require "lockstep.run"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local function defaults()
  return {
    steps = 400, lr = 1e-3, name = "digits", resume = false,
    betas = { 0.9, 0.999 }, files = { "a.jsonl" },
    text = { hidden = 64, rope = { theta = 1e4 } },
  }
end

-- Configuration -----------------------------------------------------------------------------------------

t.test("SettingsOverrideDefaultsAndKeepTheirTypes", function()
  local config = run.merge(defaults(), {
    { "steps", "12" }, { "lr", "3e-4" }, { "name", "007" }, { "resume", "true" }, { "text.hidden", "0x80" },
    { "text.rope.theta", "-1" },
  })

  t.equal(config.steps, 12)
  t.equal(config.lr, 3e-4)
  t.equal(config.name, "007")
  t.equal(config.resume, true)
  t.equal(config.text.hidden, 128)
  t.equal(config.text.rope.theta, -1)
end)

t.test("AnArgumentThatLooksLikeASettingIsAnError", function()
  local arguments = core.arguments
  core.arguments = function() return { "steps=13" } end -- luacheck: ignore
  local ok, message = pcall(run.config, { steps = 1 })
  local other = pcall(run.config, { lr = 1 }) -- another program's argument
  core.arguments = arguments -- luacheck: ignore
  t.truthy(not ok and message:find('the argument "steps=13" sets nothing; write --set steps=13', 1, true), message)
  t.equal(other, true)
end)

t.test("ArraysAreSplitAtCommasInTheTypeOfTheirFirstElement", function()
  local config = run.merge(defaults(), { { "betas", "0.5,0.7,0.9" }, { "files", "x.jsonl,7" } })

  t.equal(config.betas, { 0.5, 0.7, 0.9 })
  t.equal(config.files, { "x.jsonl", "7" })
end)

t.test("TheLastOfSeveralSettingsWinsAndDefaultsStayAsTheyAre", function()
  local given = defaults()

  t.equal(run.merge(given, { { "text.hidden", "1" }, { "text.hidden", "2" } }).text.hidden, 2)

  t.equal(given, defaults())
end)

t.test("AStringMayHoldWhateverStandsAfterTheEqualSign", function()
  t.equal(run.merge({ prompt = "" }, { { "prompt", "a = b, c.d" } }).prompt, "a = b, c.d")
end)

t.test("SettingsThatDoNotFitAreRefusedWithWhatWould", function()
  local cases = {
    { "step", "1", '--set step=1: the script has no such key; did you mean "steps"? (known: betas, files, lr, name, '
      .. "resume, steps, text.hidden, text.rope.theta)" },
    { "text.hiden", "1", 'did you mean "text.hidden"?' },
    { "text.hidden.size", "1", "the script has no such key" },
    { "text..hidden", "1", "the script has no such key" },
    { "", "1", "the script has no such key" },
    { "steps", "many", "--set steps=many: the value must be a number" },
    { "steps", "", "--set steps=: the value must be a number" },
    { "resume", "yes", "--set resume=yes: the value must be true or false" },
    { "betas", "0.9,x", "--set betas=x: the value must be a number" },
    { "betas", "1,,2", "--set betas=1,,2: element 2 of the list is empty" },
    { "files", "a,", "--set files=a,: element 2 of the list is empty" },
    { "files", "", "--set files=: element 1 of the list is empty" },
    { "betas", "[0.9,0.8]", "--set betas=[0.9,0.8]: a list has no brackets; write it as betas=a,b" },
    { "files", "{x}", "--set files={x}: a list has no brackets" },
    { "text", "1", "--set text=1: text is a group of keys; set one of them" },
  }
  for _, case in ipairs(cases) do t.raises(case[3], run.merge, defaults(), { { case[1], case[2] } }) end
  t.raises("--set tags=a: the script's value is an empty table", run.merge, { tags = {} }, { { "tags", "a" } })
end)

t.test("AWordMayStandForValuesOfAGroup", function()
  local function axes(...)
    local settings = {}
    for i, text in ipairs { ... } do settings[i] = { text:match "^(.-)=(.*)$" } end
    return run.merge({ axes = { tp = 1, pp = 1, shard = false } }, settings,
      { axes = { sharded = { shard = true }, plain = { shard = false } } }).axes
  end
  local sharded = axes("axes.tp=2", "axes=sharded")
  t.equal({ sharded.tp, sharded.pp, sharded.shard }, { 2, 1, true })
  t.equal(axes("axes=sharded", "axes=plain").shard, false)
  t.raises("run.config: presets.axes.typo: axes.shards must be a nil, as in the defaults, not a boolean", run.merge,
    { axes = { shard = false } }, { { "axes", "typo" } }, { axes = { typo = { shards = true } } })
  t.raises("--set axes=split: axes is a group of keys; set one of them (or a word: plain, sharded)", axes,
    "axes=split")
end)

t.test("NumbersAreFiniteAndTextIsUtf8SinceConfigJsonHoldsThem", function()
  for _, text in ipairs { "nan", "inf", "-inf", "1e400", "-nan" } do
    t.raises("--set lr=" .. text .. ": the value must be a finite number", run.merge, { lr = 1 }, { { "lr", text } })
    t.raises("the value must be a finite number", run.merge, { betas = { 0.9, 0.9 } }, { { "betas", "0.5," .. text } })
  end
  t.raises("the value must be text in UTF-8", run.merge, { name = "" }, { { "name", "\255" } })
end)

t.test("AWholeNumberIsNotRoundedSilently", function()
  local function given(text) return run.merge({ steps = 1 }, { { "steps", text } }).steps end
  local largest = 2 ^ 53 - 1
  t.equal({ given "9007199254740991", given "-9007199254740991", given "0x1fffffffffffff" },
    { largest, -largest, largest })
  t.equal({ given "1e16", given "2.5e20" }, { 1e16, 2.5e20 })
  for _, text in ipairs { "9007199254740993", "-9007199254740993", "9007199254740992", "0x20000000000001",
    "18446744073709551615" } do
    t.raises(("--set steps=%s: a whole number must be below 2^53"):format(text), given, text)
  end
  t.raises("a whole number must be below 2^53", run.merge, { seeds = { 1 } }, { { "seeds", "1,9007199254740993" } })
end)

t.test("ASettingThatTheCommandLineCannotGiveIsNamed", function()
  t.raises("--set layers=1: the script's value is a table, which the command line cannot give", run.merge,
    { layers = { { 1 }, { 2 } } }, { { "layers", "1" } })
end)

t.test("AMessageIsOneLineWhateverTheSettingHolds", function()
  t.raises([[--set st\n\x1b[2Jeps=1\n: the script has no such key]], run.merge, { steps = 1 },
    { { "st\n\27[2Jeps", "1\n" } })
  t.raises([[--set steps=a\nb: the value must be a number]], run.merge, { steps = 1 }, { { "steps", "a\nb" } })
end)

t.test("AnythingButAnArrayOfPairsIsRefused", function()
  t.raises("run.merge: the settings must be an array of pairs", run.merge, { a = 1 }, print)
  t.raises("run.merge: the settings must be an array of pairs", run.merge, { a = 1 })
  for _, setting in ipairs { 1, "a=1", { "a" }, { 1, 2 }, { "a", 2 } } do
    t.raises("run.merge: setting 2 must be a pair of strings", run.merge, { a = 1 }, { { "a", "1" }, setting })
  end
end)

-- bazel test --test_env=LOCKSTEP_FUZZ_SEED=7 //driver/lualib/lockstep/run:lockstep_run_test
t.test("AnySettingIsTakenAsItsTypeOrRefusedInOneLine", function()
  local seed = tonumber(os.getenv("LOCKSTEP_FUZZ_SEED")) or 20261121
  math.randomseed(seed)
  local keys = { "lr", "steps", "name", "resume", "betas", "files", "text.hidden", "text.name", "flags" }
  local values = { "1", "-1", "0.5", "1e3", "0x10", "nan", "inf", "-inf", "1e999", "true", "false", "yes", "", " ", ",",
    ",,", "0.9,0.95", "a", "a,b", "=", "\n", "\255\254", "größe", "\0", "%s", ".", "..", "\27[2J", ("9"):rep(400),
    "{1}", "nil" }
  local function piece(from) return from[math.random(#from)] end
  local function mutated(text)
    local kind, at = math.random(5), math.random(0, #text)
    if kind == 1 then return text:sub(1, at) .. string.char(math.random(0, 255)) .. text:sub(at + 1) end
    if kind == 2 then return text .. piece(values) end
    if kind == 3 then return text:sub(1, at) end
    return text
  end
  local function same_types(a, b, path)
    for key, value in pairs(a) do
      t.equal(type(rawget(b, key)), type(value), path .. key)
      if type(value) == "table" and value[1] == nil then same_types(value, b[key], path .. key .. ".") end
      for _, element in ipairs(type(value) == "table" and value[1] ~= nil and b[key] or {}) do
        t.equal(type(element), type(value[1]), path .. key)
      end
    end
  end
  local taken, refused = 0, 0
  for round = 1, 600 do
    local given = { lr = 0.1, steps = 3, name = "a", resume = false, betas = { 0.9, 0.95 }, files = { "x" },
      text = { hidden = 64, name = "b" }, flags = { true, false } }
    local key, value = piece(keys), mutated(piece(values))
    if math.random(4) == 1 then key = mutated(key) end
    local where = ("round %d of LOCKSTEP_FUZZ_SEED %d: %q=%q: "):format(round, seed, key, value)
    local ok, config = pcall(run.merge, given, { { key, value } })
    if ok then
      taken = taken + 1
      same_types(given, config, where)
      local json = core.json_encode(config)
      same_types(given, core.json_decode(json), where .. json)
    else
      refused = refused + 1
      local message = tostring(config):match("%-%-set .*") or ""
      t.truthy(#message > 10 and not message:find("%c"), where .. tostring(config))
    end
  end
  t.truthy(taken > 100 and refused > 100, ("%d were taken, %d refused"):format(taken, refused))
end)

t.test("ReadingAKeyThatIsNotThereIsAnErrorAtEveryDepth", function()
  local config = run.merge(defaults(), {})

  t.raises('config has no key "stepz" (known: betas, files, lr, name, resume, steps, text)',
    function() return config.stepz end)
  t.raises('config.text.rope has no key "base" (known: theta)', function() return config.text.rope.base end)
  t.equal(config.betas[3], nil)
end)

t.test("ConfigWritesWhatItReturnsIntoTheRunsFolder", function()
  local config = run.config(defaults())

  local written = core.json_decode(t.read_file(run.dir .. "/config.json"))

  t.equal(written, defaults())
  t.equal(config.text.hidden, 64)
  t.raises("run.config: defaults must be a table, not a nil", run.config)
end)

t.test("TheConfigOfAModelIsNotReplaced", function()
  core.make_folder(run.dir .. "/model")
  local own, path = run.dir, t.write_file("model/config.json", '{"architectures": ["A"], "model_type": "a"}')
  run.dir = path:match "^(.*)/"

  local message = t.raises("config.json is a model's; give the run a folder of its own", run.config, defaults())
  run.dir = own

  t.truthy(message:find(path, 1, true), message)
  t.equal(t.read_file(path), '{"architectures": ["A"], "model_type": "a"}')
end)

t.test("CountsAreCheckedAtTheStart", function()
  local function config(steps, r, least)
    return run.config({ steps = steps, lora = { r = r } }, { at_least = least or { steps = 1, ["lora.r"] = 0 } })
  end
  t.equal(config(1, 0).lora.r, 0)
  t.raises("run.config: steps must be a whole number of at least 1, not 0", config, 0, 0)
  t.raises("run.config: steps must be a whole number of at least 1, not 2.5", config, 2.5, 0)
  t.raises("run.config: lora.r must be a whole number of at least 0, not -1", config, 1, -1)
  t.raises("run.config: lora.r must be a whole number of at least 0, not 16", config, 1, "16")
  t.raises('run.config: at_least names "lora.rank", which the configuration lacks', config, 1, 1, { ["lora.rank"] = 0 })
  t.raises('run.config: unknown option "least"', run.config, {}, { least = {} })
end)

t.test("AConfigurationThatContainsItselfIsAnErrorThatSaysWhere", function()
  local optimizer = { lr = 1 }
  optimizer.groups = { optimizer }
  t.raises("run.config: config.optimizer.groups.1 is a table that contains itself", run.config,
    { optimizer = optimizer })
  local shared = { 1, 2 }
  t.equal(run.merge({ a = shared, b = shared }, {}).b[2], 2)
end)

t.test("NumbersOfAConfigurationAreFinite", function()
  t.raises("run.config: config.optimizer.lr is nan; expected a finite number", run.config,
    { optimizer = { lr = 0 / 0 } })
  t.raises("run.config: config.betas.2 is inf; expected a finite number", run.config, { betas = { 0.9, math.huge } })
end)

t.test("ThePolicyForValuesThatAreNotFiniteIsOneOfThree", function()
  t.raises('run.config: nonfinite must be "stop", "skip" or "go_on", not "ignore"', run.config,
    { nonfinite = "ignore" })
  t.raises('nonfinite must be "stop", "skip" or "go_on", not true', run.config, { nonfinite = true })
end)

-- Steps -------------------------------------------------------------------------------------------------

local function count_to(last)
  local n = 0
  return function()
    n = n + 1
    if n <= last then return n, "value " .. n end
  end
end

local function steps_of(...)
  local steps = {}
  for step, first, second in run:steps(...) do steps[#steps + 1] = { step, first, second } end
  return steps
end

t.test("StepsNumbersWhatTheLoaderYieldsFromZero", function()
  t.equal(steps_of(count_to(2)), { { 0, 1, "value 1" }, { 1, 2, "value 2" } })
  t.equal(steps_of(count_to(0)), {})
end)

t.test("EveryIsTrueAfterEachNStepsAndInTheLast", function()
  local function steps_when(n, total)
    local due = {}
    for step in run:steps(count_to(7), total) do
      if run:every(n) then due[#due + 1] = step end
    end
    return due
  end
  t.equal(steps_when(3, 7), { 2, 5, 6 })
  t.equal(steps_when(3, 6), { 2, 5 })
  t.equal(steps_when(1, 2), { 0, 1 })
  t.equal(steps_when(10, 7), { 6 })
  t.equal(steps_when(10, nil), {}) -- the last step is not known
  t.raises("run:every: call it in the body of a loop of run:steps", run.every, run, 3)
  for _ in run:steps(count_to(1)) do
    for _, n in ipairs { 0, -1, 1.5, "3" } do
      t.raises("run:every: expected a whole number of steps, at least 1, got " .. n, run.every, run, n)
    end
    t.raises("run:every is called with a colon", run.every, 3)
  end
end)

t.test("StepsEndsAtItsTotalWithoutAskingForMore", function()
  local asked = 0
  local function loader()
    asked = asked + 1
    return asked
  end

  t.equal(steps_of(loader, 3), { { 0, 1 }, { 1, 2 }, { 2, 3 } })

  t.equal(asked, 3)
  local steps, heard = t.listening(steps_of, loader, 0)
  t.equal({ steps, heard }, { {}, "lockstep: run:steps: total is 0: no step runs\n" })
end)

t.test("AFalseBatchIsABatch", function()
  local values = { false, true }

  t.equal(steps_of(function() return table.remove(values, 1) end), { { 0, false }, { 1, true } })
end)

t.test("ALoaderMayBeAnythingThatCanBeCalled", function()
  t.equal(steps_of(setmetatable({}, { __call = count_to(1) })), { { 0, 1, "value 1" } })
end)

t.test("AnythingButALoaderIsRefused", function()
  t.raises("run:steps is called with a colon", run.steps, count_to(1))
  t.raises("the loader must be a function that returns the next batch, not a table", run.steps, run, { 1, 2 })
  t.raises("the loader must be a function that returns the next batch, not a nil", run.steps, run)
  t.raises("total must be a whole number of steps, not a table", function() run:steps(ipairs { 1 }) end)
  for _, total in ipairs { -1, 0.5, 1 / 0, 0 / 0 } do
    t.raises("total must be a whole number of steps, not " .. total, run.steps, run, print, total)
  end
end)

t.test("TheRunsFolderIsThereWhenAskedForAndArgsAreTheScripts", function()
  local file = assert(io.open(run.dir .. "/probe", "w"))
  file:close()

  t.equal(run.dir:sub(1, 1), "/")
  t.truthy(run.args[1]:find("lockstep_run_test.lua", 1, true))
end)

-- Options -----------------------------------------------------------------------------------------------

t.test("OptionsOverrideDefaultsOfTheSameType", function()
  local known = { size = options.required, eps = 1e-5, bias = true, device = options.optional }

  t.equal(options.read("f", { size = 3, bias = false }, known), { size = 3, eps = 1e-5, bias = false })
  t.equal(options.read("f", { size = {}, device = "cpu" }, known),
    { size = {}, eps = 1e-5, bias = true, device = "cpu" })
  t.raises('f: the option "size" is missing', options.read, "f", nil, known)
  t.raises('f: eps must be a number, not "1"', options.read, "f", { size = 1, eps = "1" }, known)
  t.raises('f: bias must be a boolean, not 1', options.read, "f", { size = 1, bias = 1 }, known)
  t.raises('f: unknown option "epss"; did you mean "eps"? (known: bias, device, eps, size)', options.read, "f",
    { size = 1, epss = 1 }, known)
  t.raises('f: unknown option "1"', options.read, "f", { 5 }, known)
  t.raises('f: options must be a table, not "x"', options.read, "f", "x", known)
end)

t.test("AGroupOfAConfigurationServesAsOptions", function()
  local config = run.merge({ norm = { eps = 1e-6 } }, {})

  t.equal(options.read("f", config.norm, { eps = 1e-5, bias = true }), { eps = 1e-6, bias = true })
  -- A function in C++ accepts it too.
  t.equal(dist.all_reduce(torch.ones(2), "sum", run.merge({ reduce = {} }, {}).reduce):totable(), { 1, 1 })
end)
