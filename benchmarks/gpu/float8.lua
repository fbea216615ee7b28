--- Float8 layers: results against the CPU's, and an MLP's forward and backward against bfloat16.

local timing = require "timing"
local float8 = require "lockstep.float8"
local nn = require "lockstep.nn"
local torch = require "lockstep.torch"

local device = timing.device
local rows, hidden, wide = timing.size(8192, 32), timing.size(4096, 32), timing.size(14336, 64)

--- Returns two layers, and an input.
local function mlp(dtype, at, sizes)
  torch.manual_seed(1)
  local layers = nn.Sequential { nn.Linear(sizes[2], sizes[3], { bias = false }), nn.Linear(sizes[3], sizes[2]) }
  return layers:to { dtype = dtype, device = at },
    torch.randn({ sizes[1], sizes[2] }):to { dtype = dtype, device = at }:requires_grad_(true)
end

--- Returns y and the gradients of x and of the weights.
local function results(layers, x)
  local y = layers(x)
  return { y, unpack(torch.grad({ y }, { x, layers[1].weight, layers[2].weight }, { grad_outputs = { y:detach() } })) }
end

for _, recipe in ipairs { "tensorwise", "rowwise" } do
  local worst, both = 0, {}
  for i, at in ipairs { device, "cpu" } do
    local layers, x = mlp(torch.float32, at, { 200, 256, 512 })
    float8.apply(layers, { recipe = recipe })
    both[i] = results(layers, x)
  end
  for i, expected in ipairs(both[2]) do
    local difference = (both[1][i]:to "cpu" - expected):norm() / expected:norm()
    worst = math.max(worst, difference:item())
  end
  timing.report(recipe .. ", error / CPU", worst)
end

local plain, x = mlp(torch.bfloat16, device, { rows, hidden, wide })
local seconds = timing.seconds(5, 4, function() results(plain, x) end)
for _, recipe in ipairs { "tensorwise", "rowwise" } do
  local layers = mlp(torch.bfloat16, device, { rows, hidden, wide })
  float8.apply(layers, { recipe = recipe })
  timing.report(recipe .. ", time / bfloat16", timing.seconds(5, 4, function() results(layers, x) end) / seconds)
end

-- Both copies that a gradient needs: x is read twice, and each copy is written once. A copy of as many bytes must not
-- be much faster.
local numbers = torch.randn({ rows, wide }, { dtype = torch.bfloat16, device = device })
local ops, format = torch.ops.lockstep, torch.float8_e4m3fn
local casts = {
  { "cast", 5, function() ops.float8_cast(numbers, format) end },
  { "cast, both copies", 6, function() ops.float8_cast_both(numbers, format) end },
  { "cast, both copies by rows", 6, function() ops.float8_cast_both(numbers, format, true, true) end },
  { "cast, transposed", 5, function() ops.float8_cast_transposed(numbers, format) end },
}
for _, one in ipairs(casts) do
  local name, bytes, cast = unpack(one)
  local from = torch.ones({ numbers:numel() * bytes / 2 }, { dtype = torch.uint8, device = device })
  local to = torch.empty_like(from)
  local copy = timing.seconds(5, 4, function() to:copy_(from) end)
  timing.report(name .. ", speed / copy", copy / timing.seconds(5, 4, cast))
end
