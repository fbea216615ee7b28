--- One table of ownership for slices, the bridge and the gradients' way back: vision dp 2, language dp 1.

local dist = require "lockstep.distributed"
local mimo = require "lockstep.mimo"
local nn = require "lockstep.nn"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local RANK = dist.rank()
local topo = mimo.topology { modules = { { name = "vision", dp = 2 }, { name = "language", first_rank = 2 } } }
local is_vision = topo:module() == "vision"

-- Samples with 1, no, 2 and no images, of 4, 4 and 16 tokens.
local function new_table() return mimo.ownership { items = { 1, 0, 2, 0 }, tokens = { 4, 4, 16 } } end

-- The table ------------------------------------------------------------------------------------------

t.test("ATableIsMadeInSeveralWays", function()
  local images = new_table()
  local grid = torch.tensor({ { 1, 4, 4 }, { 1, 4, 4 }, { 1, 8, 8 } }, { dtype = torch.int64 })
  local items = torch.tensor({ 1, 0, 2, 0 }, { dtype = torch.int32 })

  t.truthy(images == mimo.ownership { items = items, grid_thw = grid, merge = 2 })
  t.truthy(images == mimo.ownership { sample_of_item = { 1, 3, 3 }, num_samples = 4, tokens = { 4, 4, 16 } })
  t.truthy(images ~= mimo.ownership { rows_per_sample = { 4, 0, 20, 0 } })
  t.equal(mimo.ownership({ rows_per_sample = { 4, 0, 20, 0 } }):rows_per_sample(), images:rows_per_sample())
  t.equal(mimo.ownership({ items = { 2, 1 } }):tokens_per_item(), { 1, 1, 1 })
  t.equal(tostring(images), "ownership: 4 samples, 3 items, 24 tokens")
end)

t.test("ATableTellsWhoseRowsAreWhose", function()
  local images = new_table()

  t.equal(images:rows_per_sample(), { 4, 0, 20, 0 })
  t.equal(images:rows_per_sample("items"), { 1, 0, 2, 0 })
  t.equal(images:rows_per_sample("samples"), { 1, 1, 1, 1 })
  t.equal({ images:num_rows "samples", images:num_rows "items", images:num_rows() }, { 4, 3, 24 })
  t.truthy(images:slice(1, 2) == mimo.ownership { items = { 2, 0 }, tokens = { 4, 16 } })
  t.truthy(images:slice(0, 3, { uneven = true }) == mimo.ownership { items = { 1, 0 }, tokens = { 4 } })
  t.truthy(images:reordered { 3, 1, 2, 4 } == mimo.ownership { items = { 2, 1, 0, 0 }, tokens = { 4, 16, 4 } })
  t.equal(images:costs(), { 4, 0, 20, 0 })
  t.equal(images:costs { text_tokens = { 1, 2, 3, 4 }, per_item_token = 2, per_text_token = 10 }, { 18, 20, 70, 40 })
end)

t.test("MistakesAreNamed", function()
  local images = new_table()
  for _, case in ipairs {
    { {}, "give the owners of the rows: items (of each sample)" },
    { { items = { 1 }, rows_per_sample = { 1 } }, "give items or rows_per_sample, not both" },
    { { items = { 1, -1 }, tokens = { 3 } }, "items of sample 1 are -1" },
    { { items = { 1, 1 }, tokens = { 3 } }, "the samples have 2 items in all, but tokens are given for 1" },
    { { items = { 1 }, tokens = { 3 }, grid_thw = torch.ones({ 1, 3 }, { dtype = torch.int64 }) }, "not both" },
    { { items = { 1 }, grid_thw = torch.tensor({ { 1, 3, 3 } }, { dtype = torch.int64 }), merge = 2 },
      "divisible by merge 2" },
    { { sample_of_item = { 2, 1 }, num_samples = 2 }, "sample_of_item[2] is 1, less than the 2 before it" },
    { { sample_of_item = { 0, 1 }, num_samples = 2 }, "sample_of_item[1] is 0, but samples are 1 to num_samples, 2" },
    { { sample_of_item = { 1, 3 }, num_samples = 2 }, "sample_of_item[2] is 3" },
    { { sample_of_item = { 1, 2 }, num_samples = 2, tokens = { 4 } }, "tokens are given for 1" },
    { { sample_of_item = { 1 } }, "needs num_samples" },
    { { item = { 1 } }, 'did you mean "items"' },
    { { items = torch.zeros { 2 } }, "must be an array of whole numbers or a 1-D tensor" },
  } do
    t.raises(case[2], mimo.ownership, case[1])
  end
  t.raises("not divisible by dp_size 3; use 3 or 6", images.slice, images, 0, 3)
  t.raises("each of the samples 1 to 4 once", images.reordered, images, { 1, 2, 2, 4 })
  t.raises('"samples", "items" or "tokens", not of "patches"', images.num_rows, images, "patches")
  t.raises("text_tokens holds 1 numbers, but the table is of 4 samples", images.costs, images, { text_tokens = { 1 } })
end)

-- Slices ---------------------------------------------------------------------------------------------

local function batch_of_four(images)
  local vision = { crops = torch.arange(6):view(3, 2), patches = torch.arange(48):view(24, 2),
    columns = torch.arange(24) }
  return { input_ids = torch.arange(8):view(4, 2), images = images, names = { "a", "b", "c" }, vision = vision }
end

t.test("SlicesFollowTheTable", function()
  local images = new_table()
  local batch = batch_of_four(images)
  for _, given in ipairs { images, "images" } do -- itself, or its name in the batch
    local opts = { ownership = { crops = { given, "items" }, names = { given, "items" }, ["vision.patches"] = given,
      columns = { given, "tokens" } } }

    local first, second = mimo.slice(batch, 0, 2, opts), mimo.slice(batch, 1, 2, opts)

    t.equal(first.vision.crops, batch.vision.crops:narrow(0, 0, 1))
    t.equal(second.vision.crops, batch.vision.crops:narrow(0, 1, 2))
    t.equal(second.names, { "b", "c" })
    t.truthy(second.vision.patches:is_set_to(batch.vision.patches:narrow(0, 4, 20)))
    t.equal(first.vision.columns, batch.vision.columns:narrow(0, 0, 4))
    t.truthy(second.images == images:slice(1, 2))
  end
  -- The same cut as by counts.
  local rows = { rows_per_sample = { crops = { 1, 0, 2, 0 }, names = { 1, 0, 2, 0 }, patches = { 4, 0, 20, 0 },
    columns = { 4, 0, 20, 0 } } }
  t.truthy(mimo.slice(batch, 1, 2, rows).vision.patches:is_set_to(batch.vision.patches:narrow(0, 4, 20)))
end)

t.test("TablesThatDoNotFitAreNamed", function()
  local batch = batch_of_four(new_table())
  local rest = { crops = { "images", "items" }, names = { "images", "items" }, columns = "images" }
  local function error_of(text, patches)
    local given = { patches = patches }
    for key, owned in pairs(rest) do given[key] = owned end
    t.raises(text, mimo.slice, batch, 1, 2, { ownership = given })
  end
  error_of('ownership of "vision.patches" [24, 2] has 3 items, but there are 24 rows', { "images", "items" })
  error_of('"image" of the batch, which has no ownership table there', "image")
  error_of("is of 1 samples, but the batch has 4 samples", mimo.ownership { rows_per_sample = { 24 } })
  error_of("mimo.slice: ownership.patches must be a table of mimo.ownership", 24)
  t.raises("mimo.slice: batch_size must be a number", mimo.slice, batch, 0, 2, { batch_size = "4" })
end)

-- The bridge -----------------------------------------------------------------------------------------

t.test("SliceBridgeAndGradientsFollowOneTable", function()
  local images = new_table()
  local batch = { images = images, patches = torch.arange(48, { dtype = torch.float64 }):view(24, 2),
    crops = torch.arange(6, { dtype = torch.float64 }):view(3, 2) }
  local bridge = mimo.bridge { topology = topo, from = "vision", to = "language" }
  local cases = { { "patches", images }, { "patches", { images, "tokens" } }, { "crops", { images, "items" } } }
  for _, case in ipairs(cases) do
    local key, owned = case[1], case[2]
    local dp_rank, dp_size = topo:dp_info()
    local opts = { ownership = { patches = "images", crops = { "images", "items" } } }
    local mine = mimo.slice(batch, dp_rank, dp_size, opts)[key]
    local x = is_vision and (mine * 10):requires_grad_(true) or nil

    local y = bridge(x, { ownership = owned, samples = { 1, 2, 3, 4 } })

    if is_vision then
      torch.sum(y):backward()
      t.equal(x.grad, mine * 3) -- each row meets its own gradient
    else
      t.equal(y, batch[key] * 10)
      torch.sum(y * (batch[key] * 3)):backward()
    end
  end
end)

t.test("CountsAndTablesOfTheSameRowsAgree", function()
  local bridge = mimo.bridge { topology = topo, from = "vision", to = "language" }
  local x = is_vision and torch.full({ RANK == 0 and 4 or 20, 2 }, RANK):requires_grad_(true) or nil

  local y = bridge(x, is_vision and { ownership = new_table() } or { rows_per_sample = { 4, 0, 20, 0 } })

  if not is_vision then t.equal(y:sum():item(), 40) end
  torch.sum(y):backward()
end)

t.test("TablesThatDifferAreNamedOnBothSides", function()
  local bridge = mimo.bridge { topology = topo, from = "vision", to = "language" }
  local other = mimo.ownership { rows_per_sample = { 4, 0, 19, 1 } }
  local x = is_vision and torch.zeros({ RANK == 0 and 4 or 20, 2 }):requires_grad_(true) or nil

  t.raises("the ranks disagree about the micro-batch", function()
    torch.sum(bridge(x, { ownership = is_vision and new_table() or other })):backward()
  end)
end)

t.test("MistakesInACallReachItsPeers", function()
  for _, case in ipairs {
    { { ownership = "images" }, "must be a table of mimo.ownership" },
    { { ownership = new_table(), rows_per_sample = { 4, 0, 20, 0 } }, "give ownership or rows_per_sample, not both" },
    { { ownership = { 4, 0, 20, 0 } }, "must be a table of mimo.ownership" },
  } do
    local bridge = mimo.bridge { topology = topo, from = "vision", to = "language" }
    local x = is_vision and torch.zeros({ RANK == 0 and 4 or 20, 2 }):requires_grad_(true) or nil
    t.raises(is_vision and case[2] or "(vision) failed: mimo: bridge", function()
      torch.sum(bridge(x, is_vision and case[1] or { ownership = new_table() })):backward()
    end)
  end
end)

t.test("CountsOfMoreItemsOrSamplesThanMemoryHoldsAreErrors", function()
  t.raises("items add up to 2147483648; a micro-batch has at most 16777216", mimo.ownership, { items = { 2 ^ 31 } })
  t.raises("items add up to 9007199254740992", mimo.ownership, { items = { 2 ^ 52, 2 ^ 52, 2 ^ 52 } })
  t.raises("num_samples is 1099511627776; a micro-batch has 0 to 1048576 samples", mimo.ownership,
    { sample_of_item = { 1 }, num_samples = 2 ^ 40 })
  t.raises("items", mimo.ownership, { items = { 2 ^ 31 }, tokens = { 1 } })
end)

-- Packing after the slice: replicas that pack their samples train as one rank does on the padded batch. Samples have no
-- image, or up to three of different sizes.

local SAMPLES, WIDTH, PAD, IMAGE, VOCABULARY, HIDDEN, PIXELS = 6, 24, 0, 1, 12, 6, 4

local function whole(values) return torch.tensor(values, { dtype = torch.int64 }) end

--- A padded micro-batch, the same wherever it is drawn. The padding id is also a word.
local function draw(seed)
  math.randomseed(seed)
  torch.manual_seed(seed)
  local ids, mask, labels, positions, items, grids, patches = {}, {}, {}, {}, {}, {}, 0
  for i = 1, SAMPLES do
    ids[i], mask[i], labels[i], positions[i], items[i] = {}, {}, {}, {}, math.random(0, 3)
    local visual = 0
    for _ = 1, items[i] do
      local h, w = math.random(1, 2), math.random(1, 3)
      grids[#grids + 1], visual = { 1, h, w }, visual + h * w
    end
    local length = math.random(visual + 1, WIDTH)
    local shift = seed % 2 == 0 and 0 or WIDTH - length -- padding is on the left of odd batches
    for j = 1, WIDTH do
      local at = j - shift
      local is_token, is_visual = at >= 1 and at <= length, at >= 1 and at <= visual
      ids[i][j] = is_visual and IMAGE or is_token and (math.random(3) == 1 and PAD or math.random(2, VOCABULARY - 1))
        or PAD
      mask[i][j], positions[i][j] = is_token and 1 or 0, math.max(at - 1, 0)
      labels[i][j] = is_token and not is_visual and math.random(0, VOCABULARY - 1) or -100
    end
    patches = patches + visual
  end
  local grid = #grids > 0 and whole(grids) or torch.zeros({ 0, 3 }, { dtype = torch.int64 })
  return { input_ids = whole(ids), attention_mask = whole(mask), labels = whole(labels),
    position_ids = whole(positions):unsqueeze(0):expand { 3, SAMPLES, WIDTH }, samples = { 1, 2, 3, 4, 5, 6 },
    pixel_values = torch.randn { patches, PIXELS }, image_grid_thw = grid,
    images = mimo.ownership { items = items, grid_thw = grid } }
end

local OWNERSHIP = { image_grid_thw = { "images", "items" }, pixel_values = "images" }

-- The model ---------------------------------------------------------------------------------------

local Language = nn.Module:subclass("Language")
function Language:init()
  self.embed, self.place = nn.Embedding(VOCABULARY, HIDDEN), nn.Embedding(WIDTH, HIDDEN)
  self.mix, self.head = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, VOCABULARY)
end

function Language:embeddings(ids, positions, features)
  local x = self.embed(ids)
  return x:masked_scatter(ids:eq(IMAGE):unsqueeze(-1), features) + self.place(positions)
end

--- The sum of the losses, where `mean` has the mean of its sample for each token.
function Language:loss(x, mean, labels)
  local logits = self.head(torch.tanh(self.mix(x + mean)))
  return nn.cross_entropy(logits:view(-1, VOCABULARY), labels:reshape(-1), { reduction = "sum" })
end

--- Of padded samples [B, S].
function Language:padded(batch, features)
  local x = self:embeddings(batch.input_ids, batch.position_ids[0], features)
  local mask = batch.attention_mask:unsqueeze(2):to(x.dtype)
  return self:loss(x, (x * mask):sum({ 1 }):unsqueeze(1) / mask:sum({ 1 }):unsqueeze(1), batch.labels)
end

--- Of packed samples [T].
function Language:packed(batch, features)
  local x = self:embeddings(batch.input_ids, batch.position_ids[0], features)
  local lengths = whole(batch.seq_lens)
  local sample = torch.repeat_interleave(torch.arange(#batch.seq_lens), lengths)
  local sums = torch.zeros({ #batch.seq_lens, HIDDEN }):index_add(0, sample, x)
  return self:loss(x, (sums / lengths:unsqueeze(1)):index_select(0, sample), batch.labels)
end

local function build()
  torch.manual_seed(1)
  return { vision = nn.Linear(PIXELS, HIDDEN), language = Language() }
end

-- Ranks ---------------------------------------------------------------------------------------------

for _, grid in ipairs { { 2, 1 }, { 1, 2 } } do
  t.test(("ReplicasThatPackTheirPartTrainAsOneRank(%d + %d)"):format(unpack(grid)), function()
    torch.set_default_dtype(torch.float64)
    local topology = mimo.topology { modules = { { name = "vision", dp = grid[1] },
      { name = "language", first_rank = grid[1], dp = grid[2] } } }
    local bridge = mimo.bridge { topology = topology, from = "vision", to = "language" }
    local name = topology:module()
    for seed = 1, 30 do
      local batch, modules, alone = draw(seed), build(), build()
      local tokens = batch.labels:ne(-100):sum():item()
      local expected = alone.language:padded(batch, alone.vision(batch.pixel_values))
      local mean = expected / tokens
      mean:backward()

      local dp_rank, dp_size = topology:dp_info()
      local mine = mimo.slice(batch, dp_rank, dp_size, { ownership = OWNERSHIP, uneven = true })
      local x = name == "vision" and modules.vision(mine.pixel_values) or nil
      local y, loss, own = bridge(x, { ownership = batch.images, samples = batch.samples }), nil, nil
      if name == "language" then
        local packed = mimo.pack(mine)
        t.equal(packed.attention_mask, nil)
        t.equal(#packed.seq_lens, mine.input_ids:size(0))
        t.equal(packed.input_ids:eq(IMAGE):sum():item(), y:size(0)) -- the images are those of these tokens
        t.truthy(packed.images == mine.images)
        loss, own = modules.language:packed(packed, y), packed.labels:ne(-100):sum():item()
      end
      (loss or torch.sum(y)):backward()
      mimo.reduce_gradients { topology = topology, modules = { [name] = modules[name] }, loss = "sum", tokens = own }

      t.near(dist.all_reduce(loss and loss:detach() or torch.zeros {}):item() / expected:item(), 1, 1e-12)
      for parameter, p in modules[name]:named_parameters() do
        for other, q in alone[name]:named_parameters() do
          if other == parameter then t.near(p.grad, q.grad, 1e-12) end
        end
      end
    end
  end)
end

t.test("EqualPartsOfAPackedRowHaveTokensAndImagesOfOtherSamples", function()
  local other_tokens, other_images = 0, 0
  for seed = 1, 30 do
    local batch = draw(seed)
    local ids = mimo.pack(batch).input_ids
    local naive = ids:narrow(0, 0, math.floor(ids:size(0) / 2)) -- what the first replica would train on
    local mine = mimo.slice(batch, 0, 2, { ownership = OWNERSHIP })
    if naive:size(0) ~= mimo.pack(mine).input_ids:size(0) then other_tokens = other_tokens + 1 end
    if naive:eq(IMAGE):sum():item() ~= mine.pixel_values:size(0) then other_images = other_images + 1 end
  end
  t.truthy(other_tokens > 25, other_tokens)
  t.truthy(other_images > 5, other_images)
end)

t.test("APackedBatchIsCutBetweenItsSamples", function()
  for seed = 1, 30 do
    local batch = draw(seed)
    for dp_rank = 0, 2 do
      local first = mimo.pack(mimo.slice(batch, dp_rank, 3, { ownership = OWNERSHIP }))
      local second = mimo.slice(mimo.pack(batch), dp_rank, 3, { ownership = OWNERSHIP })
      for _, key in ipairs { "input_ids", "labels", "position_ids", "pixel_values", "seq_lens", "samples" } do
        t.equal(first[key], second[key], key)
      end
    end
  end
end)

t.test("ListsAndKeysThatStayWhole", function()
  local packed = mimo.pack({ mask = whole { { 1, 0 }, { 1, 1 } }, advantages = { { 1, 2 }, { 3, 4 } },
    table_of = whole { { 5, 6 }, { 7, 8 } }, name = "x" }, { mask = "mask", whole = { "table_of" } })

  t.equal(packed.advantages, { 1, 3, 4 })
  t.equal(packed.seq_lens, { 1, 2 })
  t.equal(packed.table_of, whole { { 5, 6 }, { 7, 8 } })
  t.equal(packed.name, "x")
  t.raises('the batch has no tensor "attention_mask"', mimo.pack, { input_ids = torch.zeros { 2, 3 } })
  t.raises('mimo.pack: unknown option "masks"', mimo.pack, {}, { masks = "x" })
  local function batch(fields)
    fields.input_ids, fields.attention_mask = torch.zeros { 2, 3 }, fields.attention_mask or torch.ones { 2, 3 }:bool()
    return fields
  end
  t.raises('"attention_mask" must be a tensor [samples, width], not a list', mimo.pack,
    batch { attention_mask = { { 1, 1, 0 }, { 1, 1, 1 } } })
  t.raises('"cu_seqlens" does not hold the running sums of the packed samples, from 0 to 6: its value 1 is 2, and '
    .. "theirs 3", mimo.pack, batch { cu_seqlens = { 0, 2, 6 } })
  t.equal(mimo.pack(batch { cu_seqlens = { 0, 3, 6 } }).cu_seqlens, { 0, 3, 6 })
  t.raises('"advantages" [2, 4] has width 4, but "attention_mask" [2, 3] has width 3', mimo.pack,
    batch { advantages = torch.ones { 2, 4 } })
end)
