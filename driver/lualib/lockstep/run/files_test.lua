-- lockstep.files: what scripts ask of files and folders.

local core_files = require "lockstep.core.files"
local files = require "lockstep.files"
local run = require "lockstep.run"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local dir = run.dir .. "/files"

t.test("AFileIsWrittenListedAndRead", function()
  files.make_folder(dir .. "/deep")
  files.make_folder(dir .. "/deep") -- it is there
  files.write(dir .. "/b.txt", { "123", "456789" })
  files.write(dir .. "/a.bin", { torch.tensor({ 65, 66 }, { dtype = torch.uint8 }) })

  t.equal(files.list(dir), { "a.bin", "b.txt", "deep" })
  t.equal(files.read(dir .. "/a.bin"), "AB")
  t.equal({ files.checksum(dir .. "/b.txt") }, { 9, "cbf43926" }) -- the check value of CRC-32
  local none = torch.empty({ 0 })
  t.equal({ core_files.checksum_of { none, "123", none, "456789", none } }, { 9, "cbf43926" })
end)

t.test("WhatIsNotThereIsNoError", function()
  t.equal(files.list(dir .. "/none"), {})
  t.equal(files.kind(dir .. "/none"), nil)
  local text, reason = files.read(dir .. "/none")
  t.equal(text, nil)
  t.equal(reason, dir .. "/none: No such file or directory")
end)

t.test("AKindIsToldWithoutOpening", function()
  assert(os.execute(("mkfifo '%s/pipe'"):format(dir)) == 0)

  t.equal(files.kind(dir), "folder")
  t.equal(files.kind(dir .. "/a.bin"), "file")
  t.equal(files.kind(dir .. "/pipe"), "pipe")
  t.equal(files.kind "/dev/null", "other")
  t.equal(files.read(dir .. "/pipe"), nil)
end)

t.test("WrongArgumentsAreNamed", function()
  t.raises("files.list: folder must be a string", files.list)
  t.raises("files.kind: path must be a string", files.kind, {})
  t.raises("files.read: path must be a string", files.read, {})
  t.raises("files.checksum: path must be a string", files.checksum)
  t.raises("files.write: path must be a string", files.write)
  t.raises("files.write: a piece must be a string", files.write, dir .. "/c", { "half", {} })
  t.raises("files.make_folder: path must be a string", files.make_folder)
  t.equal(files.kind(dir .. "/c"), nil)
end)
