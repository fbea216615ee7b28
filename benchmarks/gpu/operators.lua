--- Values and gradients of the operators that models use, on the device in float32 against the CPU in float64.

local timing = require "timing"
local torch = require "lockstep.torch"

local function attention(q, k, v) return torch.scaled_dot_product_attention(q, k, v, { is_causal = true }) end
local function silu_gate(a, b) return torch.silu(a) * b end

-- Name, function, and the shapes of its arguments, which are random.
local CASES = {
  { "add", function(a, b) return a + b end, { 33, 65 }, { 65 } },
  { "sub", function(a, b) return a - b end, { 33, 65 }, { 33, 1 } },
  { "mul", function(a, b) return a * b end, { 33, 65 }, { 33, 65 } },
  { "div", function(a, b) return a / (b * b + 1) end, { 33, 65 }, { 33, 65 } },
  { "pow", function(a) return (a * a + 1) ^ 1.5 end, { 33, 65 } },
  { "exp", torch.exp, { 33, 65 } },
  { "log", function(a) return torch.log(a * a + 1) end, { 33, 65 } },
  { "sqrt", function(a) return torch.sqrt(a * a + 1) end, { 33, 65 } },
  { "rsqrt", function(a) return torch.rsqrt(a * a + 1) end, { 33, 65 } },
  { "sin", torch.sin, { 33, 65 } },
  { "cos", torch.cos, { 33, 65 } },
  { "tanh", torch.tanh, { 33, 65 } },
  { "sigmoid", torch.sigmoid, { 33, 65 } },
  { "relu", torch.relu, { 33, 65 } },
  { "gelu", torch.gelu, { 33, 65 } },
  { "silu", torch.silu, { 33, 65 } },
  { "silu gate", silu_gate, { 33, 65 }, { 33, 65 } },
  { "softmax", function(a) return torch.softmax(a, -1) end, { 33, 65 } },
  { "log_softmax", function(a) return torch.log_softmax(a, -1) end, { 33, 65 } },
  { "layer_norm", function(a, w, b) return torch.layer_norm(a, { 65 }, w, b) end, { 33, 65 }, { 65 }, { 65 } },
  { "rms_norm", function(a, w) return torch.rms_norm(a, { 65 }, w, 1e-6) end, { 33, 65 }, { 65 } },
  { "sum", function(a) return a:sum(0) end, { 33, 65 } },
  { "mean", function(a) return a:mean(-1) end, { 33, 65 } },
  { "cumsum", function(a) return a:cumsum(0) end, { 33, 65 } },
  { "matmul", torch.matmul, { 33, 65 }, { 65, 17 } },
  { "bmm", torch.bmm, { 5, 33, 65 }, { 5, 65, 17 } },
  { "linear", torch.linear, { 33, 65 }, { 17, 65 }, { 17 } },
  { "transpose", function(a) return a:transpose(0, 1):reshape(-1) * 2 end, { 33, 65 } },
  { "cat", function(a, b) return torch.cat({ a, b }, 0) * 2 end, { 33, 65 }, { 7, 65 } },
  { "narrow", function(a) return a:narrow(0, 3, 20) * 2 end, { 33, 65 } },
  { "attention", attention, { 2, 4, 33, 16 }, { 2, 4, 33, 16 }, { 2, 4, 33, 16 } },
  { "conv2d", function(a, w) return torch.conv2d(a, w) end, { 2, 3, 17, 19 }, { 5, 3, 4, 4 } },
}

local function copies(arguments, options)
  local result = {}
  for i, argument in ipairs(arguments) do result[i] = argument:to(options):requires_grad_(true) end
  return result
end

--- Values, then gradients of a weighted sum of the values.
local function results_of(fn, arguments)
  local value = fn(unpack(arguments))
  local weights = torch.arange(value:numel(), { dtype = torch.float64 }):sin():view(value.shape)
  local loss = (value * weights:to { device = value.device, dtype = value.dtype }):sum()
  local results = torch.grad({ loss }, arguments)
  table.insert(results, 1, value:detach())
  return results
end

torch.manual_seed(1)
local worst, worst_name = 0, "none"
for _, case in ipairs(CASES) do
  local arguments = {}
  for i = 3, #case do arguments[i - 2] = torch.randn(case[i], { dtype = torch.float64 }) end
  local truth = results_of(case[2], copies(arguments, {}))
  local actual = results_of(case[2], copies(arguments, { device = timing.device, dtype = torch.float32 }))
  for i, expected in ipairs(truth) do
    local got = actual[i]:cpu():double()
    local error_ = ((got - expected):norm() / (expected:norm() + 1e-30)):item()
    if not (error_ <= worst) then worst, worst_name = error_, case[1] end -- true for NaN, too
  end
end
print(("# worst operator: %s, of %d"):format(worst_name, #CASES))
timing.report("relative error", worst)
