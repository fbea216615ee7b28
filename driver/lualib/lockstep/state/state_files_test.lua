-- Files of states that are torn or lie: one clear error each, and the state before it.

local core = require "lockstep.core"
local core_safetensors = require "lockstep.core.safetensors"
local core_state = require "lockstep.core.state"
local files = require "lockstep.core.files"
local fixture = require "state_fixture"
local folder = require "lockstep.state.folder"
local run = require "lockstep.run"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local listening, new_folder = t.listening, fixture.new_folder
local read_file, save_at, write_file = t.read_file, fixture.save_at, fixture.write_file

-- Read by PyTorch ---------------------------------------------------------------------------------------

--- The header of a safetensors file, as the format says it, by none of our reader's code.
local function header_of(path)
  local text = read_file(path)
  local length = 0
  for i = 8, 1, -1 do length = length * 256 + text:byte(i) end
  return core.json_decode(text:sub(9, 8 + length)), #text - 8 - length
end

--- Bytes of an element, of the dtypes that safetensors.torch knows.
local BYTES = { F64 = 8, F32 = 4, F16 = 2, BF16 = 2, I64 = 8, I32 = 4, I16 = 2, I8 = 1, U8 = 1, BOOL = 1 }

-- The rules are those of read_metadata in torch/distributed/checkpoint/hf_storage.py, PyTorch 2.11, which opens every
-- file that ends in .safetensors, and of the format itself, by which safetensors' own reader refuses a file.
t.test("EveryFileFollowsTheRulesOfPyTorchsReader", function()
  local root = new_folder()
  local objects = fixture.new_objects()
  fixture.train(objects, 2)
  objects.values = { scalar = torch.ones({}), empty = torch.ones({ 0, 3 }), text = "x" }
  run:state(objects)
  run:save { step = 1 }
  local path, num_files, seen = root .. "/step-00000001", 0, {}
  for _, name in ipairs(files.list(path)) do
    if name:match("%.safetensors$") then
      num_files = num_files + 1
      local header, data_bytes = header_of(path .. "/" .. name)
      local metadata = header.__metadata__
      header.__metadata__ = nil
      for key, value in pairs(metadata) do t.equal({ type(key), type(value) }, { "string", "string" }, name) end
      local sharding_info = core.json_decode(metadata.DCP_SHARDING_INFO)
      t.equal({ metadata.format, tonumber(metadata.DCP_VERSION) }, { "pt", 1 })
      local ranges = {}
      for key, entry in pairs(header) do
        -- A name that two files have would be two chunks of one tensor, at the same offsets.
        t.truthy(not seen[key], key .. " is there twice")
        seen[key] = true
        local elements, offsets = 1, sharding_info[key].saved_offsets
        for i, size in ipairs(entry.shape) do
          elements = elements * size
          t.equal(offsets[i], 0, key)
        end
        t.equal(#offsets, #entry.shape, key)
        t.truthy(BYTES[entry.dtype], key .. " is " .. tostring(entry.dtype))
        t.equal(entry.data_offsets[2] - entry.data_offsets[1], elements * BYTES[entry.dtype], key)
        ranges[#ranges + 1] = entry.data_offsets
      end
      for key in pairs(sharding_info) do t.truthy(header[key], key .. " is in the metadata alone") end
      table.sort(ranges, function(a, b)
        if a[1] ~= b[1] then return a[1] < b[1] end
        return a[2] < b[2]
      end)
      local at = 0
      for _, range in ipairs(ranges) do
        t.equal(range[1], at, "a hole in " .. name)
        at = range[2]
      end
      t.equal(at, data_bytes, name)
    end
  end
  t.equal(num_files, 2)
  for name in objects.model:named_parameters() do t.truthy(seen[name], name) end
  t.truthy(seen["optimizer.state.fc.bias.exp_avg"])
end)

-- Torn and hostile files ------------------------------------------------------------------------------

t.test("ATornStateIsSetAsideAndTheOneBeforeItTaken", function()
  local root = new_folder()
  local objects = save_at { 1, 2 }
  local path = root .. "/step-00000002"
  local name = path .. "/state-00001-of-00001.safetensors"
  write_file(name, read_file(name):sub(1, -2))

  local step, heard = listening(run.resume, run)

  t.equal(step, 1)
  t.equal(objects.best.step, 1)
  t.truthy(heard:find("cannot be used: " .. name .. " has ", 1, true), heard)
  t.truthy(heard:find("but complete.json says", 1, true), heard)
  t.equal(select(2, heard:gsub("\n", "")), 1)
  t.equal(files.list(root), { "step-00000001", "step-00000002.torn" })
end)

t.test("WhereNoStateIsWholeTheRunDoesNotBeginAnewByItself", function()
  new_folder()
  save_at { 1, 2 }
  for _, step in ipairs { 1, 2 } do os.remove(run.dir .. ("/state/step-%08d/complete.json"):format(step)) end

  local message = t.raises("none of the 2 states in", listening, run.resume, run)

  t.truthy(message:find("there is no complete.json", 1, true), message)
  t.truthy(message:find("start again with another --run-dir", 1, true), message)
  t.equal(files.list(run.dir .. "/state"), { "step-00000001", "step-00000002" })
  for _, step in ipairs { 1, 2 } do
    local path = run.dir .. ("/state/step-%08d"):format(step)
    files.rename(path, path .. ".torn")
  end
  t.raises("holds no state but 2 that were set aside as torn", run.resume, run)
end)

-- /dev/zero has no end, a pipe waits for a writer, and a file without blocks is larger than any disk.
t.test("AFileThatIsNoneOrOfAnotherSizeIsRefusedBeforeItIsRead", function()
  local commands = { ["ln -s /dev/zero %s"] = "it is not a regular file", ["mkfifo %s"] = "it is not a regular file",
    ["mkdir %s"] = "Is a directory", ["truncate -s 4T %s"] = "4398046511104 bytes" }
  for command, reason in pairs(commands) do
    local root = new_folder()
    local objects = save_at { 1, 2 }
    local path = root .. "/step-00000002"
    for _, name in ipairs(files.list(path)) do
      local whole = read_file(path .. "/" .. name)
      os.remove(path .. "/" .. name)
      assert(os.execute(command:format("'" .. path .. "/" .. name .. "'")) == 0)

      local step, heard = listening(run.resume, run)

      t.equal({ step, objects.best.step }, { 1, 1 }, command)
      t.truthy(heard:find(name, 1, true) and heard:find(reason, 1, true), heard)
      files.rename(path .. ".torn", path)
      os.remove(path .. "/" .. name)
      write_file(path .. "/" .. name, whole)
    end
  end
end)

--- A byte changed, taken out, put in; a cut; bytes of another place.
local function mutate(text, random)
  local function below(n) return math.floor(random() * n) end
  local at = below(#text) + 1
  local before, after = text:sub(1, at - 1), text:sub(at + 1)
  local kind = below(5)
  if kind == 0 then return before .. string.char(below(256)) .. after end
  if kind == 1 then return before .. after end
  if kind == 2 then return before .. string.char(below(256)) .. text:sub(at) end
  if kind == 3 then return before end
  return before .. text:sub(below(#text) + 1):sub(1, below(40)) .. after
end

--- A generator of the test's own: the run's is part of the state.
local function random_of(seed)
  return function()
    seed = (seed * 16807) % 2147483647
    return seed / 2147483647
  end
end

local SEED = tonumber(os.getenv("LOCKSTEP_FUZZ_SEED")) or 20261121

local function expect_one_line(text, what)
  t.truthy(select(2, text:gsub("\n", "")) == 1, what .. ": expected one line, got: " .. text)
end

t.test("AThousandMutatedFilesEachGiveOneErrorAndTheStateBefore", function()
  local root, random = new_folder(), random_of(SEED)
  print("seed " .. SEED .. " (LOCKSTEP_FUZZ_SEED sets another)")
  local objects = save_at { 1, 2 }
  local path = root .. "/step-00000002"
  local names, whole, same = files.list(path), {}, 0
  for _, name in ipairs(names) do whole[name] = read_file(path .. "/" .. name) end
  for i = 1, 1000 do
    local name = names[i % #names + 1]
    local mutated = mutate(whole[name], random)
    write_file(path .. "/" .. name, mutated)

    local step, heard = listening(run.resume, run)

    local what = ("mutation %d of %s"):format(i, name)
    -- complete.json may say the same in another way: a blank put in.
    if mutated == whole[name] or (name == "complete.json" and step == 2) then
      same = same + 1
      t.equal(step, 2, what)
    else
      t.equal({ step, objects.best.step }, { 1, 1 }, what)
      expect_one_line(heard, what)
      t.truthy(heard:find(path, 1, true), what)
      files.rename(path .. ".torn", path)
    end
    write_file(path .. "/" .. name, whole[name])
  end
  t.truthy(same < 100, same .. " mutations changed nothing")
end)

t.test("FilesWhoseChecksumsFitAreNotBelievedEither", function()
  local root, random = new_folder(), random_of(SEED)
  save_at { 1, 2 }
  local path = root .. "/step-00000002"
  local marker = folder.check(path, 0, 1)
  local counts = { refused = 0, read = 0 }
  for i = 1, 300 do
    local name = ("%s-00001-of-00001.safetensors"):format(i % 2 == 0 and "model" or "state")
    local text = read_file(path .. "/" .. name)
    -- Only the header and the first values: the rest are numbers of the model, and any number is valid.
    local cut = math.min(#text, 3000)
    write_file(path .. "/" .. name, mutate(text:sub(1, cut), random) .. text:sub(cut + 1))
    local bytes, crc32 = files.checksum(path .. "/" .. name)
    local before = marker.files[name]
    marker.files[name] = { bytes = bytes, crc32 = crc32 }
    files.start(folder.completion(path, marker)):wait()

    local ok, message, heard = pcall(listening, run.resume, run)

    t.truthy(ok or not tostring(message):find("\n", 1, true), tostring(message))
    if ok and message == 1 then t.equal(select(2, heard:gsub("cannot be used", "")), 1, "mutation " .. i) end
    local refused = not ok or message == 1
    counts[refused and "refused" or "read"] = counts[refused and "refused" or "read"] + 1
    if #files.list(path) == 0 then files.rename(path .. ".torn", path) end
    write_file(path .. "/" .. name, text)
    marker.files[name] = before
    files.start(folder.completion(path, marker)):wait()
  end
  t.truthy(counts.refused > 50, counts.refused .. " were refused")
end)

t.test("BytesThatAreNoValueAreAnError", function()
  local random = random_of(SEED)
  local bytes = core_state.encode({ 1, "two", { three = { true, false } }, [4.5] = {} }, "x")
  for _ = 1, 1000 do
    local ok, result = pcall(core_state.decode, mutate(bytes, random), {}, "the value")
    t.truthy(ok or tostring(result):find("the value: the bytes received", 1, true), tostring(result))
  end
  local deep = core_state.encode({ {} }, "x"):sub(1, 9) -- an array of one value
  t.raises("nest tables more than 64 deep", core_state.decode, deep:rep(100000), {}, "x")
end)

t.test("WithoutChecksumsATornFileWouldBeReadAsWhole", function()
  local root = new_folder()
  save_at { 1 }
  local name = root .. "/step-00000001/model-00001-of-00001.safetensors"
  local text = read_file(name)
  write_file(name, text:sub(1, -5) .. "\0\0\128\63")

  t.truthy(core_safetensors.read(name, "x"), "the format has no checksums")
  t.raises("none of the 1 states in", listening, run.resume, run)
end)
