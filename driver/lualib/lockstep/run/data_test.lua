-- Lines and JSON lines, plain and gzipped. Tensors are in safetensors_test.lua.

local data = require "lockstep.data"
local run = require "lockstep.run"
local t = require "lockstep.testing"

local write = t.write_file

local function hex(text) return (text:gsub("%x%x", function(h) return string.char(tonumber(h, 16)) end)) end

local function collect(iterator)
  local values = {}
  for value in iterator do values[#values + 1] = value end
  return values
end

-- {"id": 1}, an empty line, {"id": 2}: as `gzip -n` packs them.
local PACKED = hex "1f8b08000000000002ffab56ca4c51b25230ace5e2aa86308d6ab90009134c4415000000"

-- Lines -------------------------------------------------------------------------------------------------

t.test("LinesComeWithoutTheirEndsAndEmptyOnesCount", function()
  local cases = {
    { "", {} }, { "\n", { "" } }, { "a", { "a" } }, { "a\n", { "a" } }, { "a\n\nb", { "a", "", "b" } },
    { "a\r\nb\r\n", { "a", "b" } }, { "tab\tand\0nul\n", { "tab\tand\0nul" } },
  }
  for _, case in ipairs(cases) do t.equal(collect(data.lines(write("lines.txt", case[1]))), case[2]) end
end)

t.test("LinesLongerThanAReadAndLinesAcrossReadsComeWhole", function()
  local expected = {}
  for i, length in ipairs { 0, 1, 262143, 262144, 262145, 600000, 5 } do
    expected[i] = string.rep(string.char(96 + i), length)
  end

  t.equal(collect(data.lines(write("long.txt", table.concat(expected, "\n") .. "\n"))), expected)
end)

t.test("AfterTheLastLineTheIteratorStaysAtItsEnd", function()
  local next_line = data.lines(write("one.txt", "a\n"))

  t.equal({ next_line(), next_line(), next_line() }, { "a" })
end)

t.test("AFileThatIsNotThereIsNamed", function()
  t.raises("cannot open " .. run.dir .. "/none.jsonl: No such file or directory", data.lines, run.dir .. "/none.jsonl")
  t.raises("cannot open " .. run.dir .. "/none.jsonl", data.jsonl, run.dir .. "/none.jsonl")
  t.raises("Is a directory", function() data.lines(run.dir)() end)
  t.raises("data.lines: the path must be a string, not a nil", data.lines)
  t.raises("data.jsonl: the path must be a string, not a number", data.jsonl, 5)
end)

-- JSON lines --------------------------------------------------------------------------------------------

t.test("JsonlYieldsOneValueForEachLineThatIsNotBlank", function()
  local path = write("values.jsonl", '{"id": 1}\n\n  \t\r\n[1, 2]\r\n"text"\nfalse\nnull\n3.5')

  t.equal(collect(data.jsonl(path)), { { id = 1 }, { 1, 2 }, "text", false, data.null, 3.5 })
end)

-- Between two lines: a reader that sees only an end has fewer values and no error.
t.test("AFileThatIsShortenedWhileItIsReadIsAnError", function()
  local line = '{"text": "' .. ("x"):rep(88) .. '"}\n'
  local path = write("shrinking.jsonl", line:rep(10000))
  local next_value = data.jsonl(path)
  next_value()

  local file = assert(io.open(path, "w")) -- in place; `write` makes another file of that name
  file:write(line:rep(6000))
  file:close()

  t.raises(("%s has changed since it was opened: it had %d bytes, and has %d"):format(path, #line * 10000,
    #line * 6000), collect, next_value)
end)

t.test("AnEmptyFileHasNoValues", function()
  t.equal(collect(data.jsonl(write("empty.jsonl", ""))), {})
  t.equal(collect(data.jsonl(write("blank.jsonl", "\n\n"))), {})
end)

t.test("ABadLineIsAnErrorWithFileAndLineNumber", function()
  local path = write("bad.jsonl", '{"id": 1}\n\n{"id": 2\n{"id": 3}\n')
  local next_value = data.jsonl(path)
  t.equal(next_value(), { id = 1 })

  local message = t.raises(path .. ", line 3: syntax error while parsing object - unexpected end of input", next_value)

  t.equal(select(2, message:gsub("data_test.lua", "")), 1, message)
  t.equal(next_value(), { id = 3 })
end)

t.test("GzippedFilesAreUnpackedOnTheWay", function()
  local values = { { id = 1 }, { id = 2 } }

  t.equal(collect(data.jsonl(write("values.jsonl.gz", PACKED))), values)
  t.equal(collect(data.jsonl(write("twice.jsonl.gz", PACKED .. PACKED))),
    { values[1], values[2], values[1], values[2] })
end)

t.test("AGzippedFileThatIsCutShortOrDamagedIsAnErrorNotAShorterFile", function()
  for length = 3, #PACKED - 1 do
    local path = write("cut.jsonl.gz", PACKED:sub(1, length))
    t.raises("cannot read " .. path, function() collect(data.lines(path)) end)
  end
  local damaged = PACKED:sub(1, -9) .. "\0\0\0\0" .. PACKED:sub(-4)
  local path = write("damaged.jsonl.gz", damaged)
  t.raises("cannot read " .. path .. ": incorrect data check", function() collect(data.lines(path)) end)
  -- A second member whose first byte is lost is no end of the file.
  path = write("second.jsonl.gz", PACKED .. "\0" .. PACKED:sub(2))
  t.raises(("cannot read %s: zeros follow the gzip member that ends at byte %d"):format(path, #PACKED),
    function() collect(data.jsonl(path)) end)
end)

t.test("AMissingFileOfSetUpSaysWhoFetchesIt", function()
  t.raises("data/no_such_file.csv.gz is not there; ./run and ./test fetch it", data.path, "no_such_file.csv.gz")
end)
