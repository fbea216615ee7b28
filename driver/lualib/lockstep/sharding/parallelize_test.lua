--- sharding.parallelize: a model on a grid learns what one rank with the whole model learns, in float64.

local dist = require "lockstep.distributed"
local fixture = require "lockstep.sharding.parallelize_fixture"
local lora = require "lockstep.lora"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local runs = require "lockstep.sharding.grid_runs_fixture"
local sharding = require "lockstep.sharding"
local splits = require "lockstep.nn.splits"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local RANK, WORLD = dist.rank(), dist.world_size()

torch.manual_seed(WORLD)
local function draw(choices) return choices[torch.randint(#choices, {}):item() + 1] end

for _, row in ipairs(runs.of("parallelize", "train", WORLD)) do
  local sharded = row.options.fully_shard
  local o = { form = row.family, seed = torch.randint(100, {}):item(), sync = draw { "last", "each" },
    clip = sharded and draw { "model", "optim" } or "optim" }
  t.test("AGridLearnsAsOneRank_" .. runs.name(row), function() fixture.check(row.sizes, row.options, o) end)
end

local function check_adapters(row, dora)
  t.test((dora and "Dora" or "Adapters") .. "LearnAsOnOneRank_" .. runs.name(row), function()
    local form, tp, options = row.family, row.sizes.tp, { r = 3, targets = "all-linear", dora = dora }
    local model, plain = fixture.check(row.sizes, row.options, { form = form, seed = tp, lora = options })
    local path = dist.all_gather_object(("%s/%s"):format(run.dir, runs.name(row)))[1]
    local whole, count, num_adapters = splits.whole, 0, 0
    splits.whole = function(...) -- luacheck: ignore 122
      count = count + 1
      return whole(...)
    end
    lora.save(model, path)
    splits.whole = whole -- luacheck: ignore 122
    for name in model:named_parameters() do num_adapters = num_adapters + (name:find "lora_" and 1 or 0) end
    t.truthy((count > 0) == (tp > 1) and count <= num_adapters, count) -- no frozen weight was made whole
    local again = fixture.build(form, tp)
    lora.load(again, path)
    fixture.same(again:state_dict(), plain:state_dict(), "saved")

    -- A model with other adapters takes each rank's parts of the saved ones.
    local other = sharding.parallelize(fixture.build(form, tp, options), sharding.grid(row.sizes), row.options)
    t.truthy(lora.load(other, path) > 0)
    local expected, loaded = fixture.whole(model), fixture.whole(other)
    for name, value in pairs(expected) do
      if name:find "lora_" then t.equal(torch.equal(loaded[name], value), true, name) end
    end

    lora.merge(row.options.fully_shard and model or model.module)
    lora.merge(plain)
    fixture.same(fixture.whole(model), plain:state_dict(), "merged")
  end)
end

for _, row in ipairs(runs.of("parallelize", "adapters", WORLD)) do check_adapters(row, false) end
for _, row in ipairs(runs.of("parallelize", "dora", WORLD)) do check_adapters(row, true) end

-- Layers by rows drop other values of their parts, so only layers by columns compute what one rank does.
t.test("DoraWithDropoutLearnsAsOnOneRank", function()
  if WORLD ~= 2 then return end
  fixture.check({ tp = 2 }, { fully_shard = false, sequence = true }, { form = "phi3", seed = 3,
    lora = { r = 3, targets = { "qkv_proj", "gate_up_proj" }, dora = true, dropout = 0.3 } })
end)

t.test("ANormSummedOverAllRanksByHandCountsWholeWeightsSeveralTimes", function()
  if WORLD == 1 then return end
  local plain = fixture.build("qwen3", 2)
  local model = sharding.parallelize(fixture.build("qwen3", 2), sharding.grid { tp = 2 }, { fully_shard = false })
  local batch = fixture.batches("qwen3", 2, 1, 1, 1)[1][1]
  plain:loss(batch):backward()
  model(batch, "loss"):backward()
  local squares = 0
  for _, p in ipairs(model:parameters()) do squares = squares + p.grad:square():sum() end
  local expected = optim.clip_grad_norm(plain:parameters(), 1e9):item()

  local by_hand = dist.all_reduce(squares, "sum"):sqrt():item()

  t.truthy(by_hand > 1.001 * expected, ("%.17g by hand, %.17g in truth"):format(by_hand, expected))
  t.truthy(math.abs(optim.clip_grad_norm(model:parameters(), 1e9):item() / expected - 1) < 1e-10)
end)

t.test("MuonMakesWholeMatricesOrthogonal", function()
  local function step(model, net, batch)
    local matrices = {}
    for name, p in model:named_parameters() do
      if name:find "_proj%.weight$" then matrices[#matrices + 1] = p end
    end
    local optimizer = optim.Muon(matrices, { lr = 0.1, precision = "float32" })
    for _ = 1, 2 do
      local sum = net(batch, "loss")
      sum:backward()
      optimizer:step()
      model:zero_grad()
    end
  end
  local batch = fixture.batches("qwen3", 4, 1, 1, 1)[1][1]
  local plain = fixture.build("qwen3", 4)
  step(plain, plain, batch)
  for _, kind in ipairs { {}, false } do
    local grid = sharding.grid { tp = math.min(WORLD, 2) }
    local model = sharding.parallelize(fixture.build("qwen3", 4), grid, { fully_shard = kind })
    step(model, model, batch)
    for name, expected in pairs(plain:state_dict()) do
      t.near(fixture.whole(model)[name], expected, 1e-4, name)
    end
  end
end)

t.test("AdafactorTakesMeansOfWholeRowsAndColumns", function()
  local function train(model, net)
    local optimizer = optim.Adafactor(model:parameters(), { lr = 0.05, weight_decay = 0.1 })
    for step = 1, 3 do
      net(fixture.batches("qwen3_few_kv", 4, step, 1, 1)[1][1], "loss"):backward()
      optimizer:step()
      optimizer:zero_grad()
    end
    return optimizer
  end
  local plain = fixture.build("qwen3_few_kv", 4)
  local plain_optimizer = train(plain, plain)
  for _, sequence in ipairs { false, true } do
    local grid = sharding.grid { tp = WORLD }
    local model = sharding.parallelize(fixture.build("qwen3_few_kv", 4), grid,
      { fully_shard = false, sequence = sequence })
    local optimizer = train(model, model)
    fixture.same(fixture.whole(model), plain:state_dict(), "Adafactor")

    -- The state is that of whole weights, and goes on in one rank.
    run:state { model = model, optimizer = optimizer }
    run:save { step = 3 }
    local alone = fixture.build("qwen3_few_kv", 5)
    local its_optimizer = optim.Adafactor(alone:parameters(), { lr = 0.05, weight_decay = 0.1 })
    run:state { model = alone, optimizer = its_optimizer }
    t.equal(run:resume(), 3)
    for i, p in ipairs(alone:parameters()) do
      local expected = plain_optimizer.state[plain:parameters()[i]]
      for name, value in pairs(its_optimizer.state[p]) do t.near(value, expected[name], 1e-10, name) end
    end
  end
end)

t.test("MistakesAreNamed", function()
  local grid = sharding.grid {}
  local function refused(text, ...) t.raises("sharding.parallelize: " .. text, sharding.parallelize, ...) end
  local net = nn.Linear(4, 4)
  refused("expected a module, not a number", 3, grid)
  refused("expected what sharding.grid returned, not a table; write sharding.parallelize(net, sharding.grid", net,
    { tp = 2 })
  refused('unknown option "sequences"', net, grid, { sequences = true })
  refused("fully_shard must be a table of options, or false for replicas, not a boolean", net, grid,
    { fully_shard = true })
  refused("fully_shard.group comes from the grid", net, grid, { fully_shard = { group = grid:group "dp" } })
  refused("data_parallel is for replicas; give fully_shard = false with it", net, grid, { data_parallel = {} })
  refused('cp must be "ring" or "all_to_all", not "rings"', net, grid, { cp = "rings" })
  refused('order must be "1f1b" or "interleaved" or "all_forwards_first", not a number', net, grid, { order = 1 })
  refused("chunks must be a whole number of at least 1, not 0", net, grid, { chunks = 0 })
  if WORLD % 2 ~= 0 then return end
  local copies = sharding.grid { replicas = 2 }
  refused("replicas = 2 of the grid is for fully_shard", net, copies, { fully_shard = false })
end)

t.test("AParameterThatOneRankOfATpGroupFreezesAloneIsNamed", function()
  if WORLD % 2 ~= 0 then return end
  local grid = sharding.grid { tp = 2 }
  for _, kind in ipairs { {}, false } do
    local model = sharding.parallelize(fixture.build("qwen3", 1), grid, { fully_shard = kind })
    local batches = fixture.batches("qwen3", 1, 1, grid.dp, 1)
    local function step()
      return sharding.accumulate(model, batches[grid:rank "dp" + 1], fixture.count(batches),
        function(b) return model(b, "loss") end)
    end
    local function freeze(name)
      for own_name, p in model:named_parameters() do
        if own_name:find(name, 1, true) then p:requires_grad_(false) end
      end
    end
    freeze "layers.0.mlp.up_proj.weight" -- on every rank
    step()

    if RANK == WORLD - 1 then freeze "layers.1.self_attn.q_proj.weight" end

    t.raises(('layers.1.self_attn.q_proj.weight" is frozen on rank %d, and trained on rank 0'):format(WORLD - 1), step)
  end
end)

t.test("RanksOfATpGroupThatAreGivenOtherMicroBatchesAreNamed", function()
  if WORLD % 2 ~= 0 then return end
  local grid = sharding.grid { tp = 2 }
  local model = sharding.parallelize(fixture.build("qwen3", 1), grid)
  local batches = fixture.batches("qwen3", 1, 1, grid.dp, 1)[grid:rank "dp" + 1]
  local count = fixture.count(fixture.batches("qwen3", 1, 1, grid.dp, 1))
  batches[1].input_ids = batches[1].input_ids:clone()
  batches[1].input_ids[0] = grid:rank "tp"

  t.raises("the ranks disagree", sharding.accumulate, model, batches, count, function(b) return model(b, "loss") end)
  t.raises(": rank " .. WORLD - 1, sharding.accumulate, model, { batches[1], RANK == WORLD - 1 and batches[1] or nil },
    count, function(b) return model(b, "loss") end)
end)
