--- tiled_mlp.apply, model.tiled_mlp and model.checkpoint: whole models, with the gradients of the plain ones.

local checkpoint = require "lockstep.checkpoint"
local lora = require "lockstep.lora"
local models = require "lockstep.models"
local nn = require "lockstep.nn"
local t = require "lockstep.testing"
local tiled_mlp = require "lockstep.tiled_mlp"
local budget = require "lockstep.tiled_mlp.budget"
local torch = require "lockstep.torch"

torch.set_num_threads(1) -- small tensors

local Mlp = nn.Module:subclass("Mlp")
function Mlp:init(hidden, wide)
  self.gate, self.up = nn.Linear(hidden, wide, { bias = false }), nn.Linear(hidden, wide, { bias = false })
  self.down = nn.Linear(wide, hidden, { bias = false })
end
function Mlp:forward(x) return self.down(torch.silu(self.gate(x)) * self.up(x)) end

local Block = nn.Module:subclass("Block")
function Block:init(hidden) self.norm, self.mlp = nn.LayerNorm(hidden), Mlp(hidden, 4 * hidden) end
function Block:forward(x) return x + self.mlp(self.norm(x)) end

local Net = nn.Module:subclass("Net")
function Net:init()
  self.blocks = nn.ModuleList { Block(8), Block(8) }
  self.head = Mlp(8, 3)
end
function Net:forward(x)
  for _, block in ipairs(self.blocks) do x = block(x) end
  return self.head(x)
end

--- Returns the loss and the gradients by name.
local function gradients(net, loss)
  net:zero_grad()
  local value = loss()
  value:backward()
  local found = { loss = value:detach() }
  for name, p in net:named_parameters() do found[name] = p.grad end
  return found
end

local function expect_same(actual, expected, tolerance)
  for name, value in pairs(expected) do
    local scale = math.max(1e-3, value:abs():max():item())
    t.near(actual[name] / scale, value / scale, tolerance, name)
  end
  for name in pairs(actual) do t.truthy(expected[name], name .. " has a gradient") end
end

-- Modules of one's own ------------------------------------------------------------------------------

t.test("TheMlpsOfAModuleRunInTilesUntilTheyAreRemoved", function()
  torch.manual_seed(1)
  local net, x = Net(), torch.randn { 3, 10, 8 }
  local function loss() return net(x):square():sum() end
  local expected = gradients(net, loss)

  local tiles = tiled_mlp.apply(net, { tiles = 4 })
  expect_same(gradients(net, loss), expected, 1e-5)
  t.equal({ tiles:stats().calls, tiles:stats().tiles, tiles:stats().backward_tiles }, { 2, 8, 8 })

  tiles:remove()
  tiles:remove()
  expect_same(gradients(net, loss), expected, 0)
  t.equal(tiles:stats().calls, 2)
end)

t.test("NamesChooseTheModules", function()
  for _, case in ipairs {
    { { "blocks.*.mlp" }, 2 }, { { "blocks.0.mlp" }, 1 }, { { "mlp", "head" }, 3 }, { { "mlp", "blocks.1.mlp" }, 2 },
    { { "head", "head.down" }, 1 }, { { "down" }, 3 },
  } do
    local net = Net()
    local tiles = tiled_mlp.apply(net, { tiles = 2, modules = case[1] })
    net(torch.randn { 6, 8 })
    t.equal(tiles:stats().calls, case[2], table.concat(case[1], " "))
  end
end)

t.test("AModuleUnderTwoNamesRunsInTilesOnce", function()
  local net = Net()
  net.again = net.blocks[1].mlp

  local tiles = tiled_mlp.apply(net, { tiles = 2, modules = { "mlp", "again" } })
  net.again(torch.randn { 6, 8 })

  t.equal(tiles:stats().tiles, 2)
end)

t.test("HooksSeeTheWholeSequence", function()
  local net, seen = Net(), {}
  tiled_mlp.apply(net, { tiles = 3 })
  net.blocks[1].mlp:register_forward_hook(function(_, inputs, y) seen = { inputs[1]:size(0), y:size(0) } end)

  net(torch.randn { 9, 8 })

  t.equal(seen, { 9, 9 })
end)

t.test("WhatCannotRunInTilesIsRefused", function()
  t.raises('no module is named "mpl", did you mean "mlp"', tiled_mlp.apply, Net(), { modules = { "mpl" } })
  t.raises('no module is named "mlp"; give modules = {...}. There are: down, gate, up', tiled_mlp.apply, Mlp(4, 4))
  t.raises('"blocks" is a ModuleList, which has no forward; name its members, "blocks.*"', tiled_mlp.apply, Net(),
    { modules = { "blocks" } })
  t.raises("modules must be an array of names, such as { \"layers.*.mlp\" }, not a string", tiled_mlp.apply, Net(),
    { modules = "mlp" })
  t.raises("modules is empty", tiled_mlp.apply, Net(), { modules = {} })
  t.raises("but holds a number", tiled_mlp.apply, Net(), { modules = { 5 } })
  t.raises("expected a module, not a function", tiled_mlp.apply, function() end)
  t.raises("options must be a table, such as { tiles = 4 }, not a number", tiled_mlp.apply, Net(), 4)
  t.raises('unknown option "tile"; did you mean "tiles"?', tiled_mlp.apply, Net(), { tile = 4 })
  t.raises("memory_gib must be a number above 0, not 0", tiled_mlp.apply, Net(), { memory_gib = 0 })
  t.raises('memory_gib must be a number above 0, not "2"', tiled_mlp.apply, Net(), { memory_gib = "2" })
  t.raises("give one of tiles, tile_tokens and memory_gib", tiled_mlp.apply, Net(), { memory_gib = 1, tiles = 2 })
  local net = Net()
  tiled_mlp.apply(net, { tiles = 2 })
  t.raises("blocks.0.mlp was called with 2 arguments", net.blocks[1].mlp, torch.randn { 4, 8 }, 5)
end)

-- Memory --------------------------------------------------------------------------------------------

--- Leaves no garbage of the tile before to the collector.
local TidyMlp = Mlp:subclass("TidyMlp")
function TidyMlp:forward(x)
  collectgarbage()
  return Mlp.forward(self, x)
end

t.test("ATileStaysWithinItsMemory", function()
  local hidden, wide, rows = 64, 256, 4096
  local x = torch.randn({ rows, hidden }):requires_grad_(true)
  for _, mib in ipairs { 1, 3, 8 } do
    local mlp, tiles = TidyMlp(hidden, wide), tiled_mlp.new { memory_gib = mib / 1024 }
    lockstep.scope(function() tiles(mlp, x):sum():backward() end) -- gradients are there from here on
    local report = lockstep.memory_by_line(function()
      lockstep.scope(function() tiles(mlp, x):sum():backward() end)
    end)

    -- The output, its gradient and the input's; the sum of the weights' gradients and one tile's share.
    local fixed = 4 * (3 * rows * hidden + 4 * hidden * wide)
    t.truthy(report.peak_bytes - fixed <= mib * 2 ^ 20, ("%d MiB: %.2f"):format(mib,
      (report.peak_bytes - fixed) / 2 ^ 20))
    t.truthy(tiles:stats().tiles >= 2 * 2, tostring(tiles))
    t.truthy(tiles:stats().tile_tokens >= 100 * mib, tostring(tiles)) -- and uses it
  end
end)

t.test("LessFreeMemoryIsTheLimitFromTheFirstCallOn", function()
  local free_bytes = budget.free_bytes
  local mlp, x = Mlp(8, 32), torch.randn { 100, 8 }
  local per_row = budget.bytes_per_row(x, mlp:parameters())
  t.equal(per_row, 2 * 4 * 3 * (8 + 32))
  local tiles = tiled_mlp.new { memory_gib = 1000 }
  function budget.free_bytes() return 10 * per_row end
  tiles(mlp, x)
  budget.free_bytes = free_bytes
  t.equal(tiles:stats().tiles, 10)
  tiles(mlp, x:narrow(0, 0, 25))
  t.equal(tiles:stats().tiles, 10 + 3)
  tiles:dense { x = x, gate = mlp.gate.weight, up = mlp.up.weight, down = mlp.down.weight }
  t.equal({ tiles:stats().calls, tiles:stats().tiles }, { 3, 23 })

  t.truthy(budget.free_bytes("cpu") > 2 ^ 20 and budget.free_bytes("cpu") < 2 ^ 50)
  local whole = tiled_mlp.new { memory_gib = 1000 }
  whole(mlp, x)
  t.equal(whole:stats().tiles, 1)
end)

-- Models --------------------------------------------------------------------------------------------

local TEXT = { vocab_size = 61, hidden_size = 20, intermediate_size = 36, num_hidden_layers = 3,
  num_attention_heads = 6, num_key_value_heads = 2, head_dim = 16, rms_norm_eps = 1e-5, hidden_act = "silu",
  max_position_embeddings = 512 }

local function with(more)
  local config = {}
  for _, map in ipairs { TEXT, more } do
    for key, value in pairs(map) do config[key] = value end
  end
  return config
end

local CONFIGS = {
  qwen3 = with { architectures = { "Qwen3ForCausalLM" }, model_type = "qwen3" },
  qwen3_moe = with { architectures = { "Qwen3MoeForCausalLM" }, model_type = "qwen3_moe", num_experts = 4,
    num_experts_per_tok = 2, moe_intermediate_size = 12, norm_topk_prob = true, decoder_sparse_step = 1,
    mlp_only_layers = {}, output_router_logits = true, router_aux_loss_coef = 0.1 },
}
local BATCH = { input_ids = (torch.arange(30) * 7):remainder(61), seq_lens = { 18, 12 } }

for name, config in pairs(CONFIGS) do
  t.test("AModelTrainsInRegionsAndTilesAsItDoesPlain_" .. name, function()
    torch.manual_seed(1)
    local model = models.build(config)
    local function loss() return (model:loss(BATCH)) end
    local expected = gradients(model, loss)
    local ids = models.generate(model, { { 3, 1, 4 } }, { max_new_tokens = 5 })

    for _, tiles in ipairs { { tiles = 4 }, { tile_tokens = 1000 }, { memory_gib = 1e-4 },
      { tiles = 2, modules = { "layers.1.mlp" } } } do
      model.tiled_mlp = tiles
      expect_same(gradients(model, loss), expected, 1e-4)
      t.equal(model.tiled_mlp:stats().calls, tiles.modules and 1 or 3)
      model.checkpoint = { offload = "host", keep_last = 0 }
      expect_same(gradients(model, loss), expected, 1e-4)
      t.equal(model.checkpoint:stats().recomputes, 3)
      t.truthy(model.checkpoint:stats().offloaded_bytes > 0)
      t.equal(models.generate(model, { { 3, 1, 4 } }, { max_new_tokens = 5 }), ids)
      model.checkpoint = nil
    end
    model.tiled_mlp = nil

    expect_same(gradients(model, loss), expected, 0)
    t.equal(model.tiled_mlp, nil)
  end)
end

t.test("AdaptersMayComeBeforeAndAfter", function()
  for _, is_before in ipairs { true, false } do
    torch.manual_seed(1)
    local model = models.build(CONFIGS.qwen3)
    if not is_before then model.tiled_mlp = { tiles = 3 } end
    lora.apply(model, { r = 2, targets = "all-linear" })
    for name, p in model:named_parameters() do
      if name:find "lora_B" then torch.no_grad(function() p:normal_() end) end
    end
    local tiles = model.tiled_mlp
    model.tiled_mlp = nil
    local function loss() return (model:loss(BATCH)) end
    local expected = gradients(model, loss)

    model.tiled_mlp = { tiles = 3 }
    t.truthy(tiles ~= model.tiled_mlp)
    expect_same(gradients(model, loss), expected, 1e-4)
  end
end)

t.test("WhatIsNoOptionOfAModelIsRefused", function()
  local model = models.build(CONFIGS.qwen3)
  t.raises('unknown option "tile"; did you mean "tiles"?', function() model.tiled_mlp = { tile = 4 } end)
  t.raises("options must be a table, such as { tiles = 4 }, not a number", function() model.tiled_mlp = 4 end)
  t.raises('offload must be "host", or absent, not disk', function() model.checkpoint = { offload = "disk" } end)
  t.raises("options must be a table", function() model.checkpoint = 4 end)
  t.equal({ model.tiled_mlp, model.checkpoint }, {})
  local made = checkpoint.new()
  model.checkpoint = made
  t.truthy(rawequal(model.checkpoint, made))
end)
