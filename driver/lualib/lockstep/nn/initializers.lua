--- Initial values of parameters: each function fills a tensor in place and returns it. The numbers are those of
--- torch.nn.init after the same torch.manual_seed. Tensors in bfloat16 and float16 are filled with rounded float32
--- numbers.
---
---     nn.init.normal_(layer.weight, { std = 0.02 })
---     nn.init.zeros_(layer.bias)

local core = require "lockstep.core"
local options = require "lockstep.options"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

local M = {}

local IS_LOW = { [torch.bfloat16] = true, [torch.float16] = true }

--- Fills the tensor by `fill`, which low-precision tensors get in float32.
local function filled(name, tensor, fill)
  plain.check(torch.is_tensor(tensor), "nn.init.%s: expected a tensor, not a %s", name, type(tensor))
  plain.check(tensor:is_floating_point(),
    "nn.init.%s: expected a tensor of floating-point numbers, not %s", name, tensor.dtype)
  torch.no_grad(function()
    if IS_LOW[tensor.dtype] then
      local wide = torch.empty_like(tensor, { dtype = torch.float32 })
      fill(wide)
      tensor:copy_(wide)
    else
      fill(tensor)
    end
  end)
  return tensor
end

local function check_at_least(name, option, value, least)
  plain.check(value >= least, "nn.init.%s: %s must be a number of at least %g, not %g", name, option, least, value)
end

--- Fills with one number.
---@param tensor torch.Tensor
---@param value number
---@return torch.Tensor
function M.constant_(tensor, value)
  plain.check(type(value) == "number", "nn.init.constant_: the value must be a number, not a %s", type(value))
  return filled("constant_", tensor, function(t) t:fill_(value) end)
end

---@param tensor torch.Tensor
---@return torch.Tensor
function M.zeros_(tensor) return filled("zeros_", tensor, function(t) t:zero_() end) end

---@param tensor torch.Tensor
---@return torch.Tensor
function M.ones_(tensor) return filled("ones_", tensor, function(t) t:fill_(1) end) end

--- Draws from a to b with equal probability.
---@param tensor torch.Tensor
---@param opts {a: number?, b: number?}? default 0 and 1
---@return torch.Tensor
function M.uniform_(tensor, opts)
  local o = options.read("nn.init.uniform_", opts, { a = 0, b = 1 })
  check_at_least("uniform_", "b", o.b, o.a)
  return filled("uniform_", tensor, function(t) t:uniform_(o.a, o.b) end)
end

--- Draws from a normal distribution.
---@param tensor torch.Tensor
---@param opts {mean: number?, std: number?}? default 0 and 1
---@return torch.Tensor
function M.normal_(tensor, opts)
  local o = options.read("nn.init.normal_", opts, { mean = 0, std = 1 })
  check_at_least("normal_", "std", o.std, 0)
  return filled("normal_", tensor, function(t) t:normal_(o.mean, o.std) end)
end

--- The probability that a standard normal number is below x.
local function below(x)
  return (1 + torch.tensor(x / math.sqrt(2), { dtype = torch.float64 }):erf():item()) / 2
end

--- Draws from a normal distribution that is cut off below a and above b. The numbers are computed from uniform ones, so
--- that none is drawn twice. An interval that begins or ends more than 2 std beyond the mean is an error.
---@param tensor torch.Tensor
---@param opts {mean: number?, std: number?, a: number?, b: number?}? default 0, 1, -2, 2; a and b count no std
---@return torch.Tensor
function M.trunc_normal_(tensor, opts)
  local o = options.read("nn.init.trunc_normal_", opts, { mean = 0, std = 1, a = -2, b = 2 })
  check_at_least("trunc_normal_", "std", o.std, 0)
  check_at_least("trunc_normal_", "b", o.b, o.a)
  plain.check(o.mean >= o.a - 2 * o.std and o.mean <= o.b + 2 * o.std, "nn.init.trunc_normal_: the mean %g is more "
    .. "than 2 std (%g) outside of the interval from %g to %g, where the mapping is not exact; move a and b", o.mean,
    o.std, o.a, o.b)
  if o.std == 0 then return M.constant_(tensor, math.min(math.max(o.mean, o.a), o.b)) end
  local lowest, highest = below((o.a - o.mean) / o.std), below((o.b - o.mean) / o.std)
  return filled("trunc_normal_", tensor, function(t)
    t:uniform_(2 * lowest - 1, 2 * highest - 1):erfinv_():mul_(o.std * math.sqrt(2)):add_(o.mean):clamp_(o.a, o.b)
  end)
end

--- The numbers of inputs and outputs that one element of a weight connects: [out, in, kernel...].
local function fans(name, tensor)
  if torch.is_tensor(tensor) and tensor:dim() < 2 then
    core.raise(string.format("nn.init.%s: expected a weight of at least two dimensions, [out, in, ...], not shape %s; "
      .. "use normal_ or zeros_ for vectors", name, tostring(tensor.shape)))
  end
  if not torch.is_tensor(tensor) or tensor:numel() == 0 then return 1, 1 end
  local field = tensor:numel() / (tensor:size(0) * tensor:size(1))
  return tensor:size(1) * field, tensor:size(0) * field
end

local function xavier_std(name, tensor, opts)
  local o = options.read("nn.init." .. name, opts, { gain = 1 })
  local fan_in, fan_out = fans(name, tensor)
  return o.gain * math.sqrt(2 / (fan_in + fan_out))
end

--- Draws from a normal distribution of standard deviation gain * sqrt(2 / (in + out)) (Glorot and Bengio, 2010).
---@param tensor torch.Tensor [out, in, ...]
---@param opts {gain: number?}? default 1
---@return torch.Tensor
function M.xavier_normal_(tensor, opts)
  local std = xavier_std("xavier_normal_", tensor, opts)
  return filled("xavier_normal_", tensor, function(t) t:normal_(0, std) end)
end

--- The same variance, with equal probability.
---@param tensor torch.Tensor [out, in, ...]
---@param opts {gain: number?}? default 1
---@return torch.Tensor
function M.xavier_uniform_(tensor, opts)
  local bound = math.sqrt(3) * xavier_std("xavier_uniform_", tensor, opts)
  return filled("xavier_uniform_", tensor, function(t) t:uniform_(-bound, bound) end)
end

local GAINS = { linear = 1, sigmoid = 1, tanh = 5 / 3, relu = math.sqrt(2), selu = 3 / 4 }

local function kaiming_std(name, tensor, opts)
  local o = options.read("nn.init." .. name, opts, { a = 0, mode = "fan_in", nonlinearity = "leaky_relu" })
  local gain = o.nonlinearity == "leaky_relu" and math.sqrt(2 / (1 + o.a ^ 2)) or GAINS[o.nonlinearity]
  plain.check(gain, 'nn.init.%s: nonlinearity must be "leaky_relu", "linear", "relu", "selu", "sigmoid" or "tanh", not '
    .. '"%s"', name, o.nonlinearity)
  plain.check(o.mode == "fan_in" or o.mode == "fan_out",
    'nn.init.%s: mode must be "fan_in" or "fan_out", not "%s"', name, o.mode)
  local fan_in, fan_out = fans(name, tensor)
  return gain / math.sqrt(o.mode == "fan_in" and fan_in or fan_out)
end

--- Draws from a normal distribution of standard deviation gain / sqrt(in) (He and others, 2015). `a` is the negative
--- slope of a leaky ReLU.
---@param tensor torch.Tensor [out, in, ...]
---@param opts {a: number?, mode: ("fan_in"|"fan_out")?, nonlinearity: string?}? default 0, "fan_in", "leaky_relu"
---@return torch.Tensor
function M.kaiming_normal_(tensor, opts)
  local std = kaiming_std("kaiming_normal_", tensor, opts)
  return filled("kaiming_normal_", tensor, function(t) t:normal_(0, std) end)
end

--- The same variance, with equal probability.
---@param tensor torch.Tensor [out, in, ...]
---@param opts {a: number?, mode: ("fan_in"|"fan_out")?, nonlinearity: string?}? default 0, "fan_in", "leaky_relu"
---@return torch.Tensor
function M.kaiming_uniform_(tensor, opts)
  local bound = math.sqrt(3) * kaiming_std("kaiming_uniform_", tensor, opts)
  return filled("kaiming_uniform_", tensor, function(t) t:uniform_(-bound, bound) end)
end

--- Fills with a random matrix whose rows, or columns if these are fewer, are orthogonal and of length `gain` (Saxe and
--- others, 2013). All dimensions after the first count as one.
---@param tensor torch.Tensor [rows, columns...]
---@param opts {gain: number?}? default 1
---@return torch.Tensor
function M.orthogonal_(tensor, opts)
  local o = options.read("nn.init.orthogonal_", opts, { gain = 1 })
  fans("orthogonal_", tensor)
  return filled("orthogonal_", tensor, function(t)
    if t:numel() == 0 then return end
    local rows = t:size(0)
    local columns = t:numel() / rows
    local random = torch.empty({ rows, columns }, { dtype = t.dtype, device = t.device }):normal_()
    if rows < columns then random = random:t() end
    local q, r = torch.linalg_qr(random)
    q = q * r:diag():sign() -- without the signs the matrices are not drawn uniformly
    if rows < columns then q = q:t() end
    t:copy_(q:reshape(t.shape)):mul_(o.gain)
  end)
end

return M
