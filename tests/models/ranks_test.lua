-- models with several ranks: loading and saving, and gradients under data_parallel.

local dist = require "lockstep.distributed"
local models = require "lockstep.models"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

t.test("RankZeroWritesAndAllRanksReadTheFolder", function()
  local model = models.load "tests/models/qwen3_moe"
  local path = dist.all_gather_object(run.dir .. "/model")[1]

  models.save(model, path, { like = "tests/models/qwen3_moe" })

  t.equal(models.load(path):state_dict(), model:state_dict())
end)

t.test("AllRanksGetTheErrorOfRankZero", function()
  local model = models.load "tests/models/qwen3"

  t.raises("there is no folder nowhere", models.save, model, run.dir .. "/other", { like = "nowhere" })
end)

for _, folder in ipairs { "qwen3", "qwen3_moe" } do
  t.test("AShardedModelTrainsGeneratesAndIsSavedAsAPlainOne_" .. folder, function()
    local batch = { input_ids = (torch.arange(14) * 7):remainder(61), seq_lens = { 5, 9 } }
    local function train(model)
      local optimizer = optim.AdamW(model:parameters(), { lr = 1e-2 })
      local sum, count = model:loss(batch)
      ;(sum / count):backward()
      optimizer:step()
      optimizer:zero_grad()
      return model
    end
    local plain = train(models.load("tests/models/" .. folder))

    local sharded = train(sharding.fully_shard(models.load("tests/models/" .. folder)))
    local path = dist.all_gather_object(run.dir .. "/sharded_" .. folder)[1]
    models.save(sharded, path, { like = "tests/models/" .. folder })

    local saved = models.load(path):state_dict()
    for name, tensor in pairs(plain:state_dict()) do t.near(saved[name], tensor, 1e-4, name) end
    t.equal(models.generate(sharded, { { 3, 1, 4 }, { 1, 5 } }, { max_new_tokens = 5 }),
      models.generate(models.load(path), { { 3, 1, 4 }, { 1, 5 } }, { max_new_tokens = 5 }))
  end)
end

t.test("EachRankLoadsItsPartOfEachArchitecture", function()
  for _, name in ipairs {
    "llama", "llama_tied", "qwen3", "qwen3_moe", "qwen3_moe_packed", "qwen3_vl", "qwen3_vl_moe", "qwen2_5_vl",
  } do
    local folder = "tests/models/" .. name
    local whole = models.load(folder):state_dict()
    for _, shard in ipairs { {}, { units = {} }, { ignore = { "*.embed_tokens" } } } do
      if not shard.ignore or name:find "^llama" then
        local model = models.load(folder, { shard = shard })
        t.equal(model:state_dict(), whole, name)
        t.equal(model.config, models.load(folder).config, name)
      end
    end
  end
  local low = models.load("tests/models/qwen3", { dtype = torch.float32, shard = { param_dtype = torch.bfloat16 } })
  t.equal(low:parameters()[1].dtype, torch.float32)
  t.equal(low({ input_ids = torch.arange(5) }).dtype, torch.bfloat16)
  t.raises('did you mean "prefetch"', models.load, "tests/models/qwen3", { shard = { prefetches = 1 } })
end)

--- Bytes of a mapped file that this process has read.
local function resident_bytes(path)
  local bytes, is_there = 0, false
  for line in io.lines "/proc/self/smaps" do
    if line:find "^%x+%-%x+ " then is_there = line:find(path, 1, true) ~= nil end
    bytes = bytes + (is_there and 1024 * tonumber(line:match "^Rss:%s+(%d+) kB" or 0) or 0)
  end
  return bytes
end

t.test("ARankReadsTheBytesThatItKeeps", function()
  local path = dist.all_gather_object(run.dir .. "/large")[1]
  models.save(models.build { architectures = { "Qwen3ForCausalLM" }, model_type = "qwen3", vocab_size = 64,
    hidden_size = 512, intermediate_size = 1024, num_hidden_layers = 3, num_attention_heads = 8,
    num_key_value_heads = 8, head_dim = 64, max_position_embeddings = 64, tie_word_embeddings = true }, path)
  local size = io.open(path .. "/model.safetensors"):seek "end"
  collectgarbage "stop" -- mapped files stay
  local model = models.load(path, { shard = {} })
  local read = resident_bytes(path .. "/model.safetensors")
  collectgarbage "restart"

  t.truthy(read >= size / dist.world_size(), ("%g of %g bytes"):format(read, size))
  -- The kernel maps some pages around each that is read.
  t.truthy(read < 1.4 * size / dist.world_size(), ("%g of %g bytes"):format(read, size))
  t.equal(model:sharding_stats().shard_bytes > 0, true)
end)

t.test("ReplicasAreSavedAsTheirModel", function()
  local model = models.load "tests/models/qwen3"
  local path = dist.all_gather_object(run.dir .. "/replicas")[1]

  models.save(sharding.data_parallel(model), path)

  local saved = models.load(path):state_dict()
  for name, tensor in pairs(model:state_dict()) do t.equal(saved[name], tensor, name) end
  t.raises("expected a model, or what sharding.data_parallel or sharding.fully_shard returned, not a table",
    models.save, {}, path)
end)

--- The tokens of a rank: another number on each.
local function batch_of(rank)
  return { input_ids = (torch.arange(8 + 3 * rank) * 7 + rank):remainder(61), seq_lens = { 5, 3 + 3 * rank } }
end

t.test("LossesUnderDataParallelHaveTheGradientOfAllTokens", function()
  local total, expected = 0, models.load "tests/models/qwen3"
  for rank = 0, dist.world_size() - 1 do
    local sum, count = expected:loss(batch_of(rank))
    sum:backward()
    total = total + count
  end
  local model = models.load "tests/models/qwen3"
  local replicas = sharding.data_parallel(model)

  local sum = replicas(batch_of(dist.rank()), "loss")
  -- data_parallel takes the mean over ranks, so each rank's share is times their number.
  ;(sum * (dist.world_size() / total)):backward()

  local gradients = {}
  for name, p in model:named_parameters() do gradients[name] = p.grad end
  for name, p in expected:named_parameters() do t.near(gradients[name], p.grad / total, 1e-5, name) end
end)

--- Returns an iterator over one batch.
local function once(batch)
  local is_taken
  return function()
    if is_taken then return nil end
    is_taken = true
    return batch
  end
end

for _, case in ipairs { { { dp = 2 }, false }, { { tp = 2 }, false }, { { cp = 2 }, {} }, { { pp = 2 }, false } } do
  local sizes, fully_shard = unpack(case)
  t.test("AModelOnAGridHasItsConfigAndItsLoss_" .. next(sizes), function()
    local grid = sharding.grid(sizes)
    local model = models.load("tests/models/qwen3", { grid = grid, parallel = { fully_shard = fully_shard } })
    local alone, batch, total = models.load "tests/models/qwen3", batch_of(grid:rank "dp"), 0
    for row = 0, grid.dp - 1 do
      local sum, count = alone:loss(batch_of(row))
      sum:backward()
      total = total + count
    end
    local norm = optim.clip_grad_norm(alone:parameters(), math.huge) / total

    sharding.accumulate(model, { batch }, total, function(one) return model:loss(one) end)

    t.near(optim.clip_grad_norm(model:parameters(), math.huge), norm, 1e-4)
    t.equal(model.config, alone.config)
    t.truthy(sharding.evaluate(model, once(batch), function(one) return model:loss(one) end) > 0)
    if grid.pp > 1 then
      t.raises([[with pp a model computes model(batch, "loss") or "log_probs" alone, not "hidden"]], model.hidden,
        model, batch)
    else
      t.near(model:hidden(batch):detach(), models.load("tests/models/qwen3"):hidden(batch):detach(), 1e-4)
    end
  end)
end

t.test("ReplicasOfAGridLearnFromTextWithoutTheTower", function()
  local batch = batch_of(0)
  local norms = {}
  for i, fully_shard in ipairs { {}, false } do
    local model = models.load("tests/models/qwen3_vl", { grid = sharding.grid {},
      parallel = { fully_shard = fully_shard } })
    for _ = 1, 2 do
      sharding.accumulate(model, { batch }, 6 * dist.world_size(), function(one) return model:loss(one) end)
    end
    norms[i] = optim.clip_grad_norm(model:parameters(), math.huge)
  end
  t.near(norms[2], norms[1], 1e-4)
end)
