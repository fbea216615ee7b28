--- Activations as modules, for nn.Sequential and for models that name them. Options, defaults and results are those of
--- torch.nn. Inside a forward function torch.gelu(x) and its like are shorter.

local core = require "lockstep.core"
local nn = require "lockstep.nn"
local options = require "lockstep.options"
local parameter = require "lockstep.nn.parameter"
local torch = require "lockstep.torch"

---@class nn.activation
local M = {}

--- Makes a class of modules whose options are its fields and whose forward pass is compute(x, module). `check` raises
--- where an option is not valid.
local function make(name, defaults, compute, check)
  local Activation = nn.Module:subclass(name)

  function Activation:init(opts)
    for key, value in pairs(options.read("nn." .. name, opts, defaults)) do self[key] = value end
    if check then check(self) end
  end

  function Activation:forward(x) return compute(x, self) end

  return Activation
end

--- max(x, 0).
---@type fun(): nn.Module
M.ReLU = make("ReLU", {}, function(x) return torch.relu(x) end)

--- min(max(x, 0), 6).
---@type fun(): nn.Module
M.ReLU6 = make("ReLU6", {}, function(x) return torch.relu6(x) end)

--- x for positive x, negative_slope * x for others.
---@type fun(opts: {negative_slope: number?}?): nn.Module
M.LeakyReLU = make("LeakyReLU", { negative_slope = 0.01 },
  function(x, o) return torch.leaky_relu(x, o.negative_slope) end)

--- x for positive x, alpha * (exp(x) - 1) for others.
---@type fun(opts: {alpha: number?}?): nn.Module
M.ELU = make("ELU", { alpha = 1 }, function(x, o) return torch.elu(x, o.alpha) end)

--- max(0, x) + min(0, alpha * (exp(x / alpha) - 1)).
---@type fun(opts: {alpha: number?}?): nn.Module
M.CELU = make("CELU", { alpha = 1 }, function(x, o) return torch.celu(x, o.alpha) end)

--- A scaled ELU that keeps mean 0 and variance 1 (arXiv 1706.02515).
---@type fun(): nn.Module
M.SELU = make("SELU", {}, function(x) return torch.selu(x) end)

--- x times the probability that a normal number is below x; "tanh" is the approximation that Hugging Face calls
--- gelu_pytorch_tanh.
---@type fun(opts: {approximate: ("none"|"tanh")?}?): nn.Module
M.GELU = make("GELU", { approximate = "none" },
  function(x, o) return torch.gelu(x, { approximate = o.approximate }) end,
  function(o)
    if o.approximate == "none" or o.approximate == "tanh" then return end
    core.raise(string.format('nn.GELU: approximate must be "none" or "tanh", not "%s"', o.approximate))
  end)

--- x * sigmoid(x), also called swish.
---@type fun(): nn.Module
M.SiLU = make("SiLU", {}, function(x) return torch.silu(x) end)

--- x * tanh(softplus(x)).
---@type fun(): nn.Module
M.Mish = make("Mish", {}, function(x) return torch.mish(x) end)

--- 1 / (1 + exp(-x)).
---@type fun(): nn.Module
M.Sigmoid = make("Sigmoid", {}, function(x) return torch.sigmoid(x) end)

--- log(sigmoid(x)).
---@type fun(): nn.Module
M.LogSigmoid = make("LogSigmoid", {}, function(x) return torch.log_sigmoid(x) end)

--- Hyperbolic tangent.
---@type fun(): nn.Module
M.Tanh = make("Tanh", {}, function(x) return torch.tanh(x) end)

--- x - tanh(x).
---@type fun(): nn.Module
M.Tanhshrink = make("Tanhshrink", {}, function(x) return x - torch.tanh(x) end)

--- log(1 + exp(beta * x)) / beta, and x itself where beta * x is above the threshold.
---@type fun(opts: {beta: number?, threshold: number?}?): nn.Module
M.Softplus = make("Softplus", { beta = 1, threshold = 20 },
  function(x, o) return torch.softplus(x, o.beta, o.threshold) end)

--- x / (1 + |x|).
---@type fun(): nn.Module
M.Softsign = make("Softsign", {}, function(x) return x / (torch.abs(x) + 1) end)

--- x moved towards 0 by lambd, and 0 between -lambd and lambd.
---@type fun(opts: {lambd: number?}?): nn.Module
M.Softshrink = make("Softshrink", { lambd = 0.5 }, function(x, o) return torch.softshrink(x, o.lambd) end)

--- x, and 0 between -lambd and lambd.
---@type fun(opts: {lambd: number?}?): nn.Module
M.Hardshrink = make("Hardshrink", { lambd = 0.5 }, function(x, o) return torch.hardshrink(x, o.lambd) end)

--- x, no smaller than min_val and no larger than max_val.
---@type fun(opts: {min_val: number?, max_val: number?}?): nn.Module
M.Hardtanh = make("Hardtanh", { min_val = -1, max_val = 1 },
  function(x, o) return torch.hardtanh(x, o.min_val, o.max_val) end)

--- min(max(x / 6 + 1 / 2, 0), 1).
---@type fun(): nn.Module
M.Hardsigmoid = make("Hardsigmoid", {}, function(x) return torch.hardsigmoid(x) end)

--- x * hardsigmoid(x).
---@type fun(): nn.Module
M.Hardswish = make("Hardswish", {}, function(x) return torch.hardswish(x) end)

--- The first half of a dimension times the sigmoid of the second half.
---@type fun(opts: {dim: integer?}?): nn.Module
M.GLU = make("GLU", { dim = -1 }, function(x, o) return torch.glu(x, o.dim) end)

--- exp(x) divided by its sum along a dimension.
---@type fun(opts: {dim: integer?}?): nn.Module
M.Softmax = make("Softmax", { dim = -1 }, function(x, o) return torch.softmax(x, o.dim) end)

--- log(softmax(x)) along a dimension.
---@type fun(opts: {dim: integer?}?): nn.Module
M.LogSoftmax = make("LogSoftmax", { dim = -1 }, function(x, o) return torch.log_softmax(x, o.dim) end)

--- x for positive x, weight * x for others. weight: [channels], or [1] for all channels; x: [batch, channels, ...].
---@class nn.PReLU: nn.Module
local PReLU = nn.Module:subclass("PReLU")
---@type fun(opts: {num_parameters: integer?, value: number?}?): nn.PReLU
M.PReLU = PReLU

function PReLU:init(opts)
  local o = options.read("nn.PReLU", opts, { num_parameters = 1, value = 0.25 })
  self.weight = parameter.new({ parameter.positive("PReLU", "num_parameters", o.num_parameters) },
    function(t) t:fill_(o.value) end)
end

function PReLU:forward(x) return torch.prelu(x, self.weight) end

return M
