-- Models in 4 bits on two ranks: replicas, and shards of the packed bytes, learn as one rank does.

local dist = require "lockstep.distributed"
local few_bits = require "lockstep.nn.few_bits"
local lora = require "lockstep.lora"
local models = require "lockstep.models"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local FOLDER, INT8 = "tests/models/qwen3_nf4", "tests/models/qwen3_int8"

local function batch_of(rank)
  return { input_ids = (torch.arange(11) * (3 + rank)):remainder(61), seq_lens = { 4, 7 } }
end

local function path_of(name) return dist.all_gather_object(run.dir .. "/" .. name)[1] end

--- Two steps. Returns the losses of this rank's batch.
local function train(model, batches, optimizer)
  optimizer = optimizer or optim.AdamW(model:parameters(), { lr = 1e-2 })
  local losses = {}
  for step = 1, 2 do
    losses[step] = 0
    for _, batch in ipairs(batches) do
      local sum, count = model(batch, "loss")
      losses[step] = losses[step] + sum:item() / count
      ;(sum / count / #batches):backward()
    end
    optimizer:step()
    optimizer:zero_grad()
  end
  return losses
end

local function adapted(how, folder)
  torch.manual_seed(3)
  local model = models.load(folder or FOLDER, how)
  lora.apply(model, { r = 3, targets = "all-linear" })
  return model
end

--- What one rank learns from the batches of both.
local function expected_state(folder)
  local model = adapted(nil, folder)
  train(model, { batch_of(0), batch_of(1) })
  return model:state_dict()
end

local function check(state, expected)
  for name, tensor in pairs(expected) do
    if tensor:is_floating_point() then
      t.near(state[name], tensor, 1e-3, name)
    else
      t.truthy(torch.equal(state[name], tensor), name)
    end
  end
end

t.test("ReplicasLearnAsOneRank", function()
  local model = sharding.data_parallel(adapted())

  train(model, { batch_of(dist.rank()) })

  check(model.module:state_dict(), expected_state())
end)

for _, case in ipairs {
  { "sharded_at_load", function() return adapted { shard = {} } end },
  { "sharded_with_adapters", function()
    return sharding.fully_shard(adapted(), { reshard_after_forward = false })
  end },
  { "eight_bits", function() return adapted({ shard = {} }, INT8) end, INT8 },
  { "param_dtype", function()
    return sharding.fully_shard(adapted(), { param_dtype = torch.float32, prefetch = 2 })
  end },
} do
  local name, make, folder = unpack(case)
  t.test("ShardsOfTheBytesLearnAsOneRank_" .. name, function()
    local model = make()
    local bytes = 0
    for key, p in model:named_parameters() do
      if p.dtype == torch.uint8 or p.dtype == torch.int8 then
        t.truthy(not p.requires_grad, key)
        bytes = bytes + p:numel()
      end
    end
    local whole = 0
    for _, layer in pairs((few_bits.layers(adapted(nil, folder)))) do whole = whole + layer.weight:numel() end
    t.equal(dist.all_reduce(torch.tensor { bytes }):item(), whole)
    t.truthy(bytes < 0.6 * whole, bytes .. " of " .. whole)

    train(model, { batch_of(dist.rank()) })

    check(model:state_dict(), expected_state(folder))
    t.equal(models.generate(model, { { 3, 1 } }, { max_new_tokens = 3 })[1][1] ~= nil, true)
    lora.save(model, path_of("adapter_" .. name))
    local again = models.load(folder or FOLDER)
    lora.load(again, path_of("adapter_" .. name))
    local one = batch_of(0)
    t.near(torch.no_grad(model, one), torch.no_grad(again, one), 1e-5)
    t.raises("call lora.save_merged with load_in_4bit or load_in_8bit", lora.merge, model)
    t.raises("call lora.merge before, or save them with lora.save", models.save, model, path_of("whole_" .. name))
  end)
end

t.test("ASavedModelOfShardsIsWhole", function()
  local model = models.load(FOLDER, { shard = {} })
  local path, one = path_of "saved", batch_of(0)

  models.save(model, path, { like = FOLDER })

  t.near(torch.no_grad(models.load(path), one), torch.no_grad(model, one), 1e-5)
end)

t.test("AStateGoesOnOnShards", function()
  local function begin()
    local model = adapted { shard = {} }
    return model, optim.AdamW(model:parameters(), { lr = 1e-2 })
  end
  local model, optimizer = begin()
  train(model, { batch_of(dist.rank()) }, optimizer)
  run:state { model = model, optimizer = optimizer }
  run:save { step = 2 }
  local expected = train(model, { batch_of(dist.rank()) }, optimizer)
  local other, its_optimizer = begin()
  torch.no_grad(function()
    for _, p in other:named_parameters() do p:zero_() end
  end)

  run:state { model = other, optimizer = its_optimizer }
  run:resume()

  t.equal(train(other, { batch_of(dist.rank()) }, its_optimizer), expected)
end)

t.test("AGridIsAnError", function()
  t.raises("layers in 4 bits are not for grid; give load_in_4bit = false", models.load, FOLDER,
    { grid = sharding.grid {} })
end)

t.test("OnAGridAFolderIn8BitsIsReadWhole", function()
  local model = models.load(INT8, { grid = sharding.grid {} })
  for name, p in model:named_parameters() do t.truthy(p:is_floating_point(), name) end
end)

t.test("StagesRefuseThem", function()
  t.raises("layers in 4 or 8 bits cannot be divided into stages", sharding.parallelize, models.load(FOLDER),
    sharding.grid { pp = 2 }, {})
end)

t.test("TensorParallelRefusesThem", function()
  t.raises("is of the class LinearFewBits, and layers in 4 or 8 bits cannot be divided; load the model with "
    .. "load_in_4bit = false or load_in_8bit = false (scripts: --set read_whole=true), or leave tp out",
    sharding.parallelize, models.load(FOLDER), sharding.grid { tp = 2 }, {})
end)
