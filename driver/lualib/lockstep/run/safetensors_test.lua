-- Tensors in files: what is written is read again, and a hostile file is an error, never a crash.

local ffi = require "ffi"

local lockstep = require "lockstep"
local core = require "lockstep.core"
local data = require "lockstep.data"
local nn = require "lockstep.nn"
local run = require "lockstep.run"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local function little_endian(n)
  local bytes = {}
  for i = 1, 8 do bytes[i] = string.char(math.floor(n / 256 ^ (i - 1)) % 256) end
  return table.concat(bytes)
end

local function path_of(name) return run.dir .. "/" .. name .. ".safetensors" end

--- Writes a file as it stands in the format: length, header, data.
local function write_raw(name, header, bytes, length)
  core.write_file(path_of(name), { little_endian(length or #header), header, bytes or "" })
  return path_of(name)
end

local function entry(dtype, shape, first, last)
  return string.format('{"dtype":"%s","shape":[%s],"data_offsets":[%.0f,%.0f]}', dtype, table.concat(shape, ","), first,
    last)
end

ffi.cdef [[
int truncate(const char*, long);
struct test_limit { unsigned long soft, hard; };
int getrlimit(int, struct test_limit*);
int setrlimit(int, const struct test_limit*);
]]

--- Calls fn in a process that may take so many bytes of addresses more than it has.
local function with_room(bytes, fn)
  local RLIMIT_AS, limit = 9, ffi.new "struct test_limit"
  t.equal(ffi.C.getrlimit(RLIMIT_AS, limit), 0)
  local before, status = limit.soft, assert(io.open("/proc/self/status"))
  limit.soft = tonumber(status:read("*a"):match "\nVmSize:%s+(%d+) kB") * 1024 + bytes
  status:close()
  t.equal(ffi.C.setrlimit(RLIMIT_AS, limit), 0)
  local ok, message = pcall(fn)
  limit.soft = before
  t.equal(ffi.C.setrlimit(RLIMIT_AS, limit), 0)
  t.truthy(ok, message)
end

-- Both ways ---------------------------------------------------------------------------------------------

t.test("EveryDtypeAndShapeComesBackAsItWas", function()
  local tensors = {
    scalar = torch.tensor(2.5),
    empty = torch.zeros({ 0, 3 }),
    ["layers.0.weight"] = torch.randn({ 3, 5 }),
    transposed = torch.randn({ 3, 5 }):t(),
    slice = torch.arange(10)[{ { 3, 7 } }],
    flags = torch.tensor { true, false, true },
    ['ünïcode "quoted"'] = torch.ones({ 1 }),
    complex = torch.randn({ 2, 2 }, { dtype = torch.complex64 }),
  }
  for _, name in ipairs { "float64", "float16", "bfloat16", "uint8", "int8", "int16", "int32", "int64" } do
    tensors[name] = torch.tensor({ { 1, 2, 3 }, { 100, 5, 6 } }, { dtype = torch[name] })
  end

  data.save_safetensors(path_of("all"), tensors)

  t.equal(data.safetensors(path_of("all")), tensors)
end)

t.test("DtypesThatOnlyStoreComeBackBitForBit", function()
  local bits = torch.arange(0, 128, { dtype = torch.uint8 })
  local tensors = {}
  for _, name in ipairs { "float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64" } do
    tensors[name] = bits:view(torch[name])
  end

  data.save_safetensors(path_of("bits"), tensors)

  for name, tensor in pairs(data.safetensors(path_of("bits"))) do
    t.equal(tensor.dtype, torch[name])
    t.equal(tensor:view(torch.uint8), bits, name)
  end
end)

t.test("MetadataComesBackBesideTheTensors", function()
  data.save_safetensors(path_of("metadata"), { x = torch.zeros({ 1 }) }, { metadata = { format = "pt", step = "12" } })

  local tensors, metadata = data.safetensors(path_of("metadata"))

  t.equal(metadata, { format = "pt", step = "12" })
  t.equal(tensors, { x = torch.zeros({ 1 }) })
end)

t.test("AFileOfNoTensorsIsEmpty", function()
  data.save_safetensors(path_of("none"), {})

  t.equal({ data.safetensors(path_of("none")) }, { {}, {} })
end)

t.test("AModulesStateGoesThroughAFile", function()
  local from, to = nn.Linear(3, 2), nn.Linear(3, 2)

  data.save_safetensors(path_of("model"), from:state_dict())
  to:load_state_dict(data.safetensors(path_of("model")))

  t.equal(to:state_dict(), from:state_dict())
end)

t.test("AReadTensorOwnsItsMemory", function()
  local path = path_of("own")
  data.save_safetensors(path, { x = torch.ones({ 1000 }) })
  local x = data.safetensors(path).x

  data.save_safetensors(path, { x = torch.zeros({ 1 }) })
  x[0] = 5

  t.equal(x:sum():item(), 1004)
  t.equal(data.safetensors(path).x, torch.zeros({ 1 }))
end)

--- Bytes of this process that no file backs.
local function anonymous_bytes()
  for line in io.lines("/proc/self/status") do
    local kib = line:match("^RssAnon:%s+(%d+) kB")
    if kib then return kib * 1024 end
  end
end

t.test("WeightsAreReadWithoutASecondCopyOnTheHost", function()
  local path, elements = path_of("large"), 2 ^ 24
  data.save_safetensors(path, { x = torch.ones({ elements }) })
  collectgarbage()
  collectgarbage()
  local parameter = torch.zeros({ elements })
  local before = anonymous_bytes()

  parameter:copy_(data.safetensors(path).x)

  t.equal(parameter[elements - 1]:item(), 1)
  t.truthy(anonymous_bytes() - before < 8 * 2 ^ 20, anonymous_bytes() - before)
end)

t.test("ANewFileReplacesTheOldOnlyOnceItIsComplete", function()
  local path = path_of("whole")
  data.save_safetensors(path, { x = torch.ones({ 2 }) })

  t.raises("files.write: a piece must be a string", core.write_file, path, { "half", {} })

  t.equal(data.safetensors(path), { x = torch.ones({ 2 }) })
end)

-- As others write them ----------------------------------------------------------------------------------

t.test("TheFormatsOwnLayoutIsRead", function()
  local header = '{"__metadata__":{"format":"pt"},"b":' .. entry("I16", { 2 }, 8, 12)
    .. ',"a":' .. entry("F32", { 2 }, 0, 8) .. '}   '

  local tensors, metadata = data.safetensors(write_raw("layout", header, "\0\0\128\63\0\0\0\64" .. "\1\0\255\255"))

  t.equal(tensors.a, torch.tensor { 1, 2 })
  t.equal(tensors.b, torch.tensor({ 1, -1 }, { dtype = torch.int16 }))
  t.equal(metadata.format, "pt")
end)

t.test("TensorsNeedNotBeAligned", function()
  local header = '{"a":' .. entry("U8", { 1 }, 0, 1) .. ',"b":' .. entry("F32", { 1 }, 1, 5) .. "}"

  t.equal(data.safetensors(write_raw("unaligned", header, "\7\0\0\128\63")).b, torch.tensor { 1 })
end)

-- A tensor that is not aligned is copied. The collector must see the copies.
t.test("TensorsThatAreNotAlignedAreFreedWhileOthersAreRead", function()
  local size = 16 * 2 ^ 20
  local header = '{"x":' .. entry("F32", { size / 4 }, 1, 1 + size) .. ',"y":' .. entry("U8", { 1 }, 0, 1) .. "}"
  header = header .. (" "):rep(-#header % 8)
  local path = write_raw("copied", header, ("\0"):rep(1 + size))
  collectgarbage()
  collectgarbage()

  local before, most = lockstep.memory().tensors, 0
  for _ = 1, 50 do
    t.equal(data.safetensors(path).x.shape[1], size / 4)
    most = math.max(most, lockstep.memory().tensors - before)
  end

  t.truthy(most < 25 * size, most)
end)

t.test("AnyByteButZeroIsTrueAndIsKeptAsOne", function()
  local flags = data.safetensors(write_raw("bools", '{"a":' .. entry("BOOL", { 3 }, 0, 3) .. "}", "\0\1\255")).a

  t.equal(flags.dtype, torch.bool)
  t.equal(flags:view(torch.uint8), torch.tensor({ 0, 1, 1 }, { dtype = torch.uint8 }))
end)

-- Hostile files -----------------------------------------------------------------------------------------

t.test("AFileCutShortAnywhereIsAnError", function()
  data.save_safetensors(path_of("cut"), { a = torch.ones({ 3 }), b = torch.ones({ 2, 2 }, { dtype = torch.int64 }) })
  local whole = t.read_file(path_of("cut"))

  for length = 0, #whole - 1 do
    core.write_file(path_of("cut"), { whole:sub(1, length) })
    t.raises("data.safetensors: ", data.safetensors, path_of("cut"))
  end
end)

t.test("EveryLieOfAHeaderIsAnErrorThatNamesIt", function()
  local ok = entry("F32", { 2 }, 0, 8)
  local cases = {
    { "{}", "x", "has 1 bytes after its last tensor" },
    { "", "", "has a header that is not JSON: " }, { "7", "", "not a JSON object" },
    { "[1,2]", "", "has a header that is not a JSON object" },
    { '{"a":', "", "at byte" }, { '{"a":1}', "", 'has no description of "a"' },
    { '{"a":{}}', "", 'has no dtype for "a"' },
    { '{"a":' .. entry("F31", { 2 }, 0, 8) .. "}", "12345678", 'has "a" in the unknown dtype F31' },
    { '{"a":{"dtype":"F32"}}', "", 'has no shape for "a"' },
    { '{"a":{"dtype":"F32","shape":[2]}}', "", 'has invalid data_offsets for "a"' },
    { '{"a":{"dtype":"F32","shape":2,"data_offsets":[0,8]}}', "12345678", 'has no shape for "a"' },
    { '{"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}}', "12345678", 'has an invalid shape for "a"' },
    { '{"a":{"dtype":"F32","shape":[null],"data_offsets":[0,8]}}', "12345678", 'has an invalid shape for "a"' },
    { '{"a":{"dtype":"F32","shape":{"x":2},"data_offsets":[0,8]}}', "12345678", 'has no shape for "a"' },
    { '{"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}', "12345678", 'lets "a" end at byte 0 of the data, ' },
    { '{"a":{"dtype":"F32","shape":[2],"data_offsets":[0.5,8.5]}}', "123456789", "has invalid data_offsets" },
    { '{"a":' .. entry("F32", { 3 }, 0, 8) .. "}", "12345678", 'gives "a" 8 bytes, but F32 {3} takes 12' },
    { '{"a":' .. entry("F32", { 2 ^ 40, 2 ^ 40 }, 0, 8) .. "}", "12345678", 'gives "a" 8 bytes' },
    { '{"a":' .. ok .. "}", "1234", 'is cut short: "a" ends at byte 8 of the data, which has 4' },
    { '{"a":' .. entry("F32", { 2 ^ 25, 2 ^ 25 }, 0, 2 ^ 52) .. "}", "", '"a" ends at byte 4503599627370496 of' },
    { '{"a":' .. ok .. ',"b":' .. entry("F32", { 2 }, 4, 12) .. "}", "123456789012", 'lets "a" and "b" overlap' },
    { '{"a":' .. ok .. ',"b":' .. ok .. "}", "12345678", "overlap" },
    { '{"a":' .. entry("F32", { 1 }, 4, 8) .. "}", "12345678", 'has a gap of 4 bytes before "a"' },
    { '{"a":' .. ok .. "}", "123456789", "has 1 bytes after its last tensor" },
    { '{"\255":' .. ok .. "}", "12345678", "ill-formed UTF-8 byte (at byte 2 of " },
    { '{"a":' .. ok .. ',"a":' .. ok .. "}", "12345678", 'has "a" twice' },
    { '{"__metadata__":{"step":1}}', "", 'has a value for "step" in __metadata__ that is no text' },
  }
  for i, case in ipairs(cases) do
    local path = write_raw("lie" .. i, case[1], case[2])
    local message = t.raises(case[3], data.safetensors, path)
    t.truthy(message:find(path, 1, true), message)
  end
end)

--- Writes a file of one tensor x: zeros that take no room on the disk.
local function write_zeros(name, bytes)
  local header = '{"x":' .. entry("U8", { bytes }, 0, bytes) .. "}"
  local path = write_raw(name, header)
  t.equal(ffi.C.truncate(path, 8 + #header + bytes), 0)
  return path
end

t.test("FilesOfDeadTensorsMakeRoomForAnother", function()
  local path = write_zeros("zeros", 2 ^ 28)
  with_room(6 * 2 ^ 28, function()
    for _ = 1, 20 do t.equal(data.safetensors(path).x[-1]:item(), 0) end
    t.raises("zeros.safetensors cannot be mapped: Cannot allocate memory", function()
      local kept = {}
      while true do kept[#kept + 1] = data.safetensors(path).x end
    end)
  end)
end)

t.test("LargeFilesOfDeadTensorsDoNotStayMapped", function()
  local path = write_zeros("large_zeros", 2 ^ 33)
  for _ = 1, 4 do data.safetensors(path) end
  t.truthy(core.tensor_bytes() < 3 * 2 ^ 33, core.tensor_bytes())
end)

t.test("AnAbsurdHeaderLengthIsAnErrorBeforeAnythingIsRead", function()
  for _, length in ipairs { 2 ^ 63, 2 ^ 40, 100e6 + 1 } do
    local path = write_raw("huge", "{}", "", length)
    t.raises(string.format("claims a header of %.0f bytes", length), data.safetensors, path)
  end
  t.raises("is cut short: it has 10 bytes, and its header alone needs 100000008", data.safetensors,
    write_raw("large", "{}", "", 100e6))
end)

t.test("AnythingButASafetensorsFileIsRefused", function()
  t.raises("cannot open " .. path_of("nowhere") .. ": No such file", data.safetensors, path_of("nowhere"))
  core.make_folder(path_of("folder"))
  t.raises("has no *.safetensors file", data.safetensors, path_of("folder"))
  t.raises("the path must be a string, not a nil", data.safetensors)
  core.write_file(path_of("text"), { "PK\3\4 a zip file, perhaps" })
  t.raises("claims a header of", data.safetensors, path_of("text"))
end)

t.test("AValueThatCannotBeWrittenIsNamed", function()
  local path, x = path_of("refused"), torch.zeros({ 1 })
  t.raises("data.save_safetensors: y must be a tensor under a name", data.save_safetensors, path, { x = x, y = 3 })
  t.raises("what is under the number 1 must be a tensor under a name", data.save_safetensors, path, { x })
  t.raises('"z" is torch.complex128, which the format lacks', data.save_safetensors, path,
    { z = torch.zeros({ 1 }, { dtype = torch.complex128 }) })
  t.raises('"s" is sparse, which the format lacks; give its to_dense()', data.save_safetensors, path,
    { s = torch.eye(3):to_sparse() })
  t.raises('"m" is on the device meta: it has no numbers', data.save_safetensors, path,
    { m = torch.empty({ 3 }, { device = "meta" }) })
  t.raises("the tensors must be a table by name, not a userdata", data.save_safetensors, path, x)
  t.raises('unknown option "metdata"; did you mean "metadata"?', data.save_safetensors, path, {}, { metdata = {} })
  t.raises("cannot write " .. run.dir .. "/no/folder", data.save_safetensors, run.dir .. "/no/folder", { x = x })
  t.equal(io.open(path), nil)
end)
