-- LoRA on models that are sharded already: as on plain modules.

local dist = require "lockstep.distributed"
local lora = require "lockstep.lora"
local models = require "lockstep.models"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local tiny = require "tiny_fixture"
local torch = require "lockstep.torch"

local world = dist.world_size()

local function batch(step, rank)
  local ids = {}
  for i = 1, 6 do ids[i] = (7 * step + 3 * i + 5 * rank * i) % 11 end
  return torch.tensor(ids, { dtype = torch.int64 })
end

local function train(model, alone)
  local optimizer = optim.AdamW(optim.groups(model), { lr = 1e-2 })
  for step = 1, 4 do
    if alone then
      for rank = 0, world - 1 do (model(batch(step, rank)):pow(2):mean() / world):backward() end
    else
      model(batch(step, dist.rank())):pow(2):mean():backward()
    end
    optimizer:step()
    optimizer:zero_grad()
  end
end

--- A folder that is the same on all ranks.
local function folder_of(name) return dist.all_gather_object(run.dir .. "/" .. name)[1] end

local function same_state(model, plain, tolerance)
  local state, expected = model:state_dict(), plain:state_dict()
  for name, tensor in pairs(expected) do t.near(state[name], tensor, tolerance, name) end
  for name in pairs(state) do t.truthy(expected[name], name) end
end

local CASES = {
  { "plain", {}, { r = 2 } },
  { "several_units", { units = { "layers.*", "embed_tokens" } }, { r = 2, targets = "all-linear", rslora = true } },
  { "dora", {}, { r = 2, targets = { "q_proj", "o_proj" }, dora = true } },
  { "modules_to_save", {}, { r = 2, modules_to_save = { "lm_head" } } },
  { "ignored_weights", { ignore = { "layers.0", "embed_tokens" } }, { r = 2, targets = "all-linear" } },
  { "prefetch", { reshard_after_forward = false, prefetch = 2, replicas = world }, { r = 2, dora = true,
    modules_to_save = { "embed_tokens", "lm_head" } } },
}

for _, case in ipairs(CASES) do
  local name, options, adapter = unpack(case)
  t.test("AShardedModelLearnsWithAdaptersAsAPlainOne_" .. name, function()
    local plain = tiny.base()
    local model = sharding.fully_shard(tiny.base(), options)
    torch.manual_seed(1)
    local count = lora.apply(plain, adapter)
    torch.manual_seed(1 + dist.rank()) -- new adapters are those of the first rank

    t.equal(lora.apply(model, adapter), count)

    same_state(model, plain, 0)
    if name ~= "ignored_weights" then -- gradients of ignored parameters are not averaged
      train(plain, true)
      train(model)
      same_state(model, plain, 2e-5)
    end
    local ids = batch(9, 0)
    local before = model(ids):detach()
    t.near(lora.disabled(model, model, ids), tiny.base()(ids):detach(), 1e-6)
    t.near(before, plain(ids):detach(), 2e-5)

    local folder = folder_of("adapter_" .. name)
    lora.save(model, folder)
    local loaded = sharding.fully_shard(tiny.base(), options)
    t.equal(lora.load(loaded, folder), count)
    same_state(loaded, model, 0)
    torch.no_grad(function()
      for _, p in loaded:named_parameters() do if p.requires_grad then p:zero_() end end
    end)
    t.equal(lora.load(loaded, folder), count) -- it has adapters by now
    same_state(loaded, model, 0)
    t.near(lora.disabled(loaded, loaded, ids), tiny.base()(ids):detach(), 1e-6)

    t.equal(lora.merge(loaded), count)
    t.equal(lora.merge(plain), count)
    same_state(loaded, plain, 2e-5)
    t.near(loaded(ids):detach(), before, 1e-5)
  end)
end

t.test("AdaptersOfExpertsInAShardedModel", function()
  local adapter = { r = 2, targets = { "q_proj" }, parameters = { "experts.gate_up_proj", "experts.down_proj" } }
  local plain, model = tiny.base_of "experts", sharding.fully_shard(tiny.base_of "experts")
  for i, one in ipairs { plain, model } do
    torch.manual_seed(6)
    lora.apply(one, adapter)
    train(one, i == 1)
  end
  same_state(model, plain, 2e-5)

  t.equal(lora.merge(model), lora.merge(plain))

  same_state(model, plain, 2e-5)
end)

for _, case in ipairs { "tied_head", "tied_embedding", "tied_both", "tied_both_kept" } do
  t.test("AFolderThatUntiesAModelDoesSoInAShardedOne_" .. case, function()
    local folder, source = tiny.FIXTURES .. "/" .. case, "tests/models/llama_tied"
    local ids = { input_ids = torch.arange(10), seq_lens = { 4, 6 } }
    local plain, model = models.load(source), models.load(source, { shard = {} })
    local before = model(ids):detach()

    t.equal(lora.load(model, folder), lora.load(plain, folder))

    same_state(model, plain, 0)
    t.near(model(ids):detach(), plain(ids):detach(), 2e-5)
    t.near(lora.disabled(model, model, ids), before, 1e-5)
    t.equal({ lora.merge(model), lora.merge(plain) }, { 2, 2 })
    local merged = folder_of("merged_" .. case)
    models.save(model, merged)
    t.near(models.load(merged)(ids):detach(), plain(ids):detach(), 2e-5)
  end)
end

t.test("AModelThatIsReadInPartsGetsAdaptersIsMergedAndSaved", function()
  local source = "tests/models/qwen3"
  local ids = { input_ids = torch.arange(10), seq_lens = { 4, 6 } }
  local model = models.load(source, { dtype = torch.bfloat16, shard = { param_dtype = torch.bfloat16 } })
  local optimizer = optim.AdamW(model:parameters())
  torch.manual_seed(1)
  lora.apply(model, { r = 4, targets = { "q_proj", "down_proj" } })
  local dtypes = {}
  for name, p in model:named_parameters() do dtypes[name:match "lora_B" or "weight"] = p.dtype end
  t.equal(dtypes, { lora_B = torch.float32, weight = torch.bfloat16 })
  t.raises("is of the module before it was sharded", optim.clip_grad_norm, optimizer.groups[1].params, 1)
  for _, p in model:named_parameters() do
    if p.requires_grad then torch.no_grad(p.add_, p, 0.05) end
  end
  local before = model(ids):detach()

  lora.merge(model)

  t.near(model(ids):detach():float(), before:float(), 0.2)
  local folder = folder_of "merged"
  models.save(model, folder, { like = source })
  t.near(models.load(folder)(ids):float(), model(ids):float(), 1e-3)
end)

t.test("TheModuleInsideGetsNoAdapters", function()
  local net = tiny.base()
  local model = sharding.fully_shard(net)
  t.raises("lora.apply: the module is sharded; give what sharding.fully_shard returned", lora.apply, net)
  t.raises("lora.merge: the model has no adapters", lora.merge, model)
  t.raises('targets: "nothing" is the name of no linear layer', lora.apply, model, { targets = { "nothing" } })
  t.near(model(batch(1, 0)), tiny.base()(batch(1, 0)), 1e-6)
  lora.apply(model, { r = 1 })
  t.raises("lora.apply: the model has adapters already", lora.apply, model)
  t.raises("lora.merge: the module is sharded", lora.merge, net)
  t.equal(getmetatable(net.layers[1].o_proj), nn.Linear)
end)
