-- Mistakes of one rank that a state would keep quiet about.

local core = require "lockstep.core"
local dist = require "lockstep.distributed"
local files = require "lockstep.core.files"
local lora = require "lockstep.lora"
local models = require "lockstep.models"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local replicas = require "lockstep.state.replicas"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local RANK = dist.rank()

t.test("AConfigurationOfOneRankOnlyIsAnErrorAndNoState", function()
  local root = run.dir .. "/state"
  for lacks = 0, 1 do
    run.progress.config = nil
    if dist.rank() ~= lacks then run.progress.config = run.merge({ batch = 4 }, {}) end
    run:state { best = {} }
    t.raises(('run:save: rank %d has no "run.config", which rank %d has; call run.config on every rank'):format(lacks,
      1 - lacks), run.save, run, { step = 1 })
    t.equal(files.list(root), {})
  end

  run.progress.config = run.merge({ batch = 4 + dist.rank() }, {})
  run:save { step = 1 }
  t.equal(run:resume(), 1)
end)

t.test("AnObjectThatCannotBeRestoredIsNamedAndTheOthersAreRestored", function()
  run.dir = run.dir .. "/taken_back"
  core.make_folder(run.dir)
  dist.barrier()
  local object = { value = 1 }
  function object.state_dict() return { value = object.value } end
  function object.load_state_dict(_, state)
    if object.refuses then error("it refuses") end
    object.value = state.value
  end
  run:state { object = object }
  run:save { step = 1 }
  object.value, object.refuses = 2, dist.rank() == 1

  local message = t.raises("step-00000001: rank 1: it refuses", run.resume, run)

  t.equal(object.value, 2)
  t.truthy(message:find('; "object" on rank 1 could not be restored: it refuses', 1, true), message)
  t.truthy(not message:find("on rank 0 could not be restored", 1, true), message)
end)

-- Replicas that have drifted apart --------------------------------------------------------------------

-- One element of one tensor on one rank, in any dtype, at any place of memory.
t.test("AnElementThatDiffersIsFoundInEveryDtypeAndLayout", function()
  local dtypes = { "float64", "float32", "bfloat16", "float16", "int64", "int32", "int16", "uint8", "bool", "complex64",
    "float8_e4m3fn" }
  math.randomseed(5)
  for case = 1, 60 do
    local tensors = {}
    for i = 1, 3 do
      local size, from = math.random(0, 40), math.random(0, 5)
      local whole = torch.ones({ from + size, 2 }):to(torch[dtypes[math.random(#dtypes)]])
      tensors[i] = math.random(2) == 1 and whole[{ { from, from + size } }] or whole[{ { from, from + size }, 1 }]
    end
    t.equal({ replicas.difference(tensors) }, {}, "case " .. case)

    local index, row, bit = math.random(3), math.random(), 2 ^ math.random(0, 7)
    local changed = tensors[index]
    if changed:numel() > 0 then
      if RANK == 1 then
        local place = changed:view(changed.shape)[math.floor(row * changed:size(0))]
        local bytes = place:reshape({ -1 })[{ { 0, 1 } }]:clone():view(torch.uint8)
        if changed.dtype == torch.bool then bit = 1 end
        bytes:copy_(torch.bitwise_xor(bytes, bit))
        place:reshape({ -1 })[{ { 0, 1 } }]:copy_(bytes:view(changed.dtype))
        if place:dim() == 0 then place:copy_(bytes:view(changed.dtype)[0]) end
      end
      t.equal({ replicas.difference(tensors) }, { index, 1 }, "case " .. case .. " " .. tostring(changed.dtype))
    end
  end
end)

-- A CPU and a GPU hold the same.
t.test("TheSumOfATensorsBitsIsThatOfOperators", function()
  torch.manual_seed(3)
  for _, size in ipairs { 0, 1, 7, 8, 9, 4097, 2 ^ 20 - 1, 2 ^ 23 + 5, 2 ^ 24 + 8 } do
    local bytes = torch.randint(256, { size }, { dtype = torch.int64 }):to(torch.uint8)
    t.equal(replicas.sum_of_bits(bytes), replicas.sum_by_operators(bytes), size .. " bytes")
    local part = bytes[{ { math.min(size, 3), size } }] -- begins within a word
    t.equal(replicas.sum_of_bits(part), replicas.sum_by_operators(part), size .. " bytes, from the third")
  end
end)

-- The first save of a run compared them, and later ones wrote what rank 0 had.
t.test("ReplicasThatDriftAfterTheFirstSaveAreNamed", function()
  local net = nn.Linear(4, 4)
  -- In a plain sum of the bits these numbers change by opposite amounts.
  torch.no_grad(function() net.bias:copy_(torch.tensor { 0.3, 0.4, -0.3, -0.4 }) end)
  run:state { model = sharding.data_parallel(net) }
  run:save { step = 1 }
  local moved = RANK * 2 ^ -20
  torch.no_grad(function() net.bias:add_(moved) end)

  t.raises('run:save: "bias" holds other values on rank 1 than on rank 0, and is written once; sharding.data_parallel '
    .. "keeps replicas alike, if every rank makes the same updates", run.save, run, { step = 2 })

  torch.no_grad(function() net.bias:fill_(0) end)
  run:save { step = 2 }
end)

t.test("AModelAndAnAdapterAreNotWrittenFromReplicasThatDiffer", function()
  local config = { architectures = { "LlamaForCausalLM" }, vocab_size = 8, hidden_size = 8, rms_norm_eps = 1e-5,
    intermediate_size = 8, num_hidden_layers = 1, num_attention_heads = 2, num_key_value_heads = 1,
    max_position_embeddings = 8 }
  local folder = run.dir .. "/saved"
  local function drifts(caller, model, name, save)
    for key, tensor in model:named_parameters() do
      if key == name then torch.no_grad(function() tensor:add_(RANK) end) end
    end
    local replicated = sharding.data_parallel(model)
    save(replicated) -- rank 0's values are on both now
    for key, tensor in model:named_parameters() do
      if key == name then torch.no_grad(function() tensor:add_(RANK) end) end
    end
    t.raises(('%s: the replicas have drifted apart: "%s" holds other values on rank 1 than on rank 0, which would be '
      .. "written; every rank makes the same updates, with the same learning rate"):format(caller, name), save,
      replicated)
  end

  drifts("models.save", models.build(config), "model.norm.weight",
    function(model) models.save(model, folder .. "/model") end)
  local adapted = models.build(config)
  lora.apply(adapted, { targets = { "q_proj" } })
  drifts("lora.save", adapted, "model.layers.0.self_attn.q_proj.lora_B.weight",
    function(model) lora.save(model.module, folder .. "/adapter") end)
end)

-- Optimizers that differ ------------------------------------------------------------------------------

--- Registers an optimizer, and returns a loop of `count` steps whose body is `step(optimizer, i)`.
local function loop(count, step)
  local net = sharding.data_parallel(nn.Linear(2, 2))
  local optimizer = optim.AdamW({ { params = { net.module.weight } }, { params = { net.module.bias } } }, { lr = 0.1 })
  run.progress.resumed = nil
  run:state { model = net, optimizer = optimizer }
  local left = count
  return function()
    for i in run:steps(function()
      left = left - 1
      return left >= 0 or nil
    end) do step(optimizer, i) end
  end
end

t.test("AnotherLearningRateScheduleOrNumberOfUpdatesIsNamedWithTheStep", function()
  local advice = "; the ranks train the same parameters, so each needs the same optimizers, schedules and updates"
  t.raises("run:steps: after 2 steps: ranks do not agree: optimizer.groups[2].lr is 0.1 on rank 0, and 0.2 on rank 1"
    .. advice, loop(4, function(optimizer, i)
      if i == 1 then optimizer.groups[2].lr = 0.1 * (1 + RANK) end
    end))
  t.raises("run:steps: after 1 steps: ranks do not agree: optimizer.groups[1].weight_decay is 0.1 on rank "
    .. "0, and 0.10000000000000002 on rank 1", loop(4, function(optimizer)
      optimizer.groups[1].weight_decay = 0.1 + RANK * 2 ^ -56
    end))
  t.raises("after 3 steps: ranks do not agree: optimizer: last factor of the lr is 0.5 on rank 0, and 0.25 on rank 1",
    loop(4, function(optimizer, i) optimizer:step(i == 2 and 0.5 / (1 + RANK) or 1) end))
  t.raises("after 2 steps: ranks do not agree: optimizer: number of steps is 2 on rank 0, and 1 on rank 1",
    loop(4, function(optimizer, i) if i == 0 or RANK == 0 then optimizer:step() end end))
  t.raises("optimizer.groups[1].betas is {0.9, 0.99} on rank 0, and {0.9, 0.95} on rank 1",
    loop(4, function(optimizer) optimizer.groups[1].betas = { 0.9, RANK == 0 and 0.99 or 0.95 } end))
end)

t.test("ASaveBehindTheLoopComparesOptimizersToo", function()
  local optimizer
  loop(1, function(own) optimizer = own end)()
  optimizer.groups[1].lr = 1 + RANK

  t.raises("run:save: ranks do not agree: optimizer.groups[1].lr is 1 on rank 0, and 2 on rank 1", run.save, run,
    { step = 9 })
end)
