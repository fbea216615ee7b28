-- data.tail: what another program appends. Rank 1 writes.

local data = require "lockstep.data"
local dist = require "lockstep.distributed"
local run = require "lockstep.run"
local t = require "lockstep.testing"

local READS = dist.rank() == 0
local count = 0

--- Returns a path of its own for each test, the same on all ranks.
local function new_path()
  count = count + 1
  return ("%s/tail-%d.jsonl"):format(run.dir, count)
end

--- Appends, on rank 1. All ranks go on when it is done.
local function append(path, bytes, mode)
  if not READS then
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
  if READS then
    t.equal(data.tail(path)(), { 7 })
  else
    local file = assert(io.open(path, "ab"))
    file:write "[7]\n"
    file:close()
  end
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
