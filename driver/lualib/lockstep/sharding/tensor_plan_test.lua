--- Plans of one's own for sharding.tensor_parallel: nets whose tokens and features are split where the plan says, next
--- to the whole net on one rank.

local checkpoint = require "lockstep.checkpoint"
local dist = require "lockstep.distributed"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local sharding = require "lockstep.sharding"
local splits = require "lockstep.nn.splits"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local RANK, WORLD = dist.rank(), dist.world_size()
torch.set_default_dtype(torch.float64)

local Block = nn.Module:subclass("Block")
function Block:init(hidden, p)
  self.norm, self.up, self.down = nn.LayerNorm(hidden), nn.Linear(hidden, 4 * WORLD), nn.Linear(4 * WORLD, hidden)
  self.inner_dropout, self.dropout = nn.Dropout(p), nn.Dropout(p)
end
function Block:forward(x)
  return x + self.dropout(self.down(self.inner_dropout(torch.tanh(self.up(self.norm(x))))))
end

--- Learns from tokens [batch, tokens], with a table of positions, a scale of its own, and a tower that sees all tokens.
local Net = nn.Module:subclass("Net")
function Net:init(o)
  self.embedding, self.positions = nn.Embedding(2 * WORLD + 3, o.hidden), nn.Embedding(8 * WORLD, o.hidden)
  self.sum = nn.Module:subclass("Sum")()
  self.sum.forward = function(_, a, b) return a + b end
  self.blocks = nn.ModuleList {}
  for _ = 1, 2 do self.blocks:append(Block(o.hidden, o.p or 0)) end
  self.final = nn.LayerNorm(o.hidden)
  self.scale = torch.full({ o.hidden }, 1.5):requires_grad_(true)
  self.last = nn.Linear(o.hidden, o.hidden)
  self.head = nn.Linear(o.hidden, 2 * WORLD + 3)
  self.region = o.region
end
function Net:forward(ids)
  local x = self.sum(self.embedding(ids), self.positions(torch.arange(ids:size(-1))))
  for _, block in ipairs(self.blocks) do
    if self.region then x = self.region(block, x) else x = block(x) end
  end
  return self.head(torch.tanh(self.last(self.final(x) * self.scale)))
end

local function net(options)
  torch.manual_seed(options.seed or 1)
  return Net(options)
end

--- Plans that divide tokens in other places. All have the same layers in parts.
local function plan_of(more)
  local plan = { ["blocks.*.up"] = "column", ["blocks.*.down"] = "row", ["blocks.*.norm"] = "tokens",
    ["blocks.*.dropout"] = "tokens", ["blocks.*.inner_dropout"] = "features" }
  for name, kind in pairs(more) do plan[name] = kind end
  return plan
end
local PLANS = {
  { embedding = "whole", positions = "whole", sum = "split", final = "join", scale = "whole", last = "whole",
    head = "whole" },
  { embedding = "vocabulary", positions = "split", final = "tokens", scale = "tokens", last = "tokens",
    head = "vocabulary" },
  { embedding = "whole", positions = "whole", sum = "split", final = "tokens", scale = "tokens", last = "join",
    head = "whole" },
}

local function ids_of(step)
  torch.manual_seed(50 + step)
  return torch.randint(2 * WORLD + 3, { 2, 4 * WORLD }, { dtype = torch.int64 })
end

--- The gradients of all weights, whole.
local function gradients(model)
  local found = {}
  for name, p in model:named_parameters() do
    local split = splits.of(p)
    found[name] = split and splits.whole(p.grad, split) or p.grad
  end
  return found
end

for i, more in ipairs(PLANS) do
  for _, sequence in ipairs { false, true } do
    for _, has_region in ipairs { false, true } do
      local case = ("%d_%s_%s"):format(i, tostring(sequence), tostring(has_region))
      t.test("APlanOfOnesOwnComputesTheWholeNet_" .. case, function()
        for trial = 1, 3 do
          local options = { hidden = 2 + trial, seed = trial }
          local whole = net(options)
          options.region = has_region and checkpoint.new {} or nil
          local parts = sharding.tensor_parallel(net(options), { plan = plan_of(more), sequence = sequence })
          local optimizers = {}
          for j, model in ipairs { whole, parts } do optimizers[j] = optim.AdamW(model:parameters(), { lr = 0.1 }) end
          for step = 1, 3 do
            local results = {}
            for j, model in ipairs { whole, parts } do
              results[j] = model(ids_of(step))
              torch.cross_entropy_loss(results[j]:flatten(0, 1), ids_of(step + 9):flatten()):backward()
            end
            t.near(results[2], results[1], 1e-9)
            local expected = gradients(whole)
            local names = {}
            for name in whole:named_parameters() do names[#names + 1] = name end
            local found = gradients(parts)
            for _, name in ipairs(names) do t.near(found[name], expected[name], 1e-9, step .. " " .. name) end
            local norms = {}
            for j, model in ipairs { whole, parts } do
              norms[j] = optim.clip_grad_norm(model:parameters(), 0.3):item()
              optimizers[j]:step()
              optimizers[j]:zero_grad()
            end
            t.near(norms[2], norms[1], 1e-9)
          end
        end
      end)
    end
  end
end

t.test("InferenceModeAndNoGradComputeTheSame", function()
  local whole = net { hidden = 4 }
  for i, more in ipairs(PLANS) do
    local parts = sharding.tensor_parallel(net { hidden = 4 }, { plan = plan_of(more), sequence = true })
    for _, without in ipairs { torch.no_grad, torch.inference_mode } do
      t.near(without(parts, ids_of(1)), whole(ids_of(1)), 1e-9, tostring(i))
    end
  end
end)

-- Random numbers --------------------------------------------------------------------------------------------------

--- Returns for each rank which elements its dropout keeps: its own rows of [tokens, hidden].
local function kept(model, field, x)
  local seen
  model.blocks[1][field]:register_forward_hook(function(_, _, y) seen = y:detach():ne(0) end)
  model(x)
  return dist.all_gather(seen:to(torch.float64):contiguous())
end

t.test("NoTwoRanksDropTheSamePlacesOfTheirParts", function()
  if WORLD == 1 then return end
  for _, sequence in ipairs { false, true } do
    local model = sharding.tensor_parallel(net { hidden = 16, p = 0.5 }, { plan = plan_of(PLANS[1]),
      sequence = sequence })
    for _, field in ipairs { "dropout", "inner_dropout" } do
      torch.manual_seed(3)
      local masks = kept(model, field, ids_of(1))
      local are_same = (masks[1] - masks[2]):abs():sum():item() == 0
      t.equal(are_same, field == "dropout" and not sequence, field)
      local common = dist.all_gather_object(torch.randint(2 ^ 40, {}, { dtype = torch.int64 }):item())
      t.equal(common[2], common[1], "the common generator has stayed common")
    end
  end
end)

--- The gradients of one pass from a state of the generator.
local function pass_from(model, state)
  model:zero_grad()
  torch.set_rng_state(state)
  model(ids_of(1)):pow(2):sum():backward()
  return gradients(model)
end

t.test("ARegionAndARestoredGeneratorDropTheSamePlacesAgain", function()
  for _, sequence in ipairs { false, true } do
    local opts = { plan = plan_of(PLANS[1]), sequence = sequence }
    local plain = sharding.tensor_parallel(net { hidden = 6, p = 0.5 }, opts)
    local regions = sharding.tensor_parallel(net { hidden = 6, p = 0.5, region = checkpoint.new {} }, opts)
    torch.manual_seed(11)
    local state = torch.get_rng_state()

    local expected = pass_from(plain, state)
    plain(ids_of(2)) -- draws more
    local names = {}
    for name in plain:named_parameters() do names[#names + 1] = name end
    for _, found in ipairs { pass_from(plain, state), pass_from(regions, state) } do
      for _, name in ipairs(names) do t.near(found[name], expected[name], 1e-12, name) end
    end
  end
end)

t.test("WholeWeightsHaveTheSameGradientOnAllRanksUnderDropout", function()
  local model = sharding.tensor_parallel(net { hidden = 6, p = 0.5 }, { plan = plan_of(PLANS[1]), sequence = true })
  torch.manual_seed(4)
  model(ids_of(1)):pow(2):sum():backward()
  for name, p in model:named_parameters() do
    if not splits.of(p) then
      for _, other in ipairs(dist.all_gather(p.grad:contiguous())) do t.near(other, p.grad, 1e-12, name) end
    end
  end
end)

t.test("DropoutDropsTheShareThatItShould", function()
  local model = sharding.tensor_parallel(net { hidden = 64, p = 0.25 }, { plan = plan_of(PLANS[1]), sequence = true })
  torch.manual_seed(5)
  local share = 0
  for _, mask in ipairs(kept(model, "dropout", ids_of(1))) do share = share + mask:mean():item() / WORLD end
  t.truthy(math.abs(share - 0.75) < 0.06, tostring(share))
end)

t.test("RanksWithOtherSeedsAreTold", function()
  if WORLD == 1 then return end
  local model = sharding.tensor_parallel(net { hidden = 6, p = 0.5 }, { plan = plan_of(PLANS[1]), sequence = true })
  local ids = ids_of(1)
  torch.manual_seed(RANK)
  t.raises("ranks 0 and 1 of the group draw different random numbers", model, ids)
end)

-- Mistakes ----------------------------------------------------------------------------------------------------------

t.test("MistakesAreNamed", function()
  if WORLD == 1 then return end
  local function split(changes, options)
    local plan = plan_of(PLANS[1])
    for name, kind in pairs(changes) do plan[name] = kind or nil end
    return sharding.tensor_parallel(net { hidden = 4, p = options and options.p }, { plan = plan, sequence = true })
  end
  t.raises('plan must say where tokens are divided, by "split"', split, { sum = false })
  t.raises('and where they are put together, by "join"', split, { final = "tokens", scale = "tokens" })
  t.raises('plan must say what these see, "tokens" (this rank\'s), "features" (this rank\'s part) or "whole" (all '
    .. "tokens): blocks.0.norm.bias, blocks.0.norm.weight, blocks.1.norm.bias, blocks.1.norm.weight, scale", split,
    { ["blocks.*.norm"] = false, scale = false })
  t.raises("blocks.0.dropout, blocks.1.dropout", split, { ["blocks.*.dropout"] = false }, { p = 0.5 })
  t.raises('"blocks" is a ModuleList, which has no forward; name its members, "blocks.*"', split, { blocks = "tokens" })
  t.raises('"scale" is no module, which "join" is about', split, { scale = "join" })
  t.raises('"blocks.0.norm" is a "whole" layer inside "blocks.0", which sees a part alone ("tokens")', split,
    { ["blocks.*"] = "tokens", ["blocks.*.norm"] = "whole" })
  local twice = net { hidden = 4 }
  twice.final.weight = twice.positions.weight
  t.raises("are one weight or module, which sees a part in one place alone", sharding.tensor_parallel, twice,
    { sequence = true, plan = plan_of { embedding = "whole", positions = "whole", sum = "split",
      final = "tokens", last = "join", scale = "tokens", head = "whole" } })
end)

t.test("ALayerInFrontOfTheDivisionIsNamed", function()
  if WORLD == 1 then return end
  local model = sharding.tensor_parallel(net { hidden = 4 }, { sequence = true,
    plan = plan_of { embedding = "whole", positions = "whole", sum = "whole", ["blocks.1"] = "split", final = "join",
      scale = "whole", last = "whole", head = "whole" } })
  t.raises(("got %d tokens, and no %d were divided"):format(4 * WORLD, 4 * WORLD * WORLD), model, ids_of(1))
end)
