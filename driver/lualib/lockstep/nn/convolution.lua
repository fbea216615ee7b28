--- Convolutions and group normalization.

local nn = require "lockstep.nn"
local options = require "lockstep.options"
local make_parameter = require "lockstep.nn.parameter"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

local parameter, positive, per_dim = make_parameter.new, make_parameter.positive, make_parameter.per_dim

---@class nn.convolution
local M = {}

---@class nn.ConvOptions
---@field stride (integer|integer[])? default 1
---@field padding (integer|integer[]|"same"|"valid")? default 0; "same": the output is as large as the input
---@field dilation (integer|integer[])? default 1
---@field groups integer? default 1; the channels of a group see only each other
---@field bias boolean? default true
---@field padding_mode ("zeros"|"reflect"|"replicate"|"circular")? default "zeros"

--- Returns the padding on each side of the input, last dimension first, as torch.pad takes it.
local function surroundings(o, kernel, dims)
  local sides = {}
  for d = dims, 1, -1 do
    local both = o.padding == "same" and o.dilation[d] * (kernel[d] - 1) or o.padding == "valid" and 0
      or 2 * o.padding[d]
    table.insert(sides, math.floor(both / 2))
    table.insert(sides, both - math.floor(both / 2))
  end
  return sides
end

local PADDING_MODES = { zeros = true, reflect = true, replicate = true, circular = true }

local function read_options(class, dims, opts)
  local o = options.read("nn." .. class, opts, { stride = options.optional, padding = options.optional,
    dilation = options.optional, groups = 1, bias = true, padding_mode = "zeros" })
  o.stride = per_dim(class, "stride", o.stride or 1, dims, 1)
  o.dilation = per_dim(class, "dilation", o.dilation or 1, dims, 1)
  positive(class, "groups", o.groups)
  if o.padding == "same" then
    for _, stride in ipairs(o.stride) do
      plain.check(stride == 1, 'nn.%s: padding = "same" needs a stride of 1, not %d', class, stride)
    end
  elseif o.padding ~= "valid" then
    o.padding = per_dim(class, 'padding, unless "same" or "valid",', o.padding or 0, dims, 0)
  end
  plain.check(PADDING_MODES[o.padding_mode],
    'nn.%s: padding_mode must be "zeros", "reflect", "replicate" or "circular", not "%s"', class, o.padding_mode)
  return o
end

--- Makes the class of a convolution over some dimensions.
local function make(class, dims, operator)
  local Convolution = nn.Module:subclass(class)

  function Convolution:init(in_channels, out_channels, kernel_size, opts)
    positive(class, "in_channels", in_channels)
    positive(class, "out_channels", out_channels)
    local kernel = per_dim(class, "kernel_size", kernel_size, dims, 1)
    local o = read_options(class, dims, opts)
    plain.check(in_channels % o.groups == 0 and out_channels % o.groups == 0, "nn.%s: %d input and %d output channels "
      .. "must both be multiples of groups = %d", class, in_channels, out_channels, o.groups)
    local shape = { out_channels, in_channels / o.groups, unpack(kernel) }
    local fan_in = shape[2]
    for _, size in ipairs(kernel) do fan_in = fan_in * size end
    local bound = 1 / math.sqrt(fan_in)
    local uniform = function(t) t:uniform_(-bound, bound) end
    self.stride, self.padding, self.dilation, self.groups = o.stride, o.padding, o.dilation, o.groups
    if o.padding_mode ~= "zeros" then
      self.padding_mode, self.surroundings, self.padding = o.padding_mode, surroundings(o, kernel, dims), "valid"
    end
    self.weight = parameter(shape, uniform)
    if o.bias then self.bias = parameter({ out_channels }, uniform) end
  end

  function Convolution:forward(x)
    if self.padding_mode then x = torch.pad(x, self.surroundings, self.padding_mode) end
    return operator(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)
  end

  return Convolution
end

--- Convolution along one dimension. x: [batch, in, length] or [in, length]; weight: [out, in / groups, kernel]; bias:
--- [out]. Both start as in PyTorch, uniform in +-1/sqrt(in / groups * kernel).
---
---     local conv = nn.Conv1d(16, 32, 3, { padding = 1 })
---@type fun(in_channels: integer, out_channels: integer, kernel: integer|integer[], opts: nn.ConvOptions?): nn.Module
M.Conv1d = make("Conv1d", 1, torch.conv1d)

--- Convolution of images. x: [batch, in, height, width] or without batch; weight: [out, in / groups, kernel height and
--- width]; bias: [out]. A patch embedding is one whose stride is its kernel.
---
---     local patches = nn.Conv2d(3, 768, 14, { stride = 14 })
---@type fun(in_channels: integer, out_channels: integer, kernel: integer|integer[], opts: nn.ConvOptions?): nn.Module
M.Conv2d = make("Conv2d", 2, torch.conv2d)

--- Convolution of videos. x: [batch, in, time, height, width] or without batch; weight: [out, in / groups, kernel time,
--- height and width]; bias: [out].
---
---     local patches = nn.Conv3d(3, 1280, { 2, 14, 14 }, { stride = { 2, 14, 14 }, bias = false })
---@type fun(in_channels: integer, out_channels: integer, kernel: integer|integer[], opts: nn.ConvOptions?): nn.Module
M.Conv3d = make("Conv3d", 3, torch.conv3d)

--- Normalizes each group of channels of each sample to mean 0 and variance 1, then scales and shifts every channel
--- (arXiv 1803.08494). x: [batch, channels, ...]; weight and bias: [channels].
---@class nn.GroupNorm: nn.Module
local GroupNorm = nn.Module:subclass("GroupNorm")
---@type fun(num_groups: integer, num_channels: integer, opts: {eps: number?, affine: boolean?}?): nn.GroupNorm
M.GroupNorm = GroupNorm

function GroupNorm:init(num_groups, num_channels, opts)
  local o = options.read("nn.GroupNorm", opts, { eps = 1e-5, affine = true })
  positive("GroupNorm", "num_groups", num_groups)
  plain.check(positive("GroupNorm", "num_channels", num_channels) % num_groups == 0,
    "nn.GroupNorm: num_channels %d must be a multiple of num_groups %d", num_channels, num_groups)
  self.num_groups, self.num_channels, self.eps = num_groups, num_channels, o.eps
  if o.affine then
    self.weight = parameter({ num_channels }, function(t) t:fill_(1) end)
    self.bias = parameter({ num_channels }, function(t) t:zero_() end)
  end
end

function GroupNorm:forward(x) return torch.group_norm(x, self.num_groups, self.weight, self.bias, self.eps) end

return M
