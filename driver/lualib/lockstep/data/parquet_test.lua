-- data.source of Parquet files, on two ranks that unpack them at the same time. The reader's own tests are
-- driver/data/parquet/unpack_test.cc.

local data = require "lockstep.data"
local dist = require "lockstep.distributed"
local images = require "lockstep.images"
local run = require "lockstep.run"
local t = require "lockstep.testing"

local FOLDER = "driver/data/parquet/testdata/"
local CACHE = run.dir .. "/cache"
local MAP = "lockstep.data.maps_fixture"

local function open(paths, opts)
  opts = opts or {}
  opts.cache = CACHE
  return data.source(paths, opts)
end

local read = t.read_file

--- Writes a file of this rank's own.
local function write(name, bytes) return t.write_file(dist.rank() .. "_" .. name, bytes) end

t.test("EveryTypeBecomesALuaValue", function()
  local source = open(FOLDER .. "types.parquet")
  local first, third = source[1], source[3]

  t.equal(#source, 3)
  t.equal({ first.flag, first.i8, first.i16, first.i32, first.i64, first.u8, first.u16, first.u32, first.u64 },
    { true, -8, -16, -32, -64, 8, 16, 32, 64 })
  t.equal({ third.flag, third.i8, third.i16, third.i32, third.i64, third.u8, third.u16, third.u32, third.u64 },
    { false, -128, 32767, 2 ^ 31 - 1, 2 ^ 53, 255, 65535, 2 ^ 32 - 1, 2 ^ 60 })
  t.equal({ first.f16, first.f32, first.f64 }, { 1.5, 0.25, 0.1 })
  t.equal({ third.f16, third.f32, third.f64 }, { -65504, math.huge, 3 })
  t.equal({ first.text, first.large_text, first.view, first.word },
    { "h\195\169llo", "large", "a text of more than twelve bytes", "one of few" })
  t.equal({ first.bytes, first.fixed, third.text, third.bytes, third.fixed }, { "\0\255\1", "abc", "", "", "\0\0\0" })
  t.equal({ first.day, first.clock, first.utc, first["local"], first.price }, { "2026-11-22", "16:30:00.250000",
    "2026-11-22 16:30:00.250Z", "2026-11-22 16:30:00.250000", "12.50" })
  t.equal({ third.day, third.clock, third.utc, third["local"], third.price }, { "1969-12-31", "00:00:00.000000",
    "1970-01-01 00:00:00.000Z", "1970-01-01 00:00:00.000000", "-0.01" })
  t.equal({ first.ints, first.pair, first.nested, first.counts },
    { { 1, data.null, 3 }, { 1, 2.5 }, { { "a" }, data.null, { data.null, "b" } }, { a = 2, b = 1 } })
  t.equal({ third.ints, third.pair, third.nested, third.counts, third.messages }, { {}, { 0, 0 }, { {} }, {}, {} })
  t.equal(first.messages, { { role = "user", content = "hi", weight = 1 },
    { role = "assistant", content = data.null, weight = 0.5 } })
  local num_columns = 0
  for name, value in pairs(source[2]) do
    num_columns = num_columns + 1
    t.equal(value, data.null, name)
  end
  t.equal(num_columns, 30)
end)

t.test("ARowKeepsTheOrderOfItsColumnsAndItsEmptyArrays", function()
  local source = open(FOLDER .. "types.parquet", { columns = { "messages", "counts", "f64", "ints" } })
  local path = write("row.json", "")
  data.save_json(path, source[3])

  t.equal(read(path), '{"f64":3.0,"ints":[],"counts":{},"messages":[]}\n')
end)

t.test("AColumnOfImagesGivesTheirBytes", function()
  local sample = open(FOLDER .. "types.parquet", { columns = { "image" } })[1]

  t.equal(sample.image.path, "png_palette4.png")
  t.equal(images.read(sample.image.bytes).shape[1], 3)
end)

t.test("FilesAreReadInOrderAndAFolderToo", function()
  local two = open { FOLDER .. "groups_gzip.parquet", FOLDER .. "groups_zstd.parquet" }
  t.equal(#two, 50)
  t.equal({ two[25].id, two[26].id, two[50].text }, { 25, 1, "row 25" })
  t.equal(two:place(30), FOLDER .. "groups_zstd.parquet, row 5")

  local all = open(FOLDER .. "groups_*.parquet", { columns = { "id" } })
  t.equal(#all, 150)
  t.equal(all[150], { id = 25 })
  t.equal(#open(FOLDER .. "zero_rows.parquet"), 0)
  t.equal(#open(write("table.bin", read(FOLDER .. "groups_lz4.parquet")), { format = "parquet" }), 25)
end)

t.test("MistakesAreNamed", function()
  t.raises('inexact.parquet: row 3, column "id": the integer 9007199254740993 is beyond 2^53', open,
    FOLDER .. "inexact.parquet")
  t.equal(open(FOLDER .. "inexact.parquet", { columns = { "text" } })[3].text, "c")
  t.raises('there is no column "txt"; the columns are "id", "text"', open, FOLDER .. "inexact.parquet",
    { columns = { "txt" } })
  t.raises("columns = is only for Parquet files", open, write("a.jsonl", "{}\n"), { columns = { "text" } })
  t.raises("columns must be a table, not the string", open, FOLDER .. "types.parquet", { columns = "text" })
  t.raises("empty.parquet: ", open, write("empty.parquet", ""))
  local bytes = read(FOLDER .. "groups_snappy.parquet")
  t.raises("cut.parquet: ", open, write("cut.parquet", bytes:sub(1, 3000)))
  t.raises("source[26]: the source has the samples 1 to 25", function()
    return open(FOLDER .. "groups_snappy.parquet")[26]
  end)
end)

t.test("AFileThatChangesIsAnErrorUntilItIsOpenedAgain", function()
  local path = write("changing.parquet", read(FOLDER .. "groups_zstd.parquet"))
  local source = open(path)
  write("changing.parquet", read(FOLDER .. "types.parquet"))

  t.raises("changing.parquet has changed since it was opened", function() return source[1] end)
  t.equal(open(path)[1].text, "h\195\169llo")
end)

-- Loaders -----------------------------------------------------------------------------------------------

--- The ids of all ranks, sorted.
local function gather(own)
  local merged = {}
  for _, theirs in ipairs(dist.all_gather_object(own)) do
    for _, id in ipairs(theirs) do merged[#merged + 1] = id end
  end
  table.sort(merged)
  return merged
end

t.test("ALoaderShufflesSplitsOverRanksAndResumes", function()
  local expected = {}
  for id = 1, 25 do expected[id] = id end
  for _, workers in ipairs { 0, 2 } do
    local opts = { source = open(FOLDER .. "groups_none.parquet"), seed = 3, epochs = 1, workers = workers, map = MAP,
      options = { kind = "run", code = "local s = ...; return { id = s.id, parts = #s.parts, text = s.text }" } }
    local loader, own = data.loader(opts), {}
    for _ = 1, 5 do own[#own + 1] = loader().id end
    local state = loader:state_dict()
    loader = data.loader(opts)
    loader:load_state_dict(state)
    for sample in loader do
      own[#own + 1] = sample.id
      t.equal({ sample.parts, sample.text }, { sample.id % 4, "row " .. sample.id })
    end

    t.equal(gather(own), expected)
    t.truthy(table.concat(own, " ") ~= table.concat(expected, " ", 1, #own), "the order is shuffled")
  end
end)
