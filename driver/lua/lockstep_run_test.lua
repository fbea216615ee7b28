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
    { "text", "1", "--set text=1: text is a group of keys; set one of them" },
  }
  for _, case in ipairs(cases) do t.raises(case[3], run.merge, defaults(), { { case[1], case[2] } }) end
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

  local file = assert(io.open(run.dir .. "/config.json"))
  local written = core.json_decode(file:read("*a"))
  file:close()

  t.equal(written, defaults())
  t.equal(config.text.hidden, 64)
  t.raises("run.config: defaults must be a table, not a nil", run.config)
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

t.test("StepsEndsAtItsTotalWithoutAskingForMore", function()
  local asked = 0
  local function loader()
    asked = asked + 1
    return asked
  end

  t.equal(steps_of(loader, 3), { { 0, 1 }, { 1, 2 }, { 2, 3 } })

  t.equal(asked, 3)
  t.equal(steps_of(loader, 0), {})
end)

t.test("AFalseBatchIsABatch", function()
  local values = { false, true }

  t.equal(steps_of(function() return table.remove(values, 1) end), { { 0, false }, { 1, true } })
end)

t.test("ALoaderMayBeAnythingThatCanBeCalled", function()
  t.equal(steps_of(setmetatable({}, { __call = count_to(1) })), { { 0, 1, "value 1" } })
end)

t.test("WhatIsNoLoaderIsRefused", function()
  t.raises("run:steps is called with a colon", run.steps, count_to(1))
  t.raises("the loader must be a function that returns the next batch, not a table", run.steps, run, { 1, 2 })
  t.raises("the loader must be a function that returns the next batch, not a nil", run.steps, run)
  t.raises("total must be a number of steps, not a table", function() run:steps(ipairs { 1 }) end)
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
  -- Of a function in C++ too.
  t.equal(dist.all_reduce(torch.ones(2), "sum", run.merge({ reduce = {} }, {}).reduce):totable(), { 1, 1 })
end)
