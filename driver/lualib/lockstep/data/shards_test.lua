-- Weights in several safetensors files.

local core = require "lockstep.core"
local data = require "lockstep.data"
local run = require "lockstep.run"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local folders = 0

-- A folder with the shards, {file name = {tensor name = number}}, and an index of `map`.
local function folder_of(shards, map)
  folders = folders + 1
  local folder = run.dir .. "/weights" .. folders
  core.make_folder(folder)
  for file, tensors in pairs(shards) do
    local held = {}
    for name, number in pairs(tensors) do held[name] = torch.full({ 2 }, number) end
    data.save_safetensors(folder .. "/" .. file, held, { metadata = { format = "pt" } })
  end
  if map then data.save_json(folder .. "/model.safetensors.index.json", { weight_map = map }) end
  return folder
end

local function numbers(tensors)
  local result = {}
  for name, tensor in pairs(tensors) do result[name] = tensor:sum():item() / 2 end
  return result
end

local A, B = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"

t.test("TheTensorsOfAllShardsComeAsOneTable", function()
  local folder = folder_of({ [A] = { x = 1, y = 2 }, [B] = { z = 3 } }, { x = A, y = A, z = B })

  for _, path in ipairs { folder, folder .. "/", folder .. "/model.safetensors.index.json" } do
    local tensors, metadata = data.safetensors(path)
    t.equal(numbers(tensors), { x = 1, y = 2, z = 3 })
    t.equal(metadata, { format = "pt" })
  end
end)

t.test("TheIndexDecidesBetweenTwoShardsAndWhatItLeavesOutIsRead", function()
  local folder = folder_of({ [A] = { x = 1, y = 2 }, [B] = { y = 4, z = 3, extra = 5 } }, { x = A, y = B, z = B })

  t.equal(numbers(data.safetensors(folder)), { x = 1, y = 4, z = 3, extra = 5 })
end)

t.test("AFolderWithOneFileNeedsNoIndex", function()
  t.equal(numbers(data.safetensors(folder_of { ["weights.safetensors"] = { x = 1 } })), { x = 1 })
  t.equal(numbers(data.safetensors(folder_of { ["model.safetensors"] = { x = 1 }, ["b.safetensors"] = { x = 2 } })),
    { x = 1 })
end)

t.test("InAFolderTheWholeFileComesBeforeAnIndex", function()
  local folder = folder_of({ ["model.safetensors"] = { x = 1 }, [A] = { x = 2 } }, { x = A })

  t.equal(numbers(data.safetensors(folder)), { x = 1 })
  t.equal(numbers(data.safetensors(folder .. "/model.safetensors.index.json")), { x = 2 })
end)

t.test("WhatIsMissingIsNamed", function()
  local cases = {
    { folder_of({ [A] = { x = 1 } }, { x = A, y = B }), "1 of the 2 files that ", "/model.safetensors.index.json names "
      .. "are not in ", ": " .. B },
    { folder_of({ [A] = { x = 1 }, [B] = { z = 1 } }, { x = A, y = B }), 'says that "y" is in ' .. B
      .. ", which does not have it" },
    { folder_of({ [A] = { x = 1, z = 1 }, [B] = { y = 1, z = 1 } }, { x = A, y = B }), '"z" is in several files of ' },
    { folder_of({ [A] = { x = 1 }, [B] = { y = 1 } }), "has several files *.safetensors (" .. A .. ", " .. B
      .. ") and no model.safetensors.index.json; name the file to read" },
    { folder_of({ ["model.txt"] = { x = 1 } }), "has no *.safetensors file and no *.safetensors.index.json" },
    { folder_of({}, { x = "../" .. A }), 'weight_map of "x": expected the name of a file in the same folder, got "../'
      .. A .. '"' },
    { folder_of({}, { x = 1 }), 'weight_map of "x": expected the name of a file in the same folder, got a number' },
  }
  for _, case in ipairs(cases) do
    for i = 2, #case do t.raises(case[i], data.safetensors, case[1]) end
  end
  local folder = folder_of {}
  data.save_json(folder .. "/model.safetensors.index.json", { metadata = {} })
  t.raises('index.json has no "weight_map", an object from tensor names to file names', data.safetensors, folder)
  t.raises("none", data.safetensors, run.dir .. "/none")
end)
