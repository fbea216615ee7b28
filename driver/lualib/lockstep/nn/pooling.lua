--- Pooling over windows.

local make = require "lockstep.nn.parameter"
local nn = require "lockstep.nn"
local options = require "lockstep.options"
local torch = require "lockstep.torch"

---@class nn.pooling
local M = {}

--- Makes the class of a pooling over `dims` dimensions; `call` has the operator's arguments.
local function pool(class, dims, defaults, call)
  local Pool = nn.Module:subclass(class)

  function Pool:init(kernel_size, opts)
    local known = { stride = options.optional, padding = options.optional, dilation = defaults.dilation
      and options.optional, ceil_mode = false, count_include_pad = defaults.count_include_pad }
    local o = options.read("nn." .. class, opts, known)
    self.kernel_size = make.per_dim(class, "kernel_size", kernel_size, dims, 1)
    self.stride = make.per_dim(class, "stride", o.stride or kernel_size, dims, 1)
    self.padding = make.per_dim(class, "padding", o.padding or 0, dims, 0)
    self.dilation = make.per_dim(class, "dilation", o.dilation or 1, dims, 1)
    self.ceil_mode, self.count_include_pad = o.ceil_mode, o.count_include_pad
  end

  function Pool:forward(x) return call(self, x) end

  return Pool
end

local function max_pool(operator)
  return function(p, x) return operator(x, p.kernel_size, p.stride, p.padding, p.dilation, p.ceil_mode) end
end

local function avg_pool(operator)
  return function(p, x) return operator(x, p.kernel_size, p.stride, p.padding, p.ceil_mode, p.count_include_pad) end
end

local function adaptive(class, dims, operator)
  local Pool = nn.Module:subclass(class)

  function Pool:init(output_size) self.output_size = make.per_dim(class, "output_size", output_size, dims, 1) end

  function Pool:forward(x) return operator(x, self.output_size) end

  return Pool
end

---@class nn.MaxPoolOptions
---@field stride (integer|integer[])? default: the kernel's size
---@field padding (integer|integer[])? default 0
---@field dilation (integer|integer[])? default 1
---@field ceil_mode boolean? default false; true: windows may begin within the input and end outside

---@class nn.AvgPoolOptions
---@field stride (integer|integer[])? default: the kernel's size
---@field padding (integer|integer[])? default 0
---@field ceil_mode boolean? default false
---@field count_include_pad boolean? default true: zeros of the padding count in a mean

local WINDOWS, MEANS = { dilation = true }, { count_include_pad = true }

--- The largest value in each window. x: [batch, channels, length] or without batch.
---
---     local pool = nn.MaxPool1d(2)
---@type fun(kernel_size: integer|integer[], opts: nn.MaxPoolOptions?): nn.Module
M.MaxPool1d = pool("MaxPool1d", 1, WINDOWS, max_pool(torch.max_pool1d))

--- The largest value in each window. x: [batch, channels, height, width] or without batch.
---
---     local pool = nn.MaxPool2d(3, { stride = 2, padding = 1 })
---@type fun(kernel_size: integer|integer[], opts: nn.MaxPoolOptions?): nn.Module
M.MaxPool2d = pool("MaxPool2d", 2, WINDOWS, max_pool(torch.max_pool2d))

--- The mean of each window. x: [batch, channels, length] or without batch.
---@type fun(kernel_size: integer|integer[], opts: nn.AvgPoolOptions?): nn.Module
M.AvgPool1d = pool("AvgPool1d", 1, MEANS, avg_pool(torch.avg_pool1d))

--- The mean of each window. x: [batch, channels, height, width] or without batch.
---@type fun(kernel_size: integer|integer[], opts: nn.AvgPoolOptions?): nn.Module
M.AvgPool2d = pool("AvgPool2d", 2, MEANS, avg_pool(torch.avg_pool2d))

--- Means of windows that divide the input into `output_size` parts. x: [batch, channels, length] or without batch.
---@type fun(output_size: integer|integer[]): nn.Module
M.AdaptiveAvgPool1d = adaptive("AdaptiveAvgPool1d", 1, torch.adaptive_avg_pool1d)

--- Means of windows that divide the input into `output_size` parts. x: [batch, channels, height, width] or without
--- batch. nn.AdaptiveAvgPool2d(1) is the mean of each channel.
---@type fun(output_size: integer|integer[]): nn.Module
M.AdaptiveAvgPool2d = adaptive("AdaptiveAvgPool2d", 2, torch.adaptive_avg_pool2d)

return M
