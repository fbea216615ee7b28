--- Losses over a vocabulary in parts are those of the whole one, with gradients, in float64. The sizes are random,
--- so that the last rank has fewer rows.

local dist = require "lockstep.distributed"
local losses = require "lockstep.losses"
local nn = require "lockstep.nn"
local sharding = require "lockstep.sharding"
local splits = require "lockstep.nn.splits"
local t = require "lockstep.testing"
local tiled_mlp = require "lockstep.tiled_mlp"
local torch = require "lockstep.torch"

local HIDDEN, FLOAT64 = 6, { dtype = torch.float64 }

local Net = nn.Module:subclass("Net")
function Net:init(weight)
  self.head = nn.Linear(weight:size(1), weight:size(0), { bias = false })
  self:to(torch.float64)
  torch.no_grad(self.head.weight.copy_, self.head.weight, weight)
end

--- Returns a weight in parts with the values of a whole one.
local function in_parts(whole)
  return sharding.tensor_parallel(Net(whole), { plan = { head = "vocabulary" } }).head.weight
end

--- Calls fn(hidden, weight) with a whole weight and with parts, and fails unless results and gradients are the same.
local function compare(hidden, whole, fn)
  local x, y = hidden:clone():requires_grad_(true), hidden:clone():requires_grad_(true)
  local w, part = whole:clone():requires_grad_(true), in_parts(whole)
  local split = splits.of(part)

  local expected, expected_count = fn(x, w)
  local actual, count = fn(y, part)
  expected:sum():backward()
  actual:sum():backward()

  t.near(actual, expected:detach(), 1e-10)
  t.equal(count, expected_count)
  t.near(y.grad, x.grad, 1e-10, "the gradient of hidden")
  t.near(part.grad, split and splits.own(w.grad, split) or w.grad, 1e-10, "the gradient of the weight")
end

--- Returns hidden values and a weight, of random sizes, the same on every rank.
local function draw(seed)
  torch.manual_seed(seed)
  local tokens, vocabulary = torch.randint(1, 12, {}):item(), torch.randint(9, 40, {}):item()
  -- Each rank needs a row.
  while math.ceil(vocabulary / dist.world_size()) * (dist.world_size() - 1) >= vocabulary do
    vocabulary = vocabulary + 1
  end
  return torch.randn({ tokens, HIDDEN }, FLOAT64), torch.randn({ vocabulary, HIDDEN }, FLOAT64), tokens, vocabulary
end

for seed = 1, 6 do
  t.test("TheCrossEntropyOfPartsIsThatOfTheWhole_" .. seed, function()
    local hidden, weight, tokens, vocabulary = draw(seed)
    local labels = torch.randint(vocabulary, { tokens }, { dtype = torch.int64 })
    labels:masked_fill_(torch.rand({ tokens }):lt(0.3), -100)
    local reduction = ({ "mean", "sum", "none" })[seed % 3 + 1]

    compare(hidden, weight, function(h, w)
      return tiled_mlp.cross_entropy { hidden = h, weight = w, labels = labels, reduction = reduction,
        tile_tokens = seed, label_smoothing = seed % 2 * 0.1, z_loss = seed % 3 * 0.01, softcap = seed % 4 * 2,
        divisor = reduction == "mean" and seed > 3 and 3 or nil }
    end)
  end)

  t.test("TheDivergenceOfPartsIsThatOfTheWhole_" .. seed, function()
    local hidden, weight, tokens, vocabulary = draw(seed)
    local teacher_hidden = torch.randn({ tokens, 4 }, FLOAT64)
    local teacher_weight = torch.randn({ vocabulary, 4 }, FLOAT64)
    local mask = torch.rand({ tokens }):gt(0.3)
    local teacher_part = in_parts(teacher_weight)

    for _, direction in ipairs { "forward", "reverse" } do
      compare(hidden, weight, function(h, w)
        -- A student in parts has a teacher of parts, of a whole weight, or of logits.
        local teacher, teacher_head = teacher_hidden, teacher_weight
        if splits.of(w) and seed % 3 == 0 then teacher_head = teacher_part end
        if splits.of(w) and seed % 3 == 1 then
          teacher, teacher_head = torch.linear(teacher_hidden, teacher_weight), nil
        end
        return losses.distillation { hidden = h, weight = w, teacher_hidden = teacher, teacher_weight = teacher_head,
          loss_mask = mask, direction = direction, temperature = 1 + seed / 4, tile_tokens = seed }
      end)
    end
  end)

  t.test("TheZLossOfPartsIsThatOfTheWhole_" .. seed, function()
    local hidden, weight, tokens = draw(seed)
    local mask = torch.rand({ tokens }):gt(0.3)

    compare(hidden, weight, function(h, w)
      return losses.z_loss { hidden = h, weight = w, loss_mask = mask, tile_tokens = seed }
    end)
  end)
end

t.test("ATeacherInPartsTeachesAWholeStudent", function()
  local hidden, weight, tokens, vocabulary = draw(7)
  local teacher_hidden = torch.randn({ tokens, 4 }, FLOAT64)
  local teacher_weight = torch.randn({ vocabulary, 4 }, FLOAT64)
  local function divergence(teacher)
    return losses.distillation { hidden = hidden, weight = weight, teacher_hidden = teacher_hidden,
      teacher_weight = teacher }
  end

  t.near(divergence(in_parts(teacher_weight)), divergence(teacher_weight), 1e-10)
end)

t.test("ALabelOutsideTheVocabularyIsAnError", function()
  local hidden, weight, tokens, vocabulary = draw(9)
  local labels = torch.zeros({ tokens }, { dtype = torch.int64 })
  labels[0]:fill_(vocabulary)

  local one = dist.world_size() == 1
  t.raises(one and "is not in the vocabulary" or ("a label is %d, but the vocabulary has %d ids"):format(vocabulary,
    vocabulary), tiled_mlp.cross_entropy, { hidden = hidden, weight = in_parts(weight), labels = labels })
end)

t.test("ALabelSmoothingThatIsNoShareIsAnError", function()
  local hidden, weight, tokens = draw(9)
  for _, share in ipairs { 10, -0.1 } do
    t.raises(("label_smoothing must be from 0 to 1, not %g"):format(share), tiled_mlp.cross_entropy, { hidden = hidden,
      weight = in_parts(weight), labels = torch.zeros({ tokens }, { dtype = torch.int64 }), label_smoothing = share })
  end
end)

t.test("ARankThatNormalizesItsPartAloneHasAnotherLoss", function()
  if dist.world_size() == 1 then return end
  local hidden, weight = draw(8)
  local part = in_parts(weight)

  local alone = torch.linear(hidden, part:detach()):logsumexp({ -1 }):square():sum()

  t.truthy(math.abs(alone:item() - losses.z_loss({ hidden = hidden, weight = weight }):item()) > 1e-3)
end)
