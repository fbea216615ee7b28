--- sharding.parallelize with cp: ranks that hold chunks of each batch learn what one rank learns from the whole, in
--- float64. Documents are random: also of one token, and fewer tokens than ranks.

local dist = require "lockstep.distributed"
local fixture = require "lockstep.sharding.parallelize_fixture"
local models = require "lockstep.models"
local runs = require "lockstep.sharding.grid_runs_fixture"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local WORLD = dist.world_size()

--- The number that a batch's tokens are a multiple of.
local multiple = 1

--- Documents of 1 token, of fewer than two pieces a rank, and longer ones. A batch of pictures has one in its first.
function fixture.new_batch(form, seed)
  torch.manual_seed(seed)
  local seq_lens, total = {}, 0
  for i = 1, torch.randint(1, 5, { 1 }):item() do
    local most = ({ 2, 2 * WORLD, 24 })[torch.randint(0, 3, { 1 }):item() + 1]
    seq_lens[i] = torch.randint(1, most, { 1 }):item()
  end
  local columns = ({ qwen3_vl = 24, gemma3_vision = 12 })[form] -- of a picture of 4 tokens
  seq_lens[1] = seq_lens[1] + (columns and 8 or 2)
  for _, length in ipairs(seq_lens) do total = total + length end
  seq_lens[#seq_lens] = seq_lens[#seq_lens] + -total % multiple
  total = total + -total % multiple
  local batch = { input_ids = torch.randint(56, { total }), seq_lens = seq_lens,
    loss_mask = torch.rand({ total }):gt(0.2) }
  batch.loss_mask[1] = true
  if columns then
    batch.image_grid_thw = torch.tensor({ { 1, 4, 4 } }, { dtype = torch.int64 })
    batch.pixel_values = torch.randn({ 16, columns }, { dtype = torch.float64 })
    batch.input_ids[{ { 1, 5 } }]:fill_(57)
  end
  return batch
end

for _, row in ipairs(runs.of("parallelize_context", "train", WORLD)) do
  t.test("ChunksLearnAsTheWhole_" .. runs.name(row), function()
    multiple = row.options.sequence and row.sizes.tp * row.sizes.cp or 1
    fixture.check(row.sizes, row.options, { form = row.family, seed = row.index })
    multiple = 1
  end)
end

t.test("ResultsOfTokensAreThoseOfTheBatch", function()
  local grid = sharding.grid { cp = WORLD }
  for _, name in ipairs { "qwen3", "qwen3_moe", "qwen3_vl" } do
    local alone = fixture.build(name, 5)
    local model = sharding.parallelize(fixture.build(name, 5), grid)
    for seed = 1, 3 do
      local batch = fixture.new_batch(name, seed)
      for _, what in ipairs { "logits", "hidden" } do
        t.near(torch.no_grad(model, batch, what), torch.no_grad(alone, batch, what), 1e-10, what)
      end
      local actual, entropy = torch.no_grad(model, batch, "log_probs")
      local expected, expected_entropy = torch.no_grad(alone, batch, "log_probs")
      t.near(actual, expected, 1e-5)
      t.near(entropy, expected_entropy, 1e-5)
    end
  end
end)

t.test("EvaluationAndGenerationAreThoseOfOneRank", function()
  for _, one in ipairs(runs.of("parallelize_context", "generation", WORLD)) do
    local form, grid = one.family, sharding.grid(one.sizes)
    local alone = fixture.build(form, 8)
    local model = sharding.parallelize(fixture.build(form, 8), grid, one.options)
    local batches, sum = fixture.batches(form, 8, 1, 3, 1), 0 -- three rows: with dp 2 the last step has a filler
    for _, row in ipairs(batches) do sum = sum + torch.no_grad(alone.loss, alone, row[1]):item() end
    local next_row = grid:rank "dp" + 1
    local mean = sharding.evaluate(model, function()
      local row = batches[next_row]
      next_row = next_row + grid.dp
      return row and row[1]
    end, function(batch) return model(batch, "loss") end)
    t.truthy(math.abs(mean - sum / fixture.count(batches)) < 1e-10, ("%.17g"):format(mean))
    local prompts, options = { { 3, 1, 4 }, { 1, 5 } }, { max_new_tokens = 5 }
    t.equal(models.generate(model, prompts, options), models.generate(alone, prompts, options))
  end
end)

t.test("ABatchOfOneTokenLeavesOtherRanksWithoutOne", function()
  local alone = fixture.build("qwen3_moe", 6)
  local model = sharding.parallelize(fixture.build("qwen3_moe", 6), sharding.grid { cp = WORLD })
  local batch = { input_ids = torch.tensor({ 7 }, { dtype = torch.int64 }) }
  t.near(torch.no_grad(model, batch), torch.no_grad(alone, batch), 1e-10)
  local sum, count = model(batch, "loss")
  sum:backward()
  t.equal({ sum:item(), count }, { 0, 0 })
end)

t.test("MistakesAreNamed", function()
  local grid = sharding.grid { cp = WORLD }
  t.raises('cp must be "ring" or "all_to_all", not "zigzag"', sharding.parallelize, fixture.build("qwen3", 7), grid,
    { cp = "zigzag" })
  if WORLD == 1 then return end
  t.raises("cp needs a language model of models.load, not a Linear", sharding.parallelize,
    require("lockstep.nn").Linear(2, 2), grid)
  local model = sharding.parallelize(fixture.build("qwen3", 7), grid)
  local batch = { input_ids = torch.arange(8) + dist.rank() }
  t.raises("rank 1: input_ids: torch.int64 {8}, 1 2 3", model, batch, "loss")
  t.raises("seq_lens add up to 9 tokens, but input_ids holds 8", model,
    { input_ids = torch.arange(8), seq_lens = { 9 } }, "loss")
end)
