--- Code that tests of parity, reads and order share: a small vision-language model. For the last two also a data set
--- whose samples are read one by one, with 0 to 3 images of different sizes, and a training step over any grid.

local dist = require "lockstep.distributed"
local fully_shard = require "lockstep.sharding.fully_shard"
local mimo = require "lockstep.mimo"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local M = { LENGTH = 28 }

local VOCABULARY, IMAGE, HIDDEN, PIXELS = 11, 10, 8, 5

--- Draws whole numbers, the same on every rank.
function M.new_draw(seed)
  local state = 7919 * seed + 17
  return function(low, high)
    state = state * 16807 % 2147483647
    return low + math.floor(state / 1000) % (high - low + 1)
  end
end

-- The data ----------------------------------------------------------------------------------------

--- Returns the sample of each row, from 0.
function M.owners(rows)
  local list = {}
  for sample, count in ipairs(rows) do
    for _ = 1, count do list[#list + 1] = sample - 1 end
  end
  return torch.tensor(list, { dtype = torch.int64 })
end

--- Samples by position, from 1, each drawn from its number alone. `reads` counts them.
function M.dataset(num_samples)
  local set = { num_samples = num_samples, reads = 0 }
  function set.read(position)
    assert(position >= 1 and position <= num_samples)
    set.reads = set.reads + 1
    local random = 7919 * position + 17
    local function draw(n)
      random = (random * 16807) % 2147483647
      return math.floor(random / 1000) % n
    end
    local sample = { id = "sample" .. position, grids = {}, ids = {}, labels = {}, tokens = 0, pixels = {} }
    for i = 1, draw(4) do
      local h, w = 1 + draw(3), 1 + draw(3)
      sample.grids[i], sample.tokens = { 1, h, w }, sample.tokens + h * w
    end
    for i = 1, sample.tokens do
      sample.pixels[i] = {}
      for j = 1, PIXELS do sample.pixels[i][j] = draw(2000) / 1000 - 1 end
    end
    for j = 1, M.LENGTH do
      sample.ids[j] = j <= sample.tokens and IMAGE or draw(IMAGE)
      sample.labels[j] = (j <= sample.tokens or draw(3) == 0) and -100 or draw(IMAGE)
    end
    return sample
  end
  return set
end

--- Samples as tensors, with their table.
function M.collate(samples)
  local ids, labels, grids, pixels, items, names = {}, {}, {}, {}, {}, {}
  for i, sample in ipairs(samples) do
    names[i], ids[i], labels[i], items[i] = sample.id, sample.ids, sample.labels, #sample.grids
    for _, grid in ipairs(sample.grids) do grids[#grids + 1] = grid end
    for _, row in ipairs(sample.pixels) do pixels[#pixels + 1] = row end
  end
  local function whole(values) return torch.tensor(values, { dtype = torch.int64 }) end
  local grid = #grids > 0 and whole(grids) or torch.zeros({ 0, 3 }, { dtype = torch.int64 })
  return { samples = names, input_ids = whole(ids), labels = whole(labels), image_grid_thw = grid,
    pixel_values = #pixels > 0 and torch.tensor(pixels) or torch.zeros { 0, PIXELS },
    images = mimo.ownership { items = items, grid_thw = grid } }
end

--- For mimo.slice and mimo.reorder: whose the rows of a batch are.
M.OWNERSHIP = { image_grid_thw = { "images", "items" }, pixel_values = "images" }

-- The model ---------------------------------------------------------------------------------------

local Tower = nn.Module:subclass("Tower")
function Tower:init() self.fc1, self.fc2 = nn.Linear(PIXELS, HIDDEN), nn.Linear(HIDDEN, HIDDEN) end

--- Patches [P, PIXELS] of images [n, 3] to tokens [P, HIDDEN]; the tokens of an image know its mean.
function Tower:forward(patches, grids)
  local sizes = grids:prod({ dim = 1 })
  local image_of = torch.repeat_interleave(torch.arange(grids:size(0)), sizes)
  local h = torch.gelu(self.fc1(patches))
  local sums = torch.zeros({ grids:size(0), HIDDEN }):index_add(0, image_of, h)
  return self.fc2(h + (sums / sizes:unsqueeze(1)):index_select(0, image_of))
end

local Language = nn.Module:subclass("Language")
function Language:init()
  self.embed, self.mix, self.head = nn.Embedding(VOCABULARY, HIDDEN), nn.Linear(HIDDEN, HIDDEN),
    nn.Linear(HIDDEN, VOCABULARY)
end

--- The sum of the losses of each sample [B].
function Language:forward(batch, features)
  local x = self.embed(batch.input_ids)
  x = x:masked_scatter(batch.input_ids:eq(IMAGE):unsqueeze(2), features)
  local length = batch.labels:size(1)
  x = x + torch.cumsum(x, 1) / torch.arange(1, length + 1):unsqueeze(1)
  local logits = self.head(torch.tanh(self.mix(x)))
  return nn.cross_entropy(logits:view(-1, VOCABULARY), batch.labels:view(-1), { reduction = "none" })
    :view(-1, length):sum(1)
end

--- Both modules, of the same weights on every rank.
function M.modules()
  torch.manual_seed(1)
  return { vision = Tower(), language = Language() }
end

-- Training ----------------------------------------------------------------------------------------

function M.apart(vision, language)
  return mimo.topology { modules = { { name = "vision", dp = vision },
    { name = "language", first_rank = vision, dp = language } } }
end
function M.together(vision, language)
  return mimo.topology { modules = { { name = "vision", dp = vision, tp = dist.world_size() / vision },
    { name = "language", dp = language, tp = dist.world_size() / language } } }
end

--- Returns the whole gradients of a module by name. Collective over its ranks if sharding.fully_shard has divided it.
function M.gradients_of(module)
  local gradients = {}
  for parameter, p in module:named_parameters() do
    local place = fully_shard.place_of(p)
    if not place then
      gradients[parameter] = p.grad:clone()
    elseif not gradients[parameter] then -- else with its unit
      local pieces = {}
      for i, member in ipairs(place.unit_parameters()) do
        pieces[i] = member.shard.grad or torch.zeros_like(member.shard)
      end
      for name, whole in pairs(place.gather(pieces)) do gradients[name] = whole:clone() end
    end
  end
  return gradients
end

--- Trains on the topology with micro-batches of `reader` (a mimo.loader) until it ends. Returns by step the loss of
--- each sample by its id (on ranks of the language model), the joint loss, and gradients by name. Options:
--- `micro_batches` of a step; `change(batch, whole)`, called before they are used; `wrap(name, module)` returns what to
--- train in place of a module.
function M.train(topology, reader, opts)
  local change = opts and opts.change or function(batch, whole) return batch, whole end
  local micro_batches = opts and opts.micro_batches or 1
  local modules = M.modules()
  for name in pairs(modules) do
    if not topology:peers(name, "dp") then modules[name] = nil end
  end
  for _, name in ipairs { "vision", "language" } do
    if modules[name] and opts and opts.wrap then modules[name] = opts.wrap(name, modules[name]) end
  end
  local all, steps = {}, {}
  for _, module in pairs(modules) do
    for _, p in ipairs(module:parameters()) do all[#all + 1] = p end
  end
  local optimizer = optim.AdamW(all, { lr = 5e-3, eps = 1e-2, weight_decay = 0.1 })
  local bridge = mimo.bridge { topology = topology, from = "vision", to = "language" }
  local function part_of(batch, name)
    local dp_rank, dp_size = reader:dp_info(name)
    return mimo.slice(batch, dp_rank, dp_size, { ownership = M.OWNERSHIP })
  end
  local batch, whole = reader()
  while batch do
    local roots, step, count = {}, { samples = {}, gradients = {} }, 0
    for m = 1, micro_batches do
      batch, whole = change(batch, whole)
      local features
      if modules.vision then
        local mine = part_of(batch, "vision")
        features = modules.vision(mine.pixel_values, mine.image_grid_thw)
      end
      features = bridge(features, whole)
      roots[m] = torch.sum(features)
      if modules.language then
        local mine = part_of(batch, "language")
        local losses = modules.language(mine, features)
        roots[m], count = losses:sum(), count + mine.labels:ne(-100):sum():item()
        for i, id in ipairs(mine.samples) do step.samples[id] = losses[i - 1]:item() end
      end
      batch, whole = reader()
    end
    local counts = modules.language and topology:coordinates(nil, "language").tp == 0 -- not its tp twin
    local loss_sum = torch.zeros {}
    for _, root in ipairs(roots) do
      if counts then loss_sum = loss_sum + root:detach() end
      root:backward()
    end
    local tokens = mimo.reduce_gradients { topology = topology, modules = modules, loss = "sum",
      tokens = modules.language and count or nil }
    for _, name in ipairs { "vision", "language" } do
      for parameter, gradient in pairs(modules[name] and M.gradients_of(modules[name]) or {}) do
        step.gradients[name .. "." .. parameter] = gradient
      end
    end
    step.norm = mimo.clip_grad_norm { topology = topology, modules = modules, max_norm = 0.1,
      tp_sharded = function() return false end }:item()
    step.loss = (dist.all_reduce(loss_sum) / tokens):item()
    optimizer:step()
    optimizer:zero_grad()
    steps[#steps + 1] = step
  end
  return steps
end

local function relative(actual, expected)
  if type(actual) == "number" then return math.abs(actual - expected) / math.abs(expected) end
  return ((actual - expected):abs():max() / expected:abs():max()):item()
end

--- Fails unless the steps of two runs have the same losses of every sample, wherever it was, gradients and norms, to a
--- relative `tolerance`. Collective.
function M.compare(steps, expected, tolerance)
  t.equal(#steps, #expected)
  for number, wanted in ipairs(expected) do
    local actual = steps[number]
    local function check(what, a, b)
      local off = relative(a, b)
      t.truthy(off <= tolerance, ("step %d: %s is off by %g"):format(number, what, off))
    end
    check("the loss", actual.loss, wanted.loss)
    check("the norm", actual.norm, wanted.norm)
    for name, gradient in pairs(wanted.gradients) do
      check("the gradient of " .. name, actual.gradients[name], gradient)
    end
    local function samples_of(step)
      local samples, count = {}, 0
      for _, own in ipairs(dist.all_gather_object(step.samples)) do
        for id, loss in pairs(own) do
          if not samples[id] then count = count + 1 end
          samples[id] = loss
        end
      end
      return samples, count
    end
    local losses, count = samples_of(actual)
    local wanted_losses, wanted_count = samples_of(wanted)
    t.equal(count, wanted_count)
    for id, loss in pairs(wanted_losses) do check("the loss of " .. id, losses[id], loss) end
  end
end

return M
