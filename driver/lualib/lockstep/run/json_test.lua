-- JSON, both ways.

local core = require "lockstep.core"
local data = require "lockstep.data"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local encode, decode = core.json_encode, core.json_decode

local function nested(depth)
  local value = 1
  for _ = 1, depth do value = { value } end
  return value
end

-- Both ways ---------------------------------------------------------------------------------------------

t.test("AnEncodedValueDecodesToTheSameValue", function()
  local values = {
    true, false, 0, -1, 0.1, 1 / 3, -2.5e-300, 1e300, 2 ^ 53, -2 ^ 53, "", "plain", "quote \" back \\ slash /",
    "line\nfeed\ttab\0nul\127", "grüße, 数, 🎉", { 1, 2, 3 }, { { 1 }, { { 2 } } }, {},
    { a = 1, ["b c"] = { true, "x" }, ["ü"] = { deep = { deeper = 1 } }, ["nul\0key"] = 1 },
    { { id = 1 }, { id = 2 } }, { data.null, 2, data.null }, data.null,
  }
  for _, value in ipairs(values) do t.equal(decode(encode(value)), value) end
end)

t.test("ManyNumbersSurviveBitForBit", function()
  math.randomseed(7)
  for _ = 1, 2000 do
    local value = (math.random() - 0.5) * 10 ^ math.random(-300, 300)
    t.equal(decode(encode(value)), value)
  end
end)

t.test("DeepNestingSurvivesAndTooDeepIsAnError", function()
  t.equal(decode(encode(nested(128))), nested(128))

  t.raises("is nested more than 128 deep, or contains itself", encode, nested(129))
  t.raises("values are nested more than 128 deep", decode, string.rep("[", 129) .. string.rep("]", 129))
  t.raises("json: ", decode, string.rep("[", 1e6))
  local loop = {}
  loop.loop = loop
  t.raises("contains itself", encode, loop)
end)

-- Shapes of JSON that Lua lacks --------------------------------------------------------------------------

t.test("KeysKeepTheirOrderAndNewOnesFollowSorted", function()
  local text = '{"role":"user","content":{"z":1,"a":2,"m":[{"y":1,"x":2}]},"a":3}'
  t.equal(encode(decode(text)), text)

  local value = decode '{"b":1,"c":2,"a":3}'
  value.c, value.e, value.d = nil, 5, 4
  t.equal(encode(value), '{"b":1,"a":3,"d":4,"e":5}')
  t.equal(encode(decode '{"b":1,"a":2,"b":3}'), '{"b":3,"a":2}')
end)

t.test("WholeFloatsAndEmptyArraysStayWhatTheyAre", function()
  for _, text in ipairs {
    '{"a":1.0,"b":1,"c":[1.0,2.5,3.0],"d":[1,2.0,0.5],"e":[]}', "[]", "{}", "[[],{},[1.0]]", "[1.0,1]", "[1,1.0]",
    '{"a":1,"b":1.0}', '{"a":1.0,"b":1}',
  } do
    t.equal(encode(decode(text)), text)
  end
  local value = decode "[]"
  value[1] = 1
  t.equal(encode(value), "[1]")
  value[1], value.a = nil, 1
  t.equal(encode(value), '{"a":1}')
end)

t.test("ShapesAreTrueOfTheirTablesAndDieWithThem", function()
  local shapes = core.json_shapes()
  local one, two = decode '{"b":1.0,"a":2}', decode '{"b":7.0,"a":8}'
  t.equal(shapes[one], { keys = { "b", "a" }, floats = { b = true, a = false } })
  t.equal(rawequal(shapes[one], shapes[two]), true)
  t.equal(shapes[decode "[1.0, 2]"], { array = true, floats = { true } })
  t.equal(shapes[decode "[1.0, 2.0]"], { array = true, floats = true })
  t.equal(shapes[decode "[1.5, 2]"], nil)
  t.equal(shapes[decode "[]"], { array = true })

  one, two = nil, nil -- luacheck: ignore
  collectgarbage()
  collectgarbage()
  local left = 0
  for _ in pairs(shapes) do left = left + 1 end
  t.equal(left, 0)
end)

-- Encoding ----------------------------------------------------------------------------------------------

t.test("ObjectsHaveSortedKeysAndWholeNumbersNoPoint", function()
  t.equal(encode { b = 1, a = { 2, 0.5 }, c = {} }, '{"a":[2,0.5],"b":1,"c":{}}')
  t.equal(encode { [1] = "x" }, '["x"]')
  t.equal(encode(nil), "null")
  t.equal(encode(-0), "0")
end)

t.test("IndentationIsForPeople", function()
  t.equal(encode({ a = 1 }, 2), '{\n  "a": 1\n}')
end)

t.test("NumbersThatJsonLacksBecomeStrings", function()
  t.equal(encode { math.huge, -math.huge, 0 / 0 }, '["Infinity","-Infinity","NaN"]')
end)

t.test("WhereJsonIsStrictTheyAreErrors", function()
  for _, number in ipairs { math.huge, -math.huge, 0 / 0 } do
    t.raises("json: a[1] is nan or infinite, which has no form in JSON", encode, { a = { number } }, 0, true)
  end
  t.equal(encode({ 1 }, 0, true), "[1]")
end)

t.test("AValueWithoutAFormInJsonIsNamedByItsPath", function()
  local cases = {
    { print, "json: the value is a function, which has no form in JSON" },
    { { a = { { f = print } } }, "json: a[1].f is a function" },
    { { x = torch.zeros({ 1 }) }, "json: x is a tensor" },
    { { dtype = torch.float32 }, "json: dtype is a dtype" },
    { { 1, 2, n = 2 }, 'is an array that also has the key the string "n"' },
    { { 1, nil, 3 }, "is an array with holes" },
    { { [3] = 1 }, "has the key the number 3" },
    { { [true] = 1 }, "has the key true; an object's keys are strings" },
    { { name = "\255" }, "json: name is text that is not UTF-8" },
    { { ["\237\160\128"] = 1 }, "is a name that is not UTF-8" },
  }
  for _, case in ipairs(cases) do t.raises(case[2], encode, case[1]) end
end)

-- Decoding ----------------------------------------------------------------------------------------------

t.test("EveryJsonTypeHasItsLuaValue", function()
  t.equal(decode '{"a": [1, -2.5e2, "x", true, null], "b": {}}', { a = { 1, -250, "x", true, data.null }, b = {} })
  t.equal(decode ' "\\u00e9\\ud83c\\udf89\\n" ', "é🎉\n")
end)

t.test("IntegersThatANumberHoldsAreExactAndOthersAreErrors", function()
  t.equal(decode "9007199254740992", 2 ^ 53)
  t.equal(decode "-9007199254740992", -2 ^ 53)
  t.equal(decode "[9007199254740994, 18446744073709551616, -0]", { 2 ^ 53 + 2, 2 ^ 64, 0 })
  t.equal(decode '{"model_max_length": 1000000000000000019884624838656}', { model_max_length = 1e30 })
  for _, text in ipairs {
    "9007199254740993", "-9007199254740993", "18446744073709551615", "9223372036854775807",
    "123456789012345678901234567890", "1000000000000000000000000000000",
  } do
    t.raises("the integer " .. text .. " is beyond 2^53: a Lua number cannot hold it exactly", decode,
      "[" .. text .. "]")
  end
end)

t.test("NumbersWithPointOrExponentAreTheNearestDouble", function()
  t.equal(decode "[1e22, 1E+2, 0.30000000000000004, 2.5, -0.0]", { 1e22, 100, 0.30000000000000004, 2.5, 0 })
  t.equal(decode "12345678901234567890.0", 12345678901234567890.0)
  t.equal(decode "1e-400", 0)
  t.raises("json: number overflow parsing '1e400' (at byte 4 of 5)", decode, "1e400")
end)

t.test("MistakesAreErrorsWithTheirPlace", function()
  local cases = {
    { "", "at byte 0 of 0" }, { "  ", "json: the text is empty" }, { "{", "at byte 1 of 1" },
    { "[1,]", "at byte 3 of 4" },
    { '{"a" 1}', "at byte 5 of 7" }, { "[1 2]", "at byte 3 of 5" }, { "nul", "invalid literal" },
    { "NaN", "invalid literal" }, { "1 2", "expected end of input (at byte 2 of 3)" },
    { "01", "at byte 1 of 2" }, { "-", "at byte 1 of 1" }, { "{1:2}", "at byte 1 of 5" },
    { '"\255"', "ill-formed UTF-8 byte (at byte 1 of 3)" }, { '"\\ud800"', "surrogate" },
    { '"open', "at byte 5 of 5" },
    { '{"a": 1,\n "b": 2,\n "c" 3}\n', " (line 3, at byte 23 of 26)" }, { "[1 2]\n", " (at byte 3 of 6)" },
    { "[7, 9007199254740993]", " (at byte 4 of 21)" }, { "9007199254740993", " (at byte 0 of 16)" },
    { "1\0x", "a zero byte is not JSON (at byte 1 of 3)" }, { string.rep("[", 200), " (at byte 128 of 200)" },
    { "[\n9007199254740993]", " (line 2, at byte 2 of 19)" },
  }
  for _, case in ipairs(cases) do t.raises(case[2], decode, case[1]) end
end)

t.test("AnErrorCarriesTheNameOfWhatWasRead", function()
  t.raises("train.jsonl, line 3: syntax error while parsing array", decode, "[1 2]", "train.jsonl, line 3")
end)
