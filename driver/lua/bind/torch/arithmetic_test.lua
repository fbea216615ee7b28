--- A number and a tensor in +, -, *, /: the same bits, dtype and gradients as with ATen's tensor of the number.

local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local NUMBERS = { 0, -0.0, 1, -1, 2, 0.1, 1 / 3, -2.5, 1e-300, 1e300, 2 ^ 53, 123456789.125, 1 / 0, -1 / 0 }
-- More than are kept at a time, so that each place is used by several.
for i = 1, 500 do NUMBERS[#NUMBERS + 1] = math.sin(i) * 2 ^ (i % 40 - 20) end

--- The operator with the number as a tensor of x's dtype, of no dimension.
local function reference(name, a, b, dtype)
  local function tensor(value)
    return torch.is_tensor(value) and value or torch.scalar_tensor(value, { dtype = torch.float64 }):to(dtype)
  end
  return torch[name](tensor(a), tensor(b))
end

local OPERATORS = {
  { "add", function(a, b) return a + b end }, { "sub", function(a, b) return a - b end },
  { "mul", function(a, b) return a * b end }, { "div", function(a, b) return a / b end },
}

t.test("NumbersGiveTheBitsOfTensorsOfTheSameDtype", function()
  for _, dtype in ipairs { torch.float32, torch.float64 } do
    local x = torch.tensor({ -1.5, -0.0, 0.1, 3, 1e30 }, { dtype = dtype })
    for _, number in ipairs(NUMBERS) do
      for _, op in ipairs(OPERATORS) do
        for _, pair in ipairs { { x, number }, { number, x } } do
          local got, expected = op[2](pair[1], pair[2]), reference(op[1], pair[1], pair[2], dtype)
          t.equal(got.dtype, dtype)
          t.truthy(torch.equal(torch.nan_to_num(got), torch.nan_to_num(expected)),
            ("%s of %.17g and %s"):format(op[1], number, tostring(dtype)))
        end
      end
    end
  end
end)

t.test("ANumberDoesNotChangeTheDtype", function()
  t.equal((torch.ones({}, { dtype = torch.float32 }) * 0.5).dtype, torch.float32)
  t.equal((torch.ones({ 2 }, { dtype = torch.bfloat16 }) * 0.5).dtype, torch.bfloat16)
  t.equal((torch.ones({ 2 }, { dtype = torch.int64 }) * 2).dtype, torch.int64)
  t.equal((torch.ones({ 2 }, { dtype = torch.int64 }) * 0.5).dtype, torch.get_default_dtype())
end)

t.test("GradientsPassThroughNumbers", function()
  for _, number in ipairs { 2, -0.25, 1 / 3 } do
    local x = torch.tensor({ 0.5, -2, 3 }, { dtype = torch.float64 }):requires_grad_(true)
    local y = number * x + (x - number) + (number - x) * 2 + x / number + number / x

    local grad = torch.grad({ y:sum() }, { x })[1]

    local expected = x:detach():pow(-2):mul(-number):add(number + 1 - 2 + 1 / number)
    t.truthy(torch.allclose(grad, expected, 1e-12))
  end
end)

t.test("ACachedNumberCannotBeChanged", function()
  local first = torch.ones({ 2 }) * 7
  first:add_(1):mul_(3)
  local out = torch.zeros({})
  torch.mul(torch.ones({}), 7, { out = out })
  out:fill_(5)

  t.equal((torch.ones({ 2 }) * 7):totable(), { 7, 7 })
end)
