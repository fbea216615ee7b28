-- data.tail: what another program appends. The first rank reads, the last one writes.

local data = require "lockstep.data"
local dist = require "lockstep.distributed"
local run = require "lockstep.run"
local t = require "lockstep.testing"

local READS, WRITES = dist.rank() == 0, dist.rank() == dist.world_size() - 1
local count = 0

--- Returns a path of its own for each test, the same on all ranks.
local function new_path()
  count = count + 1
  return ("%s/tail-%d.jsonl"):format(run.dir, count)
end

--- Appends, on the last rank. All ranks go on when it is done.
local function append(path, bytes, mode)
  if WRITES then
    local file = assert(io.open(path, mode or "ab"))
    file:write(bytes)
    file:close()
  end
  dist.barrier()
end

t.test("LinesComeOnceTheyAreComplete", function()
  local path = new_path()
  local tail = data.tail(path)
  if READS then t.equal(tail:try(), nil) end
  dist.barrier()
  append(path, '{"version": 1}\n{"version":')
  if READS then
    t.equal(tail().version, 1)
    t.equal(tail:try(), nil)
    t.equal(tail.lines, 1)
  end
  dist.barrier()
  append(path, " 2}\n[3]\nfalse\n")
  if READS then t.equal({ tail().version, tail()[1], tail(), tail:try() }, { 2, 3, false, nil }) end
  dist.barrier()
end)

t.test("AWaitEndsWithTheLineThatAnotherProgramWrites", function()
  local path = new_path()
  if WRITES then
    local file = assert(io.open(path, "ab"))
    file:write "[7]\n"
    file:close()
  end
  if READS then t.equal(data.tail(path)(), { 7 }) end
  dist.barrier()
end)

t.test("AResumedTailGoesOnAfterTheLastLine", function()
  local path = new_path()
  append(path, "[1]\n[2]\n[3]\n")
  if READS then
    local tail, resumed = data.tail(path), data.tail(path)
    tail()
    tail()
    resumed:load_state_dict(tail:state_dict())
    t.equal(resumed()[1], 3)
    t.equal(resumed.lines, 3)
  end
  dist.barrier()
end)

t.test("WhatIsNotALineOfJsonNamesTheLine", function()
  local path = new_path()
  append(path, '[1]\n{"a": nan}\n')
  if READS then
    local tail = data.tail(path)
    tail()
    t.raises("tail-" .. count .. ".jsonl, line 2", tail)
    t.equal(tail.lines, 1)
  end
  dist.barrier()
  t.raises("data.tail: the path must be a string, not a nil", data.tail, nil)
  t.raises("data.tail: " .. run.dir .. " cannot be read; is it a folder?", data.tail(run.dir))
end)

t.test("AFileThatShrinksOrGoesIsAnError", function()
  local path = new_path()
  append(path, "[1]\n[2]\n")
  local tail = data.tail(path)
  if READS then tail() end
  dist.barrier()
  append(path, "[1]\n", "wb")
  if READS then
    tail()
    t.raises("has 4 bytes, but 8 were read before", tail)
    os.remove(path)
    t.raises("is gone, after 2 lines", tail)
  end
  dist.barrier()
end)

--- Calls `read` and returns how often it opened a file, and the KiB of memory that it took for Lua's values.
local function work_of(read)
  local open, opened = io.open, 0
  rawset(io, "open", function(...)
    opened = opened + 1
    return open(...)
  end)
  collectgarbage()
  collectgarbage "stop"
  local before = collectgarbage "count"
  read()
  local taken = collectgarbage "count" - before
  collectgarbage "restart"
  rawset(io, "open", open)
  return opened, taken
end

t.test("ManyLinesThatAreThereAlreadyComeInOrder", function()
  local path, padding = new_path(), ("x"):rep(1000)
  local lines = {}
  for i = 1, 2000 do lines[i] = ('[%d, "%s"]\n'):format(i, padding) end
  append(path, table.concat(lines) .. "[2001")
  local tail = data.tail(path)
  if READS then
    local function read(first, last)
      for i = first, last do t.equal(tail()[1], i) end
    end
    read(1, 1)
    -- The work grows with the lines, not with their square: what follows a line is neither read nor copied again.
    local opened, taken = work_of(function() read(2, 51) end)
    t.equal(opened, 0)
    t.truthy(taken < 50 * 32, ("50 lines of 1 KiB took %d KiB of memory"):format(taken))
    read(52, 2000)
    t.equal(tail:try(), nil)
  end
  dist.barrier()
  append(path, "]\n[2002]\n")
  if READS then t.equal({ tail()[1], tail()[1], tail:try() }, { 2001, 2002, nil }) end
  dist.barrier()
end)

t.test("BlankLinesAreSkippedAndCounted", function()
  local path = new_path()
  append(path, "\n[1]\n \t\r\n\n[2]\n\n")
  if READS then
    local tail = data.tail(path)
    t.equal({ tail()[1], tail.lines, tail()[1], tail.lines, tail:try(), tail.lines }, { 1, 2, 2, 5, nil, 6 })
  end
  dist.barrier()
  append(path, "nonsense\n")
  if READS then
    local tail = data.tail(path)
    tail()
    tail()
    t.raises("line 7", tail)
  end
  dist.barrier()
end)

t.test("AFileThatAnotherOneReplacesIsAnError", function()
  for _, new in ipairs { "[5]\n[6]\n", "[5]\n[6]\n[7]\n[8]\n" } do -- as long, and longer
    local path = new_path()
    append(path, "[1]\n[2]\n")
    local tail, resumed = data.tail(path), data.tail(path)
    if READS then
      t.equal({ tail()[1], tail()[1] }, { 1, 2 })
      resumed:load_state_dict(tail:state_dict())
    end
    dist.barrier()
    append(path, new, "wb")
    if READS then
      for _, one in ipairs { tail, resumed } do
        t.raises(".jsonl was replaced or changed: bytes 0 to 7, after 2 lines", one)
      end
    end
    dist.barrier()
  end
end)

t.test("OnlyTheLastBytesAreCompared", function()
  local path, long = new_path(), ('"\195\188%s"\n'):format(("x"):rep(1000))
  append(path, long .. long)
  local tail, resumed = data.tail(path), data.tail(path)
  if READS then
    tail()
    tail()
    t.equal(#tail:state_dict().last, 512)
    resumed:load_state_dict(tail:state_dict())
  end
  dist.barrier()
  append(path, "[3]\n")
  if READS then t.equal({ tail()[1], resumed()[1] }, { 3, 3 }) end
  dist.barrier()
end)
