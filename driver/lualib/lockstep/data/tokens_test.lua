-- Flat files of token ids.

local data = require "lockstep.data"
local run = require "lockstep.run"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

-- Writes the ids, `width` bytes each, the lowest first.
local function write(name, ids, width)
  local pieces = {}
  for i, id in ipairs(ids) do
    local bytes = {}
    for b = 1, width do bytes[b], id = string.char(id % 256), math.floor(id / 256) end
    pieces[i] = table.concat(bytes)
  end
  return t.write_file(name, table.concat(pieces))
end

t.test("IdsOfEveryWidthComeAsInt64", function()
  local cases = {
    { "uint16", 2, { 0, 1, 255, 256, 32768, 65535 } },
    { "int32", 4, { 0, 70000, 2 ^ 31 - 1 } },
    { "uint32", 4, { 0, 2 ^ 31, 2 ^ 32 - 1 } },
    { "int64", 8, { 0, 2 ^ 40, 7 } },
  }
  for _, case in ipairs(cases) do
    local tokens = data.tokens(write(case[1] .. ".bin", case[3], case[2]), { dtype = case[1] })

    t.equal(tokens.size, #case[3])
    local ids = tokens:slice(0, tokens.size)
    t.equal(ids.dtype, torch.int64)
    t.equal(ids:totable(), case[3])
    t.equal(tokens:slice(1, 3):totable(), { case[3][2], case[3][3] })
    t.equal(tokens:slice(2, 2):totable(), {})
  end
end)

t.test("Uint16IsTheDefaultAndASliceIsACopy", function()
  local tokens = data.tokens(write("default.bin", { 1, 2, 3 }, 2))
  tokens:slice(0, 3):fill_(9)

  t.equal(tokens:slice(0, 3):totable(), { 1, 2, 3 })
end)

t.test("RangesBeyondTheFileAreRefused", function()
  local tokens = data.tokens(write("ranges.bin", { 1, 2, 3 }, 2))
  for _, range in ipairs { { -1, 1 }, { 0, 4 }, { 2, 1 } } do
    t.raises(("positions %d to %d (excluded) are not within the 3 tokens of "):format(range[1], range[2]), tokens.slice,
      tokens, range[1], range[2])
  end
  t.raises("tokens:slice: last must be an integer, got nil", tokens.slice, tokens, 0)
  t.raises("tokens:slice: first must be an integer, got 0.5", tokens.slice, tokens, 0.5, 1)
end)

t.test("AWrongDtypeShowsInTheSizeOrInTheIds", function()
  local odd = write("odd.bin", { 1, 2, 3 }, 1)
  t.raises(odd .. " has 3 bytes; expected a positive multiple of 2, the size of one id of dtype uint16", data.tokens,
    odd)
  t.raises("has 0 bytes", data.tokens, write("empty.bin", {}, 2))
  local wide = write("wide.bin", { 5, 60000, 7 }, 2)
  local tokens = data.tokens(wide, { vocab_size = 50257 })
  t.equal(tokens:slice(0, 1):totable(), { 5 })
  t.raises(wide .. " has the id 60000 at position 1; expected 0 to 50256. Check the dtype, which is uint16",
    tokens.slice, tokens, 0, 3)
  local negative = data.tokens(write("negative.bin", { 1, 2 ^ 32 - 1 }, 4), { dtype = "int32" })
  t.raises("has the id -1 at position 1", negative.slice, negative, 1, 2)
end)

t.test("MistakesInTheArgumentsAreErrors", function()
  local path = write("arguments.bin", { 1 }, 2)
  t.raises('dtype must be "uint16", "int32", "uint32" or "int64", got "int8"', data.tokens, path, { dtype = "int8" })
  t.raises("vocab_size must be a positive integer, got 0", data.tokens, path, { vocab_size = 0 })
  t.raises("data.tokens: cannot open ", data.tokens, run.dir .. "/none.bin")
  t.raises("data.tokens: cannot open " .. run.dir .. ": Is a directory", data.tokens, run.dir)
end)
