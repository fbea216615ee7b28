-- data.source and data.mix: samples by number, whatever file they are in. Indexes are source_test.cc's.

local data = require "lockstep.data"
local core = require "lockstep.core"
local run = require "lockstep.run"
local t = require "lockstep.testing"

local write = t.write_file

local function open(path, opts)
  opts = opts or {}
  opts.cache = run.dir .. "/cache"
  return data.source(path, opts)
end

local function all(source)
  local samples = {}
  for i = 1, #source do samples[i] = source[i] end
  return samples
end

local function octal(number, digits) return ("%0" .. digits .. "o"):format(number) end

--- A member of a tar archive.
local function member(name, content)
  local header = name .. ("\0"):rep(100 - #name) .. octal(420, 7) .. "\0" .. ("0000000\0"):rep(2) .. octal(#content, 11)
    .. "\0" .. octal(0, 11) .. "\0" .. "        " .. "0" .. ("\0"):rep(100) .. "ustar\00000"
  header = header .. ("\0"):rep(512 - #header)
  local sum = 0
  for i = 1, 512 do sum = sum + header:byte(i) end
  header = header:sub(1, 148) .. octal(sum, 6) .. "\0 " .. header:sub(157)
  return header .. content .. ("\0"):rep(-#content % 512)
end

local TAR_END = ("\0"):rep(1024)

-- Samples -------------------------------------------------------------------------------------------------

t.test("AFileThatIsOneArrayHasASampleForEachElement", function()
  local path = write("alpaca.json",
    '[\n  {"instruction": "Say [hi]", "input": ""},\n  {"instruction": 2}, {"x": 1e}\n]\n')
  local source = open(path)

  t.equal(#source, 3)
  t.equal(source[1], { instruction = "Say [hi]", input = "" })
  t.equal(source[2], { instruction = 2 })
  t.equal(source:place(2), path .. ", element 2")
  t.raises(path .. ", element 3: ", function() return source[3] end)
  t.raises(path .. ' is one JSON array, and not one value per line; data.source(path, { format = "json" })',
    data.jsonl(path))
  t.equal(data.jsonl(write("arrays.jsonl", "[1, 2]\n"))(), { 1, 2 })
end)

t.test("ASampleOfJsonLinesIsTheTableOfItsLine", function()
  local source = open(write("a.jsonl", '{"id": 1, "text": "caf\195\169"}\n\n{"id": 2, "none": null}\r\n[1, 2]'))

  t.equal(#source, 3)
  t.equal(source[3], { 1, 2 })
  t.equal(source[1], { id = 1, text = "caf\195\169" })
  t.equal(source[2], { id = 2, none = core.null })
  t.equal(source:place(2), run.dir .. "/a.jsonl, line 3")
end)

t.test("ASampleOfTextIsItsLineOrTheFile", function()
  local path = write("a.txt", "one\r\ntwo")

  t.equal(all(open(path)), { { text = "one" }, { text = "two" } })
  t.equal(all(open({ path, path }, { format = "text" })), { { text = "one\r\ntwo" }, { text = "one\r\ntwo" } })
  t.equal(#open(write("empty.txt", "")), 0)
end)

t.test("AStarNamesFilesOfAFolder", function()
  for i, name in ipairs { "s-1.jsonl", "s-2.jsonl", "s-2.txt", "t-1.jsonl", ".s-3.jsonl" } do
    write(name, ('{"id": %d}\n'):format(i))
  end
  write("a+b.md", "one\ntwo")
  write("aab.md", "three")

  t.equal(all(open(run.dir .. "/s-*.jsonl")), { { id = 1 }, { id = 2 } })
  t.equal(all(open { run.dir .. "/*-1.jsonl", run.dir .. "/s-2.jsonl" }), { { id = 1 }, { id = 4 }, { id = 2 } })
  t.equal(all(open(run.dir .. "/a+*.md", { format = "text" })), { { text = "one\ntwo" } })
  t.raises("data.source: no file matches " .. run.dir .. "/u-*.jsonl", open, run.dir .. "/u-*.jsonl")
  t.raises("data.source: path 2 must be a string, not a number", open, { run.dir .. "/a+b.md", 5 })
end)

t.test("ASampleOfATarShardHasItsMembersByField", function()
  local members = member("d/1.cls", "7") .. member("d/1.json", '{"a": [1]}') .. member("d/2.JPG", "\0\255")
  local path = write("a.tar", members .. TAR_END)

  local first = { __key__ = "d/1", cls = "7", json = { a = { 1 } } }
  t.equal(all(open(path)), { first, { __key__ = "d/2", jpg = "\0\255" } })
  t.raises("cut.tar: the archive is cut short", open, write("cut.tar", members))
end)

t.test("ABadLineIsAnErrorWithFileAndLine", function()
  local source = open(write("bad.jsonl", '{"id": 1}\n{"id": \n7\n{"id": 12345678901234567890}\n{"a": "\255"}\n'))
  local path = run.dir .. "/bad.jsonl, line "

  t.equal(source[1], { id = 1 })
  t.raises(path .. "2: ", function() return source[2] end)
  t.raises(path .. "3: expected an object or an array, got the number 7", function() return source[3] end)
  t.raises(path .. "4: the integer 12345678901234567890", function() return source[4] end)
  t.raises(path .. "5: ", function() return source[5] end)
end)

t.test("ABadMemberOfATarShardIsNamed", function()
  local source = open(write("bad.tar", member("1.json", "{") .. member("2.txt", "x") .. TAR_END))

  t.raises("bad.tar, member 1.json: ", function() return source[1] end)
  t.equal(source[2].txt, "x")
end)

t.test("OtherNumbersAndMistakesAreErrors", function()
  local source = open(write("one.jsonl", "{}"))
  t.raises("source[0]: the source has the samples 1 to 1", function() return source[0] end)
  t.raises("source[2]", function() return source[2] end)
  t.raises("whole", function() return source[1.5] end)
  t.equal(source.nothing, nil)
  t.raises("not a number", data.source, 5)
  t.raises("the list of files is empty", data.source, {})
  t.raises("there is no such file", data.source, run.dir .. "/none.jsonl")
  t.raises('unknown option "fromat"; did you mean "format"', data.source, "x.jsonl", { fromat = "jsonl" })
end)

t.test("AFileThatChangesIsAnError", function()
  local source = open(write("changing.jsonl", "{}\n{}\n"))
  write("changing.jsonl", "{}\n{}\n{}\n")

  t.raises("changing.jsonl has changed since it was opened: it had 6 bytes, and has 9", function() return source[1] end)
  t.equal(#open(run.dir .. "/changing.jsonl"), 3)
end)

-- Mixes ---------------------------------------------------------------------------------------------------

local function letters(name, count)
  local samples = {}
  for i = 1, count do samples[i] = name .. i end
  return samples
end

t.test("AMixHasItsWeightsInEveryEpoch", function()
  local mix = data.mix({ letters("a", 30), letters("b", 100) }, { weights = { 3, 1 }, size = 40 })
  local counts = { a = 0, b = 0 }
  for i = 1, #mix do counts[mix[i]:sub(1, 1)] = counts[mix[i]:sub(1, 1)] + 1 end

  t.equal(#mix, 40)
  t.equal(counts, { a = 30, b = 10 })
end)

t.test("AMixWithoutWeightsHasEverySampleOnce", function()
  local a = open(write("mixed.jsonl", '{"id": 1}\n{"id": 2}\n'))
  local mix = data.mix { letters("a", 5), data.mix { a, letters("b", 3) } }
  local seen = {}
  for i = 1, #mix do seen[type(mix[i]) == "table" and mix[i].id or mix[i]] = true end

  t.equal(#mix, 10)
  t.equal(seen, { [1] = true, [2] = true, a1 = true, a2 = true, a3 = true, a4 = true, a5 = true, b1 = true, b2 = true,
    b3 = true })
end)

t.test("MistakesInAMixAreNamed", function()
  t.raises("weights", data.mix, { {}, { 1 } }, { weights = { 1 } })
  t.raises("source 1 has no samples", data.mix, { {}, { 1 } }, { weights = { 1, 1 } })
  t.raises("source 2: expected a source", data.mix, { { 1 }, "x.jsonl" })
  t.raises("mix[3]: it has the samples 1 to 2", function() return data.mix({ { 1, 2 } })[3] end)
end)

-- Splits ------------------------------------------------------------------------------------------------

t.test("ASplitHasEverySampleInOneOfItsParts", function()
  local samples = {}
  for i = 1, 103 do samples[i] = i end
  for _, held_out in ipairs { 0, 1, 0.001, 0.1, 50, 102, 0.99 } do
    local train, kept = data.split(samples, { held_out = held_out, seed = 4 })
    t.equal(#kept, held_out < 1 and held_out > 0 and math.max(1, math.floor(held_out * 103 + 0.5)) or held_out)
    local both = all(train)
    for _, sample in ipairs(all(kept)) do both[#both + 1] = sample end
    table.sort(both)
    t.equal(both, samples, held_out)
  end
end)

t.test("ASeedRepeatsASplitAndAnotherOneGivesAnother", function()
  local samples = {}
  for i = 1, 50 do samples[i] = i end
  local function kept(seed) return all((select(2, data.split(samples, { held_out = 10, seed = seed })))) end

  t.equal(kept(1), kept(1))
  t.truthy(table.concat(kept(1), " ") ~= table.concat(kept(2), " "))
  local is_sorted = true
  for i = 2, 10 do is_sorted = is_sorted and kept(1)[i - 1] < kept(1)[i] end
  t.truthy(not is_sorted, "the held-out samples are not those at one end")
end)

t.test("PartsAreSourcesForLoadersAndMixes", function()
  local lines = {}
  for i = 1, 20 do lines[i] = ('{"id": %d}'):format(i) end
  lines[7] = "{"
  local path = write("split.jsonl", table.concat(lines, "\n") .. "\n")
  local train, kept = data.split(open(path), { held_out = 5 })
  local seen = {}
  for _, part in ipairs { train, kept } do
    for sample in data.loader { source = part, epochs = 1, on_error = "skip", rank = 0, world = 1 } do
      t.equal(seen[sample.id], nil)
      seen[sample.id] = true
    end
  end
  seen[7] = true
  t.equal(#seen, 20)

  local whole = data.mix({ train, kept }, { weights = { 3, 1 } })
  t.equal(#whole, 20)
  t.raises("split.jsonl, line 7", function() return all(whole) end)
end)

t.test("PartsAndMixesNameThePlacesOfTheirSamples", function()
  local path = write("placed.jsonl", '{"id": 1}\n{"id": 2}\n\n{"id": 4}\n')
  local train, kept = data.split(open(path), { held_out = 1 })
  for _, part in ipairs { train, kept, data.mix { train, kept } } do
    for i = 1, #part do t.equal(part:place(i), ("%s, line %d"):format(path, part[i].id)) end
  end
  t.equal(data.split({ "a" }, { held_out = 0 }):place(1), "sample 1")
  t.raises("held_out[2]: it has the samples 1 to 1", kept.place, kept, 2)
  t.raises("held_out[nil]: it has the samples 1 to 1", kept.place, kept)
end)

t.test("GroupsOfASplitStayTogether", function()
  local samples, groups, alone = {}, {}, {}
  for i = 1, 20 do samples[i], groups[i], alone[i] = { id = i }, i % 2 == 0 and "even" .. i % 3 or i, i end
  local function ids(part)
    local found = {}
    for i = 1, #part do found[i] = part[i].id end
    return found
  end
  local train, held_out = data.split(samples, { held_out = 4, seed = 3, groups = groups })
  local of_group, seen = {}, ids(train)
  for _, id in ipairs(seen) do of_group[groups[id]] = true end
  for _, id in ipairs(ids(held_out)) do
    t.equal(of_group[groups[id]], nil)
    seen[#seen + 1] = id
  end
  table.sort(seen)
  t.equal(seen, alone)
  t.truthy(#held_out >= 4 and #held_out < 4 + 4, #held_out) -- the largest group has 4
  t.equal(#select(2, data.split(samples, { held_out = 0, groups = groups })), 0)
  -- Groups of one are no groups.
  local parts, others = { data.split(samples, { held_out = 0.3, seed = 5 }) }, { data.split(samples, { held_out = 0.3,
    seed = 5, groups = alone }) }
  t.equal({ ids(others[1]), ids(others[2]) }, { ids(parts[1]), ids(parts[2]) })
  -- Samples without a group go each their own way.
  for i = 1, 20 do groups[i] = data.null end
  t.equal(#select(2, data.split(samples, { held_out = 4, groups = groups })), 4)
  groups[3] = 0 / 0
  t.raises("data.split: groups[3] is NaN; give each sample a value, and data.null to one without a group", data.split,
    samples, { held_out = 1, groups = groups })
  groups[3] = nil
  t.raises("data.split: groups[3] is absent", data.split, samples, { held_out = 1, groups = groups })
  t.raises("data.split: groups must have one value for each of 20 samples, got 2", data.split, samples,
    { held_out = 1, groups = { 1, 2 } })
  t.raises("with held_out = 1 all 2 samples are held out, because groups stay together", data.split, { {}, {} },
    { held_out = 1, groups = { 1, 1 } })
end)

t.test("MistakesInASplitAreNamed", function()
  for shown, held_out in pairs { ["5"] = 5, ["-1"] = -1, ["1.5"] = 1.5, ["7"] = 7, ['"0.1"'] = "0.1",
    ["a table"] = {} } do
    t.raises("data.split: held_out must be a share below 1, or a number of samples below the 5 there are, not "
      .. shown .. "; 0 holds none out", data.split, { 1, 2, 3, 4, 5 }, { held_out = held_out })
  end
  t.raises("held_out", data.split, { 1, 2 }, {})
  t.raises("data.split: expected a source", data.split, "train.jsonl", { held_out = 1 })
  t.raises("held_out[3]: it has the samples 1 to 2", function()
    return select(2, data.split({ 1, 2, 3 }, { held_out = 2 }))[3]
  end)
end)
