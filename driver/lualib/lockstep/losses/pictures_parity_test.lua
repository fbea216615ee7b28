-- Pairs whose prompts have pictures against the answers of transformers (tests/models/make_preferences.py), on one rank
-- and on two: log-probabilities, the loss of DPO, its gradients in the vision tower, and the scores of a reward model.

local data = require "lockstep.data"
local dist = require "lockstep.distributed"
local losses = require "lockstep.losses"
local models = require "lockstep.models"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local I64 = { dtype = torch.int64 }
local FOLDERS = { "qwen3_vl", "qwen2_5_vl", "gemma3_vision" }
local PICTURES = { { 0, 1 }, {}, { 2 } } -- of each pair's prompt

local function path_of(folder) return "tests/models/" .. folder end

--- Returns the pairs as losses.pairs.sample makes them, and transformers' answers.
local function pairs_of(folder)
  local a = data.safetensors(path_of(folder) .. "/preferences.safetensors")
  local samples, from, patch = {}, 0, 0
  for i, numbers in ipairs(PICTURES) do
    local lengths = a.lengths:narrow(0, i - 1, 1)
    local count = lengths:sum():item()
    local sample = { kind = "pair", input_ids = a.input_ids:narrow(0, from, count), lengths = lengths,
      loss_mask = a.loss_mask:narrow(0, from, count) }
    from = from + count
    if #numbers > 0 then
      local grid = a.image_grid_thw:narrow(0, numbers[1], #numbers)
      local patches, order = grid:prod(1):sum():item(), torch.arange(#numbers, I64)
      sample.kind, sample.image_grid_thw = "pair+image", grid
      sample.pixel_values = a.pixel_values:narrow(0, patch, patches)
      sample.image_order = torch.cat { order, order }
      sample.image_counts = torch.tensor({ { #numbers, 2 * #numbers } }, I64)
      patch = patch + patches
    end
    samples[i] = sample
  end
  return samples, a
end

local function dealing() return { seq_len = 200, grid = sharding.grid {} } end

--- Returns the values [3, 2] of all pairs, of which each rank computes those of its own.
local function of_all_ranks(batches, fn)
  local values = torch.zeros { #PICTURES, 2 }
  for _, batch in ipairs(batches) do
    local rows = torch.tensor(batch.samples, I64) - 1
    local own = torch.no_grad(fn, batch)
    if not batch.padding then values:index_copy_(0, rows, own) end
  end
  dist.all_reduce(values, "sum")
  return values
end

for _, folder in ipairs(FOLDERS) do
  t.test("LogProbabilitiesAndGradientsAreThoseOfTransformersIn_" .. folder, function()
    local samples, a = pairs_of(folder)
    local net = models.load(path_of(folder))
    local model = sharding.data_parallel(net, { find_unused = true })
    local batches = losses.deal(samples, dealing())

    t.near(of_all_ranks(batches, function(batch) return losses.pairs.score(model, batch, "sigmoid") end), a.log_probs,
      1e-4)
    local mean = sharding.accumulate(model, batches, #samples, function(batch)
      local scores, means = losses.pairs.score(model, batch, "sigmoid")
      local sum, count = losses.pairs.loss { scores = scores, means = means, reference = torch.zeros(scores.shape),
        mask = torch.full({ #batch.lengths }, batch.padding and 0 or 1) }
      return sum, count
    end)

    t.near(mean, a.loss:item() / #samples, 1e-5)
    local seen = 0
    for name, p in net:named_parameters() do
      local expected = a["gradient." .. name]
      if expected then
        seen = seen + 1
        t.near(p.grad * #samples, expected, math.max(1e-4 * expected:abs():max():item(), 1e-6))
      end
    end
    t.truthy(seen >= 5, seen .. " gradients")
    local patches, expected = 0, dist.world_size() == 1 and #a.pixel_values or nil
    for _, batch in ipairs(batches) do
      patches = patches + (batch.pixel_values and #batch.pixel_values or 0)
    end
    t.truthy(expected == nil or patches == expected) -- each picture once for both answers
  end)

  t.test("AHeadScoresConversationsWithPicturesIn_" .. folder, function()
    local samples, a = pairs_of(folder)
    local judge = models.load(path_of(folder), { num_labels = 1 })
    torch.no_grad(judge.score.weight.copy_, judge.score.weight, a["score.weight"])

    t.near(of_all_ranks(losses.deal(samples, dealing()), function(batch)
      return judge(losses.pairs.batch(batch)):view(-1, 2)
    end), a.scores, 1e-4)
  end)
end

t.test("AnOrderOfPicturesThatDoesNotFitIsNamed", function()
  local samples = pairs_of "qwen3_vl"
  local model = models.load(path_of "qwen3_vl")
  local batch = losses.pairs.batch(samples[1])
  local function refuses(message, order)
    batch.image_order = order
    t.raises(message, model, batch)
  end

  refuses("image_order[1] is 2, but image_grid_thw describes the pictures 0 to 1", torch.tensor({ 0, 2, 0, 1 }, I64))
  refuses("image_grid_thw describes only 2", torch.tensor({ 0, 1 }, I64))
  refuses("image_order must be a tensor of whole numbers [places], got torch.float32 {4}", torch.zeros { 4 })
end)
