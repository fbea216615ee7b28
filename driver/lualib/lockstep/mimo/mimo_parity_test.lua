--- One small vision-language model, trained on one rank and on grids that tile this run's world: the same losses,
--- gradients and global norm at every step. Samples have no image, or up to three of different sizes. Context-parallel
--- ranks of the tower all compute all of their replica's images; those of the language model divide the loss.

local dist = require "lockstep.distributed"
local fixture = require "mimo_fixture"
local mimo = require "lockstep.mimo"
local optim = require "lockstep.optim"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local WORLD = dist.world_size()
local STEPS, MICRO_BATCHES, SAMPLES, LENGTH = 50, 2, 12, 16
local IMAGE, PIXELS = 10, 5 -- as mimo_fixture.lua's model has them
local MAX_NORM = 0.02 -- below the norms that occur: clipping takes part

--- The sum of the losses where labels are not -100, and how many those are.
local function loss_of(language, batch, features)
  return language(batch, features):sum(), batch.labels:ne(-100):sum():item()
end

-- The data ----------------------------------------------------------------------------------------

local random = 1
local function draw(n)
  random = (random * 16807) % 2147483647
  return random % n
end

--- A whole micro-batch, the same wherever it is drawn.
local function draw_batch(seed)
  random = seed
  torch.manual_seed(seed)
  local ids, labels, grids, images, tokens, samples = {}, {}, {}, {}, {}, {}
  for i = 1, SAMPLES do
    images[i], tokens[i], samples[i] = draw(4), 0, draw(1000000)
    for _ = 1, images[i] do
      local h, w = 1 + draw(2), 1 + draw(2)
      grids[#grids + 1] = { 1, h, w }
      tokens[i] = tokens[i] + h * w
    end
    ids[i], labels[i] = {}, {}
    for j = 1, LENGTH do
      ids[i][j] = j <= tokens[i] and IMAGE or draw(IMAGE)
      labels[i][j] = (j <= tokens[i] or draw(3) == 0) and -100 or draw(IMAGE)
    end
  end
  local function whole(values) return torch.tensor(values, { dtype = torch.int64 }) end
  local patches = 0
  for _, n in ipairs(tokens) do patches = patches + n end
  return { input_ids = whole(ids), labels = whole(labels), image_grid_thw = whole(grids), samples = samples,
    pixel_values = torch.randn { patches, PIXELS } }, images, tokens
end

-- One rank ----------------------------------------------------------------------------------------

local function optimizer_of(parameters)
  return optim.AdamW(parameters, { lr = 5e-3, eps = 1e-2, weight_decay = 0.1 })
end

--- By step: loss, norm and the gradients by "module.name". `parts`: into how many replicas' means the loss is divided,
--- or nil for the mean over tokens.
local function train_alone(steps, parts)
  local modules, curve = fixture.modules(), {}
  local all = {}
  for _, name in ipairs { "vision", "language" } do
    for _, p in ipairs(modules[name]:parameters()) do all[#all + 1] = p end
  end
  local optimizer = optimizer_of(all)
  for step = 1, steps do
    local loss_sum, count = 0, 0
    local losses = {}
    for m = 1, MICRO_BATCHES do
      local batch, images = draw_batch(1000 * step + m)
      for part = 0, (parts or 1) - 1 do
        local mine = mimo.slice(batch, part, parts or 1, { rows_per_sample = { image_grid_thw = images } })
        local loss, tokens = loss_of(modules.language, mine,
          modules.vision(mine.pixel_values, mine.image_grid_thw))
        losses[#losses + 1] = { loss, tokens }
        loss_sum, count = loss_sum + loss:item(), count + tokens
      end
    end
    for _, entry in ipairs(losses) do
      (entry[1] / (parts and entry[2] * parts * MICRO_BATCHES or count)):backward()
    end
    local gradients = {}
    for name, module in pairs(modules) do
      for parameter, p in module:named_parameters() do gradients[name .. "." .. parameter] = p.grad:clone() end
    end
    local norm = optim.clip_grad_norm(all, MAX_NORM):item()
    t.truthy(norm > MAX_NORM, "the norm is not clipped")
    curve[step] = { loss = loss_sum / count, norm = norm, gradients = gradients }
    optimizer:step()
    optimizer:zero_grad()
  end
  return curve
end

-- Many ranks --------------------------------------------------------------------------------------

local function relative(actual, expected)
  if type(actual) == "number" then return math.abs(actual - expected) / math.abs(expected) end
  return ((actual - expected):abs():max() / expected:abs():max()):item()
end

--- The labels of a context-parallel rank: each has the loss of every cp-th token. Without cp, all.
local function labels_of_rank(topology, labels)
  local cp = #topology:peers("language", "cp")
  if cp == 1 then return labels end
  local others = torch.arange(LENGTH):remainder(cp):ne(topology:coordinates(nil, "language").cp)
  return labels:masked_fill(others:unsqueeze(0), -100)
end

--- Tokens with a loss of the rank's replica of "language", all its cp ranks together.
local function tokens_of_replica(topology, tokens)
  local group = topology:group("language", "cp")
  return group and dist.all_reduce(torch.tensor(tokens), "sum", { group = group }):item() or tokens
end

--- Trains on the topology and compares with `curve` at every step. loss: "sum" or "mean".
local function compare(topology, curve, loss_kind, tolerance)
  -- Simulates the order below, the order of scripts/mimo_digits.lua.
  topology:validate { micro_batch_size = SAMPLES, global_batch_size = SAMPLES * MICRO_BATCHES, uneven = true,
    order = "all_forwards_first" }
  local is_vision, is_language = topology:peers("vision", "dp") ~= nil, topology:peers("language", "dp") ~= nil
  local modules, all = fixture.modules(), {}
  modules = { vision = is_vision and modules.vision or nil, language = is_language and modules.language or nil }
  for _, module in pairs(modules) do
    for _, p in ipairs(module:parameters()) do all[#all + 1] = p end
  end
  local optimizer = optimizer_of(all)
  local bridge = mimo.bridge { topology = topology, from = "vision", to = "language" }
  local next_seed
  local batches = mimo.loader { topology = topology, micro_batches = MICRO_BATCHES, source = function()
    next_seed = next_seed + 1
    local batch, images, tokens = draw_batch(next_seed)
    batch.images, batch.tokens = images, tokens
    return batch
  end }
  for step, expected in ipairs(curve) do
    next_seed = 1000 * step
    local loss_sum, count, roots = 0, 0, {}
    for m = 1, MICRO_BATCHES do
      local batch = batches()
      local opts = { rows_per_sample = { image_grid_thw = batch.images }, batch_dims = { tokens = false } }
      local features
      if is_vision then
        local dp_rank, dp_size = topology:dp_info(nil, "vision")
        local mine = mimo.slice(batch, dp_rank, dp_size, opts)
        features = modules.vision(mine.pixel_values, mine.image_grid_thw)
      end
      features = bridge(features, { rows_per_sample = batch.tokens, samples = batch.samples })
      roots[m] = torch.sum(features)
      if is_language then
        local dp_rank, dp_size = topology:dp_info(nil, "language")
        local mine = mimo.slice(batch, dp_rank, dp_size, opts)
        mine.labels = labels_of_rank(topology, mine.labels)
        local loss, tokens = loss_of(modules.language, mine, features)
        loss_sum, count = loss_sum + loss:item(), count + tokens
        roots[m] = loss_kind == "mean" and loss / tokens_of_replica(topology, tokens) or loss
      end
    end
    for m = 1, MICRO_BATCHES do roots[m]:backward() end
    mimo.reduce_gradients { topology = topology, modules = modules, loss = loss_kind,
      tokens = is_language and count or nil, micro_batches = MICRO_BATCHES,
      mean_over = loss_kind == "mean" and "replica" or nil }
    for name, module in pairs(modules) do
      for parameter, p in module:named_parameters() do
        local off = relative(p.grad, expected.gradients[name .. "." .. parameter])
        t.truthy(off <= tolerance, ("step %d: gradient of %s.%s is off by %g"):format(step, name, parameter, off))
      end
    end
    local norm = mimo.clip_grad_norm { topology = topology, modules = modules, max_norm = MAX_NORM }:item()
    t.truthy(relative(norm, expected.norm) <= tolerance, ("step %d: norm %.17g, not %.17g"):format(step, norm,
      expected.norm))
    local sums = dist.all_reduce(torch.tensor({ loss_sum, count }, { dtype = torch.float64 }))
    local loss = (sums[0] / sums[1]):item()
    t.truthy(relative(loss, expected.loss) <= tolerance, ("step %d: loss %.17g, not %.17g"):format(step, loss,
      expected.loss))
    optimizer:step()
    optimizer:zero_grad()
  end
end

--- Sizes are dp, or tables of sizes.
local function grid(name, sizes, first_rank)
  if type(sizes) == "number" then sizes = { dp = sizes } end
  return { name = name, first_rank = first_rank, dp = sizes.dp, cp = sizes.cp }
end
local function apart(vision, language)
  local vision_grid = grid("vision", vision, 0)
  return { vision_grid, grid("language", language, (vision_grid.dp or 1) * (vision_grid.cp or 1)) }
end
local function together(vision, language) return { grid("vision", vision), grid("language", language or vision) } end

local grids = {
  [2] = { ["2 colocated"] = together(2), ["1 + 1"] = apart(1, 1), ["cp 2 colocated"] = together { cp = 2 },
    ["cp 2 on the ranks of 2"] = together({ cp = 2 }, 2), ["2 on the ranks of cp 2"] = together(2, { cp = 2 }) },
  [3] = { ["1 + cp 2"] = apart(1, { cp = 2 }), ["cp 2 + 1"] = apart({ cp = 2 }, 1) },
  [4] = { ["4 colocated"] = together(4), ["3 + 1"] = apart(3, 1), ["1 + 3"] = apart(1, 3),
    ["cp 2 + cp 2"] = apart({ cp = 2 }, { cp = 2 }) },
  [5] = { ["2 + 3"] = apart(2, 3), ["3 + 2"] = apart(3, 2), ["4 + 1"] = apart(4, 1) },
}

local names = {}
for name in pairs(grids[WORLD]) do names[#names + 1] = name end
table.sort(names)

for _, precision in ipairs { { torch.float64, 1e-10, "float64" }, { torch.float32, 1e-5, "float32" } } do
  local dtype, tolerance, dtype_name = unpack(precision)
  local curves = {} -- of one rank, by the parts of its means, or 0: trained once for all grids of this world
  local function curve_of(parts)
    curves[parts or 0] = curves[parts or 0] or train_alone(STEPS, parts)
    return curves[parts or 0]
  end
  local function add_tests(name)
    t.test(("TrainsAsOneRank(%s, %s)"):format(name, dtype_name), function()
      torch.set_default_dtype(dtype)
      compare(mimo.topology { modules = grids[WORLD][name] }, curve_of(), "sum", tolerance)
    end)
    t.test(("MeansOfReplicasAreAveraged(%s, %s)"):format(name, dtype_name), function()
      torch.set_default_dtype(dtype)
      local topology = mimo.topology { modules = grids[WORLD][name] }
      compare(topology, curve_of(topology:modules()[2].dp), "mean", tolerance)
    end)
  end
  for _, name in ipairs(names) do
    -- cp adds the same in both dtypes, so other tests get the time.
    if dtype_name == "float64" or not name:find("cp") then add_tests(name) end
  end
end
