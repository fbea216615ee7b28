--- Optimizers, autocast and the gradient scaler on a sharded model, beside sharding.data_parallel.

local dist = require "lockstep.distributed"
local fixture = require "fully_shard_fixture"
local optim = require "lockstep.optim"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local RANK = dist.rank()

--- Trains a sharded model and replicas from the same values, and returns the distance of their weights.
---@param options table of fully_shard
---@param make fun(model: any, net: nn.Module): any an optimizer, or several
---@param step fun(optimizer: any, loss: fun(): torch.Tensor) backward and update
local function distance(options, make, step)
  local results = {}
  for i = 1, 2 do
    local net = fixture.net()
    local model = i == 1 and sharding.fully_shard(net, options) or sharding.data_parallel(net)
    local optimizer = make(model, net)
    for number = 1, 6 do
      local tokens = fixture.tokens(number)
      step(optimizer, function()
        return torch.cross_entropy_loss(model(tokens):float(), (tokens * 5 + 1):remainder(13))
      end)
    end
    results[i] = model:state_dict()
  end
  t.truthy(fixture.distance(results[2], fixture.net():state_dict()) > 1e-3) -- it has trained
  return fixture.distance(results[1], results[2])
end

local function plain_step(optimizer, loss)
  loss():backward()
  optimizer:step()
  optimizer:zero_grad()
end

--- Muon for the matrices of layers, AdamW for the rest.
local function muon_and_adamw(opts)
  local is_matrix = {}
  for name, p in fixture.net():named_parameters() do is_matrix[name] = name:find "^layers" and p:dim() == 2 end
  return function(model)
    local matrices, rest = {}, {}
    for name, p in model:named_parameters() do table.insert(is_matrix[name] and matrices or rest, p) end
    local both = { optim.Muon(matrices, opts), optim.AdamW(rest, { lr = 0.01 }) }
    local function call(method) return function() for _, one in ipairs(both) do one[method](one) end end end
    return { step = call "step", zero_grad = call "zero_grad" }
  end
end

t.test("MuonMakesWholeMatricesOrthogonalAndEachRankKeepsItsPart", function()
  local cases = {
    { lr = 0.05, precision = "float32" },
    { lr = 0.05, precision = "float32", nesterov = false, adjust_lr = "match_rms_adamw" },
    { lr = 0.05, precision = "float32", states = torch.bfloat16, master = "none" },
  }
  for i, opts in ipairs(cases) do
    for _, options in ipairs { {}, { units = {} }, { units = { "layers.*", "layers.*.up" } } } do
      t.truthy(distance(options, muon_and_adamw(opts), plain_step) < 1e-4, "case " .. i)
    end
  end
end)

t.test("MuonNamesAShardThatIsNoMatrix", function()
  local model = sharding.fully_shard(fixture.net())

  t.raises('"layers.0.scale") has shape {}, and only matrices can be made orthogonal', optim.Muon, model:parameters())
end)

t.test("SgdWithMomentumTrainsShardsAsReplicas", function()
  t.truthy(distance({}, function(model)
    return optim.SGD(model:parameters(), { lr = 0.1, momentum = 0.9 })
  end, plain_step) < 1e-5)
end)

t.test("LionTrainsShardsAsReplicas", function()
  t.truthy(distance({}, function(model)
    return optim.Lion(model:parameters(), { lr = 0.01, weight_decay = 0.1 })
  end, plain_step) < 1e-5)
end)

t.test("AdafactorRefusesShards", function()
  t.raises('("embedding.weight") is sharded, and means of its rows and columns would be of one rank\'s part; use '
    .. "optim.AdamW", optim.Adafactor, sharding.fully_shard(fixture.net()):parameters())
end)

t.test("AutocastTrainsShardsAsReplicas", function()
  local seen
  local function step(optimizer, loss)
    torch.autocast({ dtype = torch.bfloat16, device = "cpu" }, loss):backward()
    optimizer:step()
    optimizer:zero_grad()
  end
  local function make(model, net)
    net.layers[1].up:register_forward_hook(function(_, _, y) seen = y.dtype end)
    return optim.AdamW(model:parameters(), { lr = 0.01 })
  end

  for _, options in ipairs { {}, { reshard_after_forward = false } } do
    t.truthy(distance(options, make, step) < 2e-3)
    t.equal(seen, torch.bfloat16)
  end
end)

t.test("AGradientScalerTrainsShardsAsReplicas", function()
  local scaler = optim.GradScaler { init_scale = 1024 }
  local function step(optimizer, loss)
    scaler:scale(torch.autocast({ dtype = torch.float16, device = "cpu" }, loss)):backward()
    scaler:unscale_(optimizer)
    t.truthy(scaler:step(optimizer))
    scaler:update()
    optimizer:zero_grad()
  end

  t.truthy(distance({}, function(model) return optim.AdamW(model:parameters(), { lr = 0.01 }) end, step) < 2e-3)
end)

t.test("AnInfiniteGradientInOneRanksPartSkipsTheStepOnAll", function()
  local model = sharding.fully_shard(fixture.net())
  local optimizer, scaler = optim.AdamW(model:parameters()), optim.GradScaler { init_scale = 8 }
  local before = model:state_dict()
  scaler:scale(model:loss(fixture.tokens(1))):backward()
  local shards, i = model:parameters(), 1
  while shards[i]:numel() == 0 do i = i + 1 end
  if RANK == 0 then torch.no_grad(function() shards[i].grad[0] = math.huge end) end

  t.equal(scaler:step(optimizer), false)
  scaler:update()
  t.equal(scaler:get_scale(), 4)
  t.truthy(fixture.distance(model:state_dict(), before) == 0)
end)

t.test("AStepThatClipsHasTheNormOfAllRanks", function()
  local states, norms = {}, {}
  for i = 1, 2 do
    local model = sharding.fully_shard(fixture.net())
    local optimizer = optim.AdamW(model:parameters(), { lr = 1e-2 })
    model(fixture.tokens(1)):float():square():sum():backward()
    if i == 1 then
      norms[i] = model:clip_grad_norm(0.1)
      optimizer:step()
    else
      norms[i] = optimizer:step(1, { max_grad_norm = 0.1 })
    end
    states[i] = model:state_dict()
    if i == 2 then
      t.raises("optimizer:step: 1 of the 1 parameters are of a sharded model, which trains", function()
        optim.AdamW { model:parameters()[1] }:step(1, { max_grad_norm = 0.1 })
      end)
    end
  end

  t.equal(norms[2], norms[1])
  t.truthy(fixture.distance(states[1], states[2]) == 0)
end)

t.test("AStepThatClipsMayLeaveFrozenParametersOut", function()
  local states, norms = {}, {}
  for i = 1, 2 do
    local model, trained = sharding.fully_shard(fixture.net()), {}
    for name, span in model:named_parameters() do
      span:requires_grad_(not name:find("up", 1, true))
      if span.requires_grad then trained[#trained + 1] = span end
    end
    model(fixture.tokens(1)):float():square():sum():backward()
    norms[i] = optim.AdamW(i == 1 and model:parameters() or trained, { lr = 1e-2 }):step(1, { max_grad_norm = 0.1 })
    states[i] = model:state_dict()
    t.truthy(#trained < #model:parameters())
    table.remove(trained)
    t.raises("of a sharded model, which trains 1 more", optim.clip_grad_norm, trained, 0.1)
  end

  t.equal(norms[2], norms[1])
  t.truthy(fixture.distance(states[1], states[2]) == 0)
end)

-- FSDP2 turns the module's own parameters into spans. Here they are others, and training the whole ones trains nothing.
t.test("WholeParametersOfAShardedModuleAreRefused", function()
  local net = fixture.net()
  local before = optim.AdamW(net:parameters(), { lr = 1e-2 })
  local model = sharding.fully_shard(net)
  local message = "parameter 1 is of the module before it was sharded, and gets no gradient; give model:parameters()"

  t.raises("optim.AdamW: " .. message, optim.AdamW, net:parameters(), { lr = 1e-2 })
  t.raises("optimizer:step: " .. message, before.step, before)
  t.raises("optim.clip_grad_norm: " .. message, optim.clip_grad_norm, net:parameters(), 1)
  optim.AdamW(model:parameters(), { lr = 1e-2 }):step()
end)
