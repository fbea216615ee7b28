-- Pipelines whose stages are cut further: chunks of sequences (cp), experts (ep), layers in parts (tp), shards. Each
-- learns what one rank learns from whole batches, in float64. Batches are random: documents of one token, fewer tokens
-- than ranks, pictures in some micro-batches and none in others.

local dist = require "lockstep.distributed"
local fixture = require "lockstep.sharding.parallelize_fixture"
local models = require "lockstep.models"
local plain = require "lockstep.plain"
local run = require "lockstep.run"
local runs = require "lockstep.sharding.grid_runs_fixture"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local WORLD = dist.world_size()
local copy = plain.copy
local PP = WORLD % 3 == 0 and 3 or 2

fixture.micro_steps = PP + 1

--- Gives the forms as many layers as two stages a rank need. Two layers of Qwen3-VL stay on the first stage.
local function deepen()
  local of, layers = fixture.CONFIGS, 2 * PP
  for _, form in ipairs { "qwen3", "qwen3_tied", "qwen3_moe" } do
    of[form] = copy(of[form], { num_hidden_layers = layers })
  end
  -- The first rank's stages have no experts.
  of.qwen3_late_moe = copy(of.qwen3_moe, { mlp_only_layers = PP == 2 and { 0, 1 } or { 0, 1, 2, 3 } })
  for _, form in ipairs { "qwen3_vl", "qwen3_vl_moe" } do
    local text = copy(of[form].text_config, { num_hidden_layers = layers + 1 })
    if form == "qwen3_vl_moe" then text.output_router_logits, text.router_aux_loss_coef = true, 0.05 end
    of[form] = copy(of[form], { text_config = text })
  end
end
deepen()

--- The number that a batch's tokens are a multiple of.
local multiple = 1

--- The kind depends on the step and the micro-batch: rows of dp that are shared out need the same kind at a time.
function fixture.new_batch(form, seed)
  torch.manual_seed(seed)
  local step, micro_batch = math.floor(seed / 1000) % 10, seed % 10
  local seq_lens, total, has_picture = {}, 0, form:find "_vl" and (step + micro_batch) % 3 ~= 0
  for i = 1, torch.randint(1, 4, { 1 }):item() do
    local most = ({ 2, 5, 12 })[torch.randint(0, 3, { 1 }):item() + 1]
    seq_lens[i] = torch.randint(1, most, { 1 }):item()
  end
  seq_lens[1] = seq_lens[1] + (has_picture and 8 or 2)
  for _, length in ipairs(seq_lens) do total = total + length end
  seq_lens[#seq_lens], total = seq_lens[#seq_lens] + -total % multiple, total + -total % multiple
  local batch = { input_ids = torch.randint(56, { total }), seq_lens = seq_lens,
    loss_mask = torch.rand({ total }):gt(0.2) }
  batch.loss_mask[1] = true
  if has_picture then
    batch.image_grid_thw = torch.tensor({ { 1, 4, 4 } }, { dtype = torch.int64 })
    batch.pixel_values = torch.randn({ 16, 24 }, { dtype = torch.float64 })
    batch.input_ids[{ { 1, 5 } }]:fill_(57)
  end
  return batch
end

--- What one rank learns, computed once for all grids with the same batches.
local alone = {}
local function train_alone(form, seed, rows)
  local key = ("%s %d %d %d"):format(form, seed, rows, multiple)
  alone[key] = alone[key] or { fixture.train_on_rank_0(form, seed, rows) }
  return unpack(alone[key])
end

local made = {}
local new_grid = sharding.grid

--- Makes each grid once.
function sharding.grid(sizes)
  local key = ("%d %d %d %d"):format(sizes.pp, sizes.cp or 1, sizes.tp or 1, sizes.ep or 1)
  made[key] = made[key] or new_grid(sizes)
  return made[key]
end

for _, row in ipairs(runs.of("pipeline/pipeline_products", "train", WORLD)) do
  t.test("LearnsAsOneRank_" .. runs.name(row), function()
    local o = row.options
    multiple = o.sequence and row.sizes.tp * (row.sizes.cp or 1) or 1

    local model = fixture.check(row.sizes, o, { form = row.family, seed = 1, alone = train_alone,
      clip = row.index % 2 == 0 and "model" or nil })

    t.truthy(sharding.grid(row.sizes).pp == PP and model.chunks == (o.chunks or 1), row.family)
  end)
end

if WORLD == 2 * PP then
  -- Step 2 of 3 has no picture. Zeros as gradients would let AdamW move the tower.
  t.test("AStepWithoutPicturesLeavesTheTowerOfReplicasAsItIs", function()
    local micro_steps = fixture.micro_steps
    fixture.micro_steps, multiple = 1, 1
    plain.finally(function() fixture.micro_steps = micro_steps end, fixture.check, { pp = PP }, { fully_shard = false },
      { form = "qwen3_vl", seed = 2 })
  end)

  t.test("EvaluationsAreThoseOfOneRank", function()
    for i, sizes in ipairs { { pp = PP, cp = 2 }, { pp = PP, ep = 2 } } do
      local grid, form = sharding.grid(sizes), i == 1 and "qwen3_vl_moe" or "qwen3_moe"
      local batches, sum = fixture.batches(form, 3, 1, 2, 2), 0
      local model = sharding.parallelize(fixture.build(form, 3), grid, { order = "interleaved", chunks = 2 })
      local net = fixture.build(form, 3)
      for _, row in ipairs(batches) do
        for _, batch in ipairs(row) do sum = sum + torch.no_grad(net.loss, net, batch):item() end
      end
      local own, next_one = {}, 0
      for row = grid:rank "dp" + 1, 2, grid.dp do
        for _, batch in ipairs(batches[row]) do own[#own + 1] = batch end
      end

      local mean = sharding.evaluate(model, function()
        next_one = next_one + 1
        return own[next_one]
      end, function(batch) return model(batch, "loss") end)

      t.near(mean, sum / fixture.count(batches), 1e-10)
    end
  end)

  t.test("AnotherMicroBatchOfOneChunkIsAnErrorOnEveryRank", function()
    local model = sharding.parallelize(fixture.build("qwen3", 1), sharding.grid { pp = PP, cp = 2 })
    local batch = { input_ids = torch.arange(9) + (dist.rank() == 3 and 1 or 0) }
    t.raises("the ranks of one row of dp need the same micro-batches, got", sharding.accumulate, model, { batch }, 8,
      function(b) return model(b, "loss") end)
  end)

  t.test("AFolderHoldsTheWholeModelAndIsReadByStages", function()
    local expected = fixture.build("qwen3_vl_moe", 4)
    local options = { order = "interleaved", chunks = 2 }
    local grid = sharding.grid { pp = PP, ep = 2 }
    local model = sharding.parallelize(fixture.build("qwen3_vl_moe", 4), grid, options)
    local path = dist.all_gather_object(run.dir .. "/pictures")[1]

    models.save(model, path)

    t.equal(models.load(path):state_dict(), expected:state_dict())
    local weights, again = fixture.whole(model), models.load(path, { grid = grid, parallel = options })
    for name, weight in pairs(fixture.whole(again)) do t.equal(weight, weights[name], name) end
    t.equal(again:num_parameters(), model:num_parameters())
    local batches = fixture.batches("qwen3_vl_moe", 4, 1, grid.dp, 2)
    local function loss_of(one)
      return sharding.accumulate(one, batches[grid:rank "dp" + 1], fixture.count(batches), function(b)
        return one(b, "loss")
      end)
    end
    t.equal(loss_of(again), loss_of(model))
  end)
end
