--- tiled_mlp.apply on several ranks: which of them must agree on the number of tiles, and which need not.

local budget = require "lockstep.tiled_mlp.budget"
local dist = require "lockstep.distributed"
local models = require "lockstep.models"
local nn = require "lockstep.nn"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local tiled_mlp = require "lockstep.tiled_mlp"
local torch = require "lockstep.torch"

local RANK = dist.rank()

local CONFIG = { architectures = { "Qwen3ForCausalLM" }, model_type = "qwen3", vocab_size = 61, hidden_size = 16,
  intermediate_size = 32, num_hidden_layers = 2, num_attention_heads = 4, num_key_value_heads = 2, head_dim = 8,
  rms_norm_eps = 1e-5, hidden_act = "silu", max_position_embeddings = 512, tie_word_embeddings = false }
local BATCH = { input_ids = (torch.arange(24) * 7):remainder(61), seq_lens = { 14, 10 } }

local function build()
  torch.manual_seed(1)
  return models.build(CONFIG)
end

--- Calls fn while rank r has (r + 1) * rows as many free bytes as a row of the model's MLP takes.
local function with_free_rows(model, rows, fn)
  local free_bytes, mlp = budget.free_bytes, model:decoder().layers[1].mlp
  local per_row = budget.bytes_per_row(torch.zeros { 1 }, mlp:parameters())
  function budget.free_bytes() return (RANK + 1) * rows * per_row end
  local ok, message = pcall(fn)
  budget.free_bytes = free_bytes
  if not ok then error(message, 0) end
end

local function step(model)
  local loss = model:loss(BATCH)
  loss:backward()
  return loss:item()
end

t.test("RanksThatShareWeightsAgreeOnTheLeastMemory", function()
  local plain, model = build(), sharding.tensor_parallel(build())
  local expected = step(plain)
  model.tiled_mlp = { memory_gib = 1 }

  with_free_rows(model, 6, function() t.near(step(model), expected, 1e-4) end)

  t.equal(model.tiled_mlp:stats().tiles, 2 * 4) -- of 6 rows, as on rank 0
  for name, p in model:named_parameters() do t.truthy(p.grad, name .. " has no gradient") end
  t.near(model:decoder().norm.weight.grad, plain:decoder().norm.weight.grad, 1e-4)
end)

t.test("ReplicasNeedNotAgree", function()
  local plain, replicas = build(), sharding.data_parallel(build())
  step(plain)
  replicas.module.tiled_mlp = { memory_gib = 1 }

  with_free_rows(plain, 6, function() replicas(BATCH, "loss"):backward() end)

  t.equal(replicas.module.tiled_mlp:stats().tiles, 2 * ({ [0] = 4, 2 })[RANK])
  local expected = {}
  for name, p in plain:named_parameters() do expected[name] = p.grad end
  for name, p in replicas:named_parameters() do t.near(p.grad, expected[name], 1e-4, name) end
end)

local Mlp = nn.Module:subclass("Mlp")
function Mlp:init() self.up, self.down = nn.Linear(6, 20), nn.Linear(20, 6) end
function Mlp:forward(x) return self.down(torch.gelu(self.up(x))) end
local Net = nn.Module:subclass("Net")
function Net:init() self.mlp, self.out = Mlp(), nn.Linear(6, 6) end
function Net:forward(x) return self.out(self.mlp(x)) end

t.test("AUnitGetsItsTilesBeforeTheModelIsSharded", function()
  local gathers = {}
  for i, tiles in ipairs { false, 3 + RANK } do
    local net = Net()
    local tiled = tiles and tiled_mlp.apply(net, { tiles = tiles })
    local model = sharding.fully_shard(net, { units = { "mlp" } })
    model(torch.randn { 12, 6 }):sum():backward()
    gathers[i] = model:sharding_stats().gathers
    if tiled then t.equal(tiled:stats().tiles, tiles) end
  end
  t.equal(gathers[2], gathers[1])

  local model = sharding.fully_shard(Net(), { units = { "mlp" } })
  t.raises('"mlp" is a unit of sharding.fully_shard, and each tile would gather it anew; give it tiles before the '
    .. "model is sharded", tiled_mlp.apply, model, { tiles = 2 })
end)

t.test("WrappersMayBeGivenToo", function()
  for _, wrap in ipairs { sharding.data_parallel, sharding.fully_shard } do
    local model = wrap(build())
    local tiles = tiled_mlp.apply(model, { tiles = 3 })
    model(BATCH, "loss"):backward()
    t.equal({ tiles:stats().calls, tiles:stats().backward_tiles }, { 2, 6 })
  end
  local sharded = sharding.fully_shard(build())
  sharded.tiled_mlp = { tiles = 3 }
  sharded(BATCH, "loss"):backward()
  t.equal(sharded.tiled_mlp:stats().tiles, 6)
end)

--- The last test: the ranks' calls do not meet again.
t.test("WithoutAgreementTheirCollectivesDiffer", function()
  local model = sharding.tensor_parallel(build())
  model.tiled_mlp = { tiles = 4 - 2 * RANK }

  t.raises("the ranks call different collectives", step, model)
end)
