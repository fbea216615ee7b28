-- JSON files, read and written.

local data = require "lockstep.data"
local run = require "lockstep.run"
local t = require "lockstep.testing"

local read, write = t.read_file, t.write_file

t.test("AFileIsOneValueOfLua", function()
  local path = write("config.json",
    '{"hidden_size": 64,\n "tie": true, "rope": null, "layers": ["a", "b"], "eps": 1e-6}\n')

  t.equal(data.json(path), { hidden_size = 64, tie = true, rope = data.null, layers = { "a", "b" }, eps = 1e-6 })
end)

t.test("AValueIsReadFromAPipe", function()
  local pipe = run.dir .. "/pipe"
  assert(os.execute(("mkfifo '%s'; echo '[1, 2]' >'%s' &"):format(pipe, pipe)) == 0)

  t.equal(data.json(pipe), { 1, 2 })
end)

t.test("MistakesNameTheFileAndThePlace", function()
  t.raises("data.json: cannot open " .. run.dir .. "/none.json: No such file or directory", data.json,
    run.dir .. "/none.json")
  t.raises("data.json: cannot open " .. run.dir .. ": Is a directory", data.json, run.dir)
  t.raises("data.json: the path must be a string, not a table", data.json, {})
  assert(os.execute(("ln -s /dev/zero '%s/zero.json'"):format(run.dir)) == 0)
  t.raises("data.json: cannot open " .. run.dir .. "/zero.json: it is not a regular file", data.json,
    run.dir .. "/zero.json")
  local path = write("bad.json", '{"a": 1,\n "b" 2}')
  t.raises(path .. ": syntax error while parsing object separator - unexpected number literal; expected ':' " ..
    "(line 2, at byte 14 of 16)", data.json, path)
  local empty = write("empty.json", "")
  t.raises(empty .. ": the text is empty", data.json, empty)
end)

t.test("LinesAreWrittenAsTheyAreRead", function()
  local path, values = run.dir .. "/lines.jsonl", { { text = "a\nb" }, { n = { 1, 2.5 } }, 3, "x" }

  data.save_jsonl(path, values)

  local seen = {}
  for value in data.jsonl(path) do seen[#seen + 1] = value end
  t.equal(seen, values)
  t.raises("data.save_jsonl: the path must be a string, not a nil", data.save_jsonl)
  t.raises("data.save_jsonl: the values must be an array, not a string", data.save_jsonl, path, "text")
  for expected, given in pairs {
    [" without holes, but [2] is nil"] = { 1, nil, 3 }, [", but 0 is a key"] = { [0] = 5, 6 },
    [', but "text" is a key; put a single value in braces'] = { text = "a" }, [", but 1.5 is a key"] = { 1, [1.5] = 2 },
  } do
    t.raises("data.save_jsonl: the values must be an array" .. expected, data.save_jsonl, path, given)
  end
  t.raises("json: [2].n[1] is nan or infinite", data.save_jsonl, path, { 1, { n = { 0 / 0 } } })
  t.equal(#t.read_file(path), 36)
end)

t.test("WhatIsSavedReadsBackTheSame", function()
  local value = { a = { 1, 2.5, "x" }, b = { c = data.null, d = false }, text = "grüße\n" }
  local path = run.dir .. "/saved.json"

  data.save_json(path, value)
  t.equal(data.json(path), value)
  t.equal(read(path):sub(-1), "\n")
  t.equal(#read(path):gsub("[^\n]", ""), 1)

  data.save_json(path, { a = { b = 1 } }, { indent = 2 })
  t.equal(read(path), '{\n  "a": {\n    "b": 1\n  }\n}\n')
end)

t.test("AValueThatJsonCannotHoldLeavesTheOldFileAlone", function()
  local path = run.dir .. "/kept.json"
  data.save_json(path, { old = true })

  t.raises("f is a function, which has no form in JSON", data.save_json, path, { f = print })
  t.raises('data.save_json: unknown option "indnet"; did you mean "indent"?', data.save_json, path, {}, { indnet = 2 })

  t.equal(data.json(path), { old = true })
end)

t.test("OrderAndEmptyArraysSurviveAndCanBeSet", function()
  local path = write("ordered.json", '{"z": 1.0, "a": [], "m": {"y": 1, "x": 2}}')
  data.save_json(path, data.json(path))
  t.equal(read(path), '{"z":1.0,"a":[],"m":{"y":1,"x":2}}\n')

  local tool = data.ordered({ name = "now", required = data.array {}, description = "x" }, { "name", "description" })
  data.save_json(path, { tool })
  t.equal(read(path), '[{"name":"now","description":"x","required":[]}]\n')

  t.raises("data.array: expected a table, got a nil", data.array)
  t.raises("data.ordered: expected a table, got a number", data.ordered, 1, {})
  t.raises("the keys must be an array of strings, got a nil", data.ordered, {})
  t.raises("data.ordered: key 1 must be a string, got a number", data.ordered, {}, { 1 })
end)

t.test("NumbersThatJsonLacksAreRefused", function()
  t.raises("json: loss is nan or infinite", data.save_json, run.dir .. "/nan.json", { loss = 0 / 0 })
end)
