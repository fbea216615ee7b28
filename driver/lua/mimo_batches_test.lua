--- Batches of which a slice would once have been wrong without an error: objects, lists, names that are misspelt.

local mimo = require "lockstep.mimo"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local function whole(values) return torch.tensor(values, { dtype = torch.int64 }) end

-- Objects --------------------------------------------------------------------------------------------

local Batch = {}
Batch.__index = Batch
function Batch:size() return self.input_ids:size(0) end

local function batch_object()
  return setmetatable({ input_ids = whole { { 0 }, { 1 }, { 2 }, { 3 } },
    extra = setmetatable({ labels = whole { 0, 1, 2, 3 }, names = setmetatable({ "a", "b", "c", "d" }, Batch) }, Batch),
  }, Batch)
end

t.test("ObjectsAreCutAndStayObjects", function()
  local mine = mimo.slice(batch_object(), 1, 2)

  t.equal(mine:size(), 2)
  t.equal(mine.input_ids:totable(), { { 2 }, { 3 } })
  t.equal(mine.extra.labels:totable(), { 2, 3 })
  t.equal({ unpack(mine.extra.names) }, { "c", "d" })
  t.truthy(getmetatable(mine.extra) == Batch and getmetatable(mine.extra.names) == Batch)
end)

t.test("ObjectsAreReordered", function()
  local all = mimo.reorder(batch_object(), { order = { 4, 3, 2, 1 } })

  t.equal(all:size(), 4)
  t.equal(all.extra.labels:totable(), { 3, 2, 1, 0 })
  t.equal({ unpack(all.extra.names) }, { "d", "c", "b", "a" })
end)

t.test("AnObjectMayBeHandedOnWhole", function()
  local batch = batch_object()
  batch.extra.loop = batch.extra

  local mine = mimo.slice(batch, 1, 2, { batch_dims = { extra = false } })

  t.truthy(rawequal(mine.extra, batch.extra))
  t.raises("nested too deeply, or in itself", mimo.slice, batch, 1, 2)
end)

t.test("FieldsThatAFunctionMakesUpAreRefused", function()
  local proxy = setmetatable({}, { __pairs = pairs, __index = function() return torch.zeros { 4 } end })

  t.raises("the batch has no fields but those that __pairs of its metatable gives", mimo.slice, proxy, 0, 2)
  t.raises('"x" has no fields but those', mimo.slice, { input_ids = torch.zeros { 4 }, x = proxy }, 0, 2)
end)

-- Ownership ------------------------------------------------------------------------------------------

t.test("GridsAreRowsOfThree", function()
  local tall = whole { { 1, 1 }, { 2, 4 }, { 3, 5 } } -- [3, items]
  t.raises("mimo.ownership: grid_thw must be [items, 3], the t, h and w of each item, not", mimo.ownership,
    { items = { 1, 1 }, grid_thw = tall })
  t.raises("grid_thw must be [items, 3]", mimo.ownership, { items = { 1 }, grid_thw = whole { 1, 2, 3 } })
  t.raises("grid_thw[1] must be the t, h and w of an item, not 2 numbers", mimo.ownership,
    { items = { 1, 1 }, grid_thw = { { 1, 1 }, { 2, 4 }, { 3, 5 } } })

  local images = mimo.ownership { items = { 1, 1 }, grid_thw = { { 1, 2, 3 }, { 1, 4, 5 } } }

  t.equal(images:tokens_per_item(), { 6, 20 })
  t.truthy(images == mimo.ownership { items = { 1, 1 }, grid_thw = tall:t() })
end)

t.test("OptionsThatWouldBeIgnoredAreRefused", function()
  local rows = { rows_per_sample = { 1, 1 } }
  for option, value in pairs { tokens = { 4, 5 }, merge = 2, grid_thw = whole { { 1, 2, 2 } } } do
    t.raises("rows_per_sample says all rows, and leaves nothing to " .. option, mimo.ownership,
      { rows_per_sample = rows.rows_per_sample, [option] = value })
  end
  t.raises("num_samples goes with sample_of_item; rows_per_sample tells it by itself", mimo.ownership,
    { rows_per_sample = { 1, 1 }, num_samples = 7 })
  t.raises("num_samples goes with sample_of_item; items tells it", mimo.ownership, { items = { 1 }, num_samples = 1 })
  t.raises("merge is of grid_thw, which is not given", mimo.ownership, { items = { 1 }, tokens = { 4 }, merge = 2 })
end)

t.test("ArraysHaveNoHolesAndNoNames", function()
  t.raises("items must be an array without holes, but beside 1 to 2 it has the key x", mimo.ownership,
    { items = { 1, 2, x = 3 } })
  t.raises("mimo.ownership: items", mimo.ownership, { items = { 1, nil, 2 } })
  t.raises("tokens must be an array without holes, but beside 1 to 1 it has the key 3", mimo.ownership,
    { items = { 1 }, tokens = { [1] = 4, [3] = 5 } })
end)
