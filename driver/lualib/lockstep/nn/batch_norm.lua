--- Batch normalization.

local core = require "lockstep.core"
local dist = require "lockstep.distributed"
local make = require "lockstep.nn.parameter"
local nn = require "lockstep.nn"
local options = require "lockstep.options"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

---@class nn.batch_norm
local M = {}

---@class nn.BatchNormOptions
---@field eps number? default 1e-5
---@field momentum number? of the running statistics; default 0.1
---@field affine boolean? default true
---@field track_running_stats boolean? default true; false: evaluation, too, uses the batch's own statistics
---@field sync boolean? default false; true: statistics in training are those of all ranks' batches together

--- Returns the mean and the biased variance of each channel over all ranks, and how many values they are of. Gradients
--- pass to every rank. Two sums, one after the other: the difference of two large sums would lose the digits.
local function of_all_ranks(x, dims)
  local channels = x:size(1)
  local all_reduce = dist.functional.all_reduce
  local count = torch.tensor({ x:numel() / channels }, { dtype = x.dtype }):to(x.device)
  local sums = all_reduce(torch.cat { x:sum(dims), count })
  local total = sums[channels]:item()
  local mean = sums:narrow(0, 0, channels) / math.max(total, 1)
  local shape = { 1, channels }
  for _ = 3, x:dim() do shape[#shape + 1] = 1 end
  local centered = x - mean:view(shape)
  return mean, all_reduce(centered:square():sum(dims)) / math.max(total, 1), total, centered, shape
end

--- Makes the class for inputs with one of these numbers of dimensions.
local function batch_norm(class, known_dims, expected)
  local BatchNorm = nn.Module:subclass(class)

  function BatchNorm:init(num_features, opts)
    local o = options.read("nn." .. class, opts, { eps = 1e-5, momentum = 0.1, affine = true,
      track_running_stats = true, sync = false })
    self.num_features = make.positive(class, "num_features", num_features)
    self.eps, self.momentum, self.sync, self.track_running_stats = o.eps, o.momentum, o.sync, o.track_running_stats
    if o.affine then
      self.weight = make.new({ num_features }, function(t) t:fill_(1) end)
      self.bias = make.new({ num_features }, function(t) t:zero_() end)
    end
    if o.track_running_stats then
      self.running_mean, self.running_var = torch.zeros { num_features }, torch.ones { num_features }
      self.num_batches_tracked = torch.zeros({}, { dtype = torch.int64 })
    end
  end

  local function check_count(count)
    plain.check(count > 1, "nn.%s: training needs more than 1 value of each channel, got %s", class, count)
  end

  function BatchNorm:forward(x)
    if not known_dims[x:dim()] or x:size(1) ~= self.num_features then
      core.raise(("nn.%s: the input must be %s with %d channels, got %s"):format(class, expected, self.num_features,
        tostring(x.shape)))
    end
    local uses_batch = self.training or not self.track_running_stats
    local tracks = self.training and self.track_running_stats
    if tracks then self.num_batches_tracked:add_(1) end
    if not (self.sync and self.training) then
      if self.training then check_count(x:numel() / self.num_features) end
      return torch.batch_norm(x, self.weight, self.bias, self.running_mean, self.running_var, uses_batch, self.momentum,
        self.eps, false)
    end
    local dims = { 0 }
    for d = 2, x:dim() - 1 do dims[#dims + 1] = d end
    local wide = x.dtype == torch.float64 and x or x:to(torch.float32)
    local mean, var, total, centered, shape = of_all_ranks(wide, dims)
    check_count(total)
    if tracks then
      torch.no_grad(function()
        self.running_mean:lerp_(mean:detach():to(self.running_mean.dtype), self.momentum)
        self.running_var:lerp_((var:detach() * (total / (total - 1))):to(self.running_var.dtype), self.momentum)
      end)
    end
    local y = centered * (var + self.eps):rsqrt():view(shape)
    if self.weight ~= nil then y = y * self.weight:view(shape) + self.bias:view(shape) end
    return y:to(x.dtype)
  end

  return BatchNorm
end

--- Normalizes each channel to mean 0 and variance 1 over the batch, then scales and shifts it (arXiv 1502.03167). In
--- evaluation it uses running statistics of training. x: [batch, channels] or [batch, channels, length]; weight, bias,
--- running_mean and running_var: [channels]; num_batches_tracked: a count. Names, values and defaults are PyTorch's.
---
--- Each rank has the statistics of its own batches, and they drift apart. With sync = true they are those of all ranks
--- together, as of torch.nn.SyncBatchNorm. The forward pass in training is then collective: every rank calls it equally
--- often, and a rank's batch may be empty.
---
---     local norm = nn.BatchNorm1d(64, { sync = true })
---@type fun(num_features: integer, opts: nn.BatchNormOptions?): nn.Module
M.BatchNorm1d = batch_norm("BatchNorm1d", { [2] = true, [3] = true }, "[batch, channels] or [batch, channels, length]")

--- Is nn.BatchNorm1d for images. x: [batch, channels, height, width].
---@type fun(num_features: integer, opts: nn.BatchNormOptions?): nn.Module
M.BatchNorm2d = batch_norm("BatchNorm2d", { [4] = true }, "[batch, channels, height, width]")

--- Is nn.BatchNorm1d for videos. x: [batch, channels, time, height, width].
---@type fun(num_features: integer, opts: nn.BatchNormOptions?): nn.Module
M.BatchNorm3d = batch_norm("BatchNorm3d", { [5] = true }, "[batch, channels, time, height, width]")

return M
