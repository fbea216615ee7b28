--- Batches that were once cut wrongly without an error: objects, lists, misspelt names.

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
    t.raises("rows_per_sample gives all rows, so there is no use for " .. option, mimo.ownership,
      { rows_per_sample = rows.rows_per_sample, [option] = value })
  end
  t.raises("num_samples goes with sample_of_item; rows_per_sample gives the number of samples already", mimo.ownership,
    { rows_per_sample = { 1, 1 }, num_samples = 7 })
  t.raises("num_samples goes with sample_of_item; items gives", mimo.ownership, { items = { 1 }, num_samples = 1 })
  t.raises("merge needs grid_thw, which is not given", mimo.ownership, { items = { 1 }, tokens = { 4 }, merge = 2 })
end)

t.test("ArraysHaveNoHolesAndNoNames", function()
  t.raises("items must be an array without holes, but beside 1 to 2 it has the key x", mimo.ownership,
    { items = { 1, 2, x = 3 } })
  t.raises("mimo.ownership: items", mimo.ownership, { items = { 1, nil, 2 } })
  t.raises("tokens must be an array without holes, but beside 1 to 1 it has the key 3", mimo.ownership,
    { items = { 1 }, tokens = { [1] = 4, [3] = 5 } })
end)

-- Lists ----------------------------------------------------------------------------------------------

local function table_of_four() return mimo.ownership { items = { 1, 1, 1, 1 }, tokens = { 1, 2, 3, 4 } } end

t.test("TablesInListsAreCutAndReordered", function()
  local batch = { input_ids = torch.zeros { 4, 2 }, list = { table_of_four() },
    named = { { images = table_of_four() } } }

  local mine = mimo.slice(batch, 1, 2)
  t.equal(mine.list[1]:rows_per_sample(), { 3, 4 })
  t.equal(mine.named[1].images:rows_per_sample(), { 3, 4 })

  local all = mimo.reorder(batch, { order = { 4, 3, 2, 1 } })
  t.equal(all.list[1]:rows_per_sample(), { 4, 3, 2, 1 })
  t.equal(all.named[1].images:rows_per_sample(), { 4, 3, 2, 1 })
end)

t.test("ABatchOfListsIsCutWhereTheyAgree", function()
  local function lists() return { ids = { 1, 2, 3, 4 }, more = { names = { "a", "b", "c", "d" } }, epoch = 1 } end

  t.equal(mimo.slice(lists(), 1, 2), { ids = { 3, 4 }, more = { names = { "c", "d" } }, epoch = 1 })
  t.equal(mimo.slice(lists(), 1, 2, { batch_dims = { names = 0 } }).ids, { 3, 4 })
  t.equal(mimo.slice(lists(), 0, 1), lists())
  local other = lists()
  other.size = { 224, 224 }
  t.raises('the batch size is unknown: no tensor has one row for each sample, and the lists differ, or hold '
    .. 'tensors ("ids" of 4, "more.names" of 4, "size" of 2); give batch_size', mimo.slice, other, 0, 2)
  t.equal(mimo.slice(other, 0, 2, { batch_size = 4 }).size, { 224, 224 })
  t.raises('"layers" of 2', mimo.slice, { layers = { torch.zeros { 4, 2 }, torch.zeros { 4, 2 } } }, 0, 2)
end)

t.test("AListThatCanBeReadInTwoWaysIsToBeDeclared", function()
  local function batch(value)
    return { input_ids = torch.zeros { 4, 2 }, layers = { value, value, value, value } }
  end
  local each = { ["layers[0]"] = 0, ["layers[1]"] = 0, ["layers[2]"] = 0, ["layers[3]"] = 0 }

  for _, value in ipairs { torch.zeros { 4, 3 }, { hidden = torch.zeros { 4, 3 } } } do
    t.raises('"layers" is a list of 4 values, and each has the rows of all 4 samples of the batch (of "input_ids" '
      .. '[4, 2]), too; say whether', mimo.slice, batch(value), 1, 2)
    t.raises("say whether it has one value for each sample", mimo.reorder, batch(value), { order = { 4, 3, 2, 1 } })
    t.equal(#mimo.slice(batch(value), 1, 2, { batch_dims = { layers = 0 } }).layers, 2)
    t.equal(#mimo.slice(batch(value), 1, 2, { batch_dims = { layers = false } }).layers, 4)
  end
  t.raises("say whether", mimo.slice, batch(table_of_four()), 1, 2)
  local layers = mimo.slice(batch(torch.zeros { 4, 3 }), 1, 2, { batch_dims = each }).layers
  t.equal(#layers, 4)
  t.equal(layers[1].shape, { 2, 3 })
  t.equal(#mimo.slice(batch(torch.zeros { 5, 3 }), 1, 2).layers, 2) -- one image for each sample
end)

-- Names and sizes ------------------------------------------------------------------------------------

t.test("MisspeltNamesDoNotCancelEachOther", function()
  local images = mimo.ownership { items = { 0, 2 } }
  local function batch()
    return { input_ids = torch.zeros { 2, 4 }, images = images, pixel_values = torch.zeros { 2 } }
  end

  t.raises('ownership declares "pixel_value", which the batch does not have; did you mean "pixel_values"?', mimo.slice,
    batch(), 0, 2, { ownership = { pixel_value = "image" } })
  t.raises('is to be "image" of the batch, which has no ownership table there; did you mean "images"?', mimo.slice,
    batch(), 0, 2, { ownership = { pixel_values = "image" } })
  t.raises('did you mean "images"?', mimo.slice, { input_ids = torch.zeros { 2, 4 }, images = images }, 0, 2,
    { ownership = { crops = "image" } })
  t.raises('did you mean "pixel_values"?', mimo.slice, batch(), 0, 2, { rows_per_sample = { pixel_value = { 0, 0 } } })
end)

t.test("AKindThatThisBatchLacksMayBeDeclaredBesideALikeOne", function()
  local batch = { input_ids = torch.zeros { 2, 4 }, images_a = mimo.ownership { items = { 0, 2 } },
    pixels_a = torch.zeros { 2 } }

  local mine = mimo.slice(batch, 1, 2, { ownership = { pixels_a = "images_a", pixels_b = "images_b" } })

  t.equal(mine.pixels_a:size(0), 2)
  mimo.slice(batch, 1, 2, { rows_per_sample = { pixels_a = { 0, 2 }, pixels_b = { 0, 0 } } })
end)

t.test("ASizeThatAnotherTensorContradictsIsNoAdvice", function()
  local batch = { pixels = torch.zeros { 7, 2 }, x = torch.zeros { 4, 2 } }

  t.raises('batch size 7 of "pixels" [7, 2] is not divisible by dp_size 2, and "x" [4, 2] has 4; give batch_size, and '
    .. "ownership", mimo.slice, batch, 0, 2)
  t.raises('use 6 or 8', mimo.slice, { pixels = torch.zeros { 7, 2 }, x = torch.zeros { 7, 2 } }, 0, 2)
  t.raises('use 6 or 8', mimo.slice, { pixels = torch.zeros { 4, 2 }, input_ids = torch.zeros { 7, 2 } }, 0, 2)
  t.raises('if that is not the batch\'s size, give batch_size, and ownership', mimo.slice,
    { pixels = torch.zeros { 8, 2 }, x = torch.zeros { 4, 2 } }, 0, 2)
  local mine = mimo.slice(batch, 0, 2, { batch_size = 4, rows_per_sample = { pixels = { 3, 0, 2, 2 } } })
  t.equal({ mine.pixels:size(0), mine.x:size(0) }, { 3, 2 })
end)
