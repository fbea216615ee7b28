--- Models whose modules and parameters overlap, in everything that one rank trains them by.

local checkpoint = require "lockstep.checkpoint"
local core = require "lockstep.core"
local fixture = require "overlapping_fixture"
local float8 = require "lockstep.float8"
local lockstep = require "lockstep"
local lora = require "lockstep.lora"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local t = require "lockstep.testing"
local tiled_mlp = require "lockstep.tiled_mlp"
local torch = require "lockstep.torch"

torch.set_num_threads(1) -- small tensors

local SEEDS = 25

--- Calls check(seed, net, x) for random models; half of them have frozen parameters.
local function each(opts, check)
  for seed = 1, SEEDS do
    local o = { dtype = opts.dtype, frozen = seed % 2 == 0 and opts.frozen ~= false }
    check(seed, fixture.net(seed, o), fixture.input(seed, opts.dtype))
  end
end

--- Compares gradients of forward(net, x, seed), which must compute what net(x) does, with those of the unfolded model.
local function check_gradients(name, forward, opts)
  local o = opts or {}
  t.test(name, function()
    each(o, function(seed, net, x)
      local what = "seed " .. seed
      if o.prepare then o.prepare(net) end
      local before = fixture.places(net)
      local expected = fixture.expected(net, function(copy)
        return fixture.loss(o.reference and o.reference(copy, x) or copy(x))
      end)

      torch.no_grad(forward, net, x, seed)
      fixture.check_places(net, before, what)
      local y = forward(net, x, seed)
      fixture.check_places(net, before, what)
      if y.requires_grad then fixture.loss(y):backward() end

      fixture.check_places(net, before, what)
      fixture.check(fixture.gradients(net), expected, o.tolerance or 1e-12, what)
    end)
  end)
end

check_gradients("PlainAutograd", function(net, x) return net(x) end)

check_gradients("TiledMlpOfTheWholeModel", function(net, x, seed)
  return tiled_mlp.new { tiles = seed % 3 + 1 }(net, x)
end)

check_gradients("TiledMlpOfEachBlock", function(net, x, seed)
  local mlp = tiled_mlp.new { tiles = seed % 3 + 1 }
  return net(x, function(block, h) return mlp(block, h) end)
end)

check_gradients("ARegionForEachBlockAndOneForAll", function(net, x, seed)
  local ckpt = checkpoint.new { early_stop = seed % 4 > 1 }
  if seed % 3 == 0 then return ckpt(net, x) end
  return ckpt(function(h) return net(h, ckpt) end, x)
end)

check_gradients("TiledMlpInARegion", function(net, x)
  local ckpt, mlp = checkpoint.new(), tiled_mlp.new { tiles = 2 }
  return net(x, function(block, h) return ckpt(function(rows) return mlp(block, rows) end, h) end)
end)

local function in_bfloat16(net, x) return torch.autocast({ dtype = torch.bfloat16, device = "cpu" }, net, x):float() end

check_gradients("Autocast", in_bfloat16, { dtype = torch.float32, reference = in_bfloat16, tolerance = 0.1 })

check_gradients("AutocastInARegion", function(net, x)
  return in_bfloat16(function(h) return net(h, checkpoint.new()) end, x)
end, { dtype = torch.float32, reference = in_bfloat16, tolerance = 0.1 })

for _, recipe in ipairs { "tensorwise", "rowwise" } do
  check_gradients("Float8(" .. recipe .. ")", function(net, x) return net(x) end, {
    dtype = torch.float32, tolerance = 1e-4,
    prepare = function(net)
      local linears, count = {}, 0
      for _, module in net:named_modules() do
        if module.class_name == "Linear" and not linears[module] then linears[module], count = true, count + 1 end
      end
      t.equal((float8.apply(net, { recipe = recipe })), count)
    end,
  })
end

--- Trains for some steps by step(x), and returns the model's state.
local function train(net, step, seed)
  for i = 1, 7 do step(fixture.input(seed + 1000 * i)) end
  return net:state_dict()
end

local function step_of(net)
  local optimizer = optim.AdamW(net:parameters(), { lr = 0.01 })
  return function(x)
    local loss = fixture.loss(net(x))
    loss:backward()
    optimizer:step()
    optimizer:zero_grad()
    return loss
  end, optimizer
end

t.test("AGraphTrainsAsTheLoop", function()
  each({ frozen = false }, function(seed, net)
    local loop = fixture.net(seed)

    local graph = lockstep.graph((step_of(net)))

    t.equal(train(net, graph, seed), train(loop, (step_of(loop)), seed), "seed " .. seed)
    t.equal(graph.hits, 3)
  end)
end)

t.test("AResumedRunHasTheSameBits", function()
  local base = run.dir
  each({ frozen = false }, function(seed, net)
    run.dir = base .. "/" .. seed
    core.make_folder(run.dir)
    local step, optimizer = step_of(net)
    train(net, step, seed)
    run:state { model = net, optimizer = optimizer }
    run:save { step = 7 }
    local expected = train(net, step, seed + 1)

    local other = fixture.net(seed)
    local other_step, other_optimizer = step_of(other)
    run:state { model = other, optimizer = other_optimizer }
    run:resume()

    t.equal(train(other, other_step, seed + 1), expected, "seed " .. seed)
  end)
  run.dir = base
end)

t.test("AStateDictHasEachPlaceAndLoadsIntoTheSameModel", function()
  each({}, function(seed, net)
    local other = fixture.net(seed)
    torch.no_grad(function()
      for _, p in net:named_parameters() do p:add_(1) end
    end)

    other:load_state_dict(net:state_dict())

    t.equal(other:state_dict(), net:state_dict(), "seed " .. seed)
  end)
end)

t.test("LoraRefusesALayerWithTwoNames", function()
  local refused = 0
  each({}, function(_, net)
    local names, shared = {}, nil
    for name, module in net:named_modules() do
      if module.class_name == "Linear" then
        if names[module] then shared = shared or ('"%s" and "%s" are one module'):format(names[module], name) end
        names[module] = name
      end
    end
    if shared then
      refused = refused + 1
      local message = t.raises("are one module", lora.apply, net, { r = 2, targets = "all-linear" })
      t.truthy(message:find(shared, 1, true), message .. ", not " .. shared)
    else
      lora.apply(net, { r = 2, targets = "all-linear" })
    end
  end)
  t.truthy(refused > 0 and refused < SEEDS, refused .. " of " .. SEEDS .. " models have a layer with two names")
end)
