-- BatchNorm with sync = true: each rank's part of a batch gives what one rank computes of the whole.

local dist = require "lockstep.distributed"
local nn = require "lockstep.nn"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local F64 = torch.float64
local CASES = { { "BatchNorm1d", {} }, { "BatchNorm1d", { 5 } }, { "BatchNorm2d", { 2, 3 } },
  { "BatchNorm3d", { 2, 1, 2 } } }

--- Returns a layer in float64 with weights that are not 1.
local function layer(class, sync)
  local norm = nn[class](3, { sync = sync }):to(F64)
  torch.no_grad(function()
    norm.weight:copy_(torch.tensor({ 0.5, -1, 2 }, { dtype = F64 }))
    norm.bias:copy_(torch.tensor({ 1, 2, -1 }, { dtype = F64 }))
  end)
  return norm
end

--- Three steps over random batches; rank r has r * 2 rows of each, so rank 0 has none.
local function compare(class, sizes, sync)
  torch.manual_seed(7)
  local rank, world = dist.rank(), dist.world_size()
  local rows = world * (world - 1)
  local from, count = rank * (rank - 1), 2 * rank
  local whole, part = layer(class, false), layer(class, sync)
  local differences = {}
  local function differ(name, x, expected)
    local distance = (x - expected):abs():max():item()
    if not (distance < 1e-9) then differences[name] = distance end -- NaN, too
  end
  for _ = 1, 3 do
    local x = torch.randn({ rows, 3, unpack(sizes) }, { dtype = F64 }) * 3 + 50
    local scale = torch.randn({ rows, 3, unpack(sizes) }, { dtype = F64 })
    local all, own = x:clone():requires_grad_(true), x:narrow(0, from, count):clone():requires_grad_(true)
    local expected = whole(all)
    ;(expected * scale):sum():backward()
    local y = part(own)
    ;(y * scale:narrow(0, from, count)):sum():backward()
    if count > 0 then
      differ("y", y, expected:narrow(0, from, count))
      differ("input's gradient", own.grad, all.grad:narrow(0, from, count))
    end
  end
  for _, name in ipairs { "weight", "bias" } do
    dist.all_reduce(part[name].grad)
    differ(name, part[name].grad, whole[name].grad)
  end
  for _, name in ipairs { "running_mean", "running_var", "num_batches_tracked" } do
    differ(name, part[name], whole[name])
  end
  part:eval()
  whole:eval()
  local x = torch.randn({ 2, 3, unpack(sizes) }, { dtype = F64 })
  differ("evaluation", part(x), whole(x))
  return differences
end

for _, case in ipairs(CASES) do
  t.test(case[1] .. #case[2] .. "OverRanksIsOneRankOnTheWholeBatch", function()
    t.equal(compare(case[1], case[2], true), {})
  end)
end

t.test("WithoutSyncRanksHaveOwnStatistics", function()
  local norm = layer("BatchNorm1d", false)
  norm(torch.randn({ 4, 3 }, { dtype = F64 }) + dist.rank())
  local means = dist.all_gather_object(norm.running_mean[0]:item())
  t.truthy(means[1] ~= means[2])
end)

t.test("OneValueInAllIsAnError", function()
  local norm = layer("BatchNorm1d", true)
  t.raises("nn.BatchNorm1d: training needs more than 1 value of each channel, got 1", norm,
    torch.zeros({ dist.rank() == 0 and 1 or 0, 3 }, { dtype = F64 }))
end)
