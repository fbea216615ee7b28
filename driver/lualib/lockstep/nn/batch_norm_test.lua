-- BatchNorm on one rank against its formula, and its state.

local nn = require "lockstep.nn"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

for _, class in ipairs { "BatchNorm1d", "BatchNorm2d", "BatchNorm3d" } do
  t.test(class .. "IsTheFormulaInTrainingAndEvaluation", function()
    torch.manual_seed(2)
    local sizes = ({ BatchNorm1d = { 4, 3 }, BatchNorm2d = { 4, 3, 2, 2 }, BatchNorm3d = { 2, 3, 2, 1, 2 } })[class]
    local shape = { 1, 3 }
    for _ = 3, #sizes do shape[#shape + 1] = 1 end
    local norm = nn[class](3, { eps = 1e-3, momentum = 0.25 })
    local mean_running, var_running = torch.zeros { 3 }, torch.ones { 3 }
    for step = 1, 3 do
      local x = torch.randn(sizes) * 2 + 1
      local rows = x:transpose(0, 1):reshape(3, -1)
      local mean, var = rows:mean(1), rows:var({ 1 }, { correction = 0 })
      t.near(norm(x), (x - mean:view(shape)) / (var:view(shape) + 1e-3):sqrt(), 1e-5)
      local n = rows:size(1)
      mean_running = mean_running * 0.75 + mean * 0.25
      var_running = var_running * 0.75 + var * (0.25 * n / (n - 1))
      t.near(norm.running_mean, mean_running, 1e-5)
      t.near(norm.running_var, var_running, 1e-5)
      t.equal(norm.num_batches_tracked:item(), step)
    end
    norm:eval()
    local x = torch.randn(sizes)
    t.near(norm(x), (x - mean_running:view(shape)) / (var_running:view(shape) + 1e-3):sqrt(), 1e-5)
    t.equal(norm.num_batches_tracked:item(), 3)
  end)
end

t.test("TheStateHasPyTorchsKeys", function()
  local function keys(opts)
    local names = {}
    for name in pairs(nn.BatchNorm2d(4, opts):state_dict()) do names[#names + 1] = name end
    table.sort(names)
    return names
  end
  t.equal(keys(), { "bias", "num_batches_tracked", "running_mean", "running_var", "weight" })
  t.equal(keys { affine = false }, { "num_batches_tracked", "running_mean", "running_var" })
  t.equal(keys { affine = false, track_running_stats = false }, {})
  local trained, other = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
  trained(torch.randn { 5, 2 })
  other:load_state_dict(trained:state_dict())
  t.equal(other.running_var, trained.running_var)
  t.equal(other.num_batches_tracked:item(), 1)
end)

t.test("WithoutRunningStatisticsEvaluationUsesTheBatch", function()
  local norm = nn.BatchNorm1d(2, { track_running_stats = false }):eval()
  local y = norm(torch.randn { 50, 2 } * 3 + 4)
  t.near(y:mean(0), torch.zeros { 2 }, 1e-5)
end)

t.test("WrongInputsAreErrors", function()
  t.raises("nn.BatchNorm2d: the input must be [batch, channels, height, width] with 3 channels, got {2, 3}",
    nn.BatchNorm2d(3), torch.zeros { 2, 3 })
  t.raises("training needs more than 1 value of each channel, got 1", nn.BatchNorm1d(3), torch.zeros { 1, 3 })
end)
