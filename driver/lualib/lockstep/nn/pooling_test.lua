-- Pooling against sums and maxima over windows.

local nn = require "lockstep.nn"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

--- Returns the values of each window of a row, without those of the padding.
local function windows(row, kernel, stride, padding, dilation)
  local found, size = {}, row:size(0)
  for start = -padding, size + padding - dilation * (kernel - 1) - 1, stride do
    local window = {}
    for k = 0, kernel - 1 do
      local at = start + k * dilation
      if at >= 0 and at < size then window[#window + 1] = row[at]:item() end
    end
    found[#found + 1] = window
  end
  return found
end

for _, case in ipairs { { 2 }, { 3, 2 }, { 3, 1, 1 }, { 2, 2, 1 }, { 3, 2, 1, 2 } } do
  local kernel, stride, padding, dilation = case[1], case[2] or case[1], case[3] or 0, case[4] or 1
  t.test(("PoolsOf_%d_%d_%d_%d_AreMaximaAndMeans"):format(kernel, stride, padding, dilation), function()
    torch.manual_seed(1)
    local x = torch.randn { 1, 1, 11 }
    local maxima, means, padded = {}, {}, {}
    for i, window in ipairs(windows(x[{ 0, 0 }], kernel, stride, padding, dilation)) do
      local sum = 0
      for _, value in ipairs(window) do sum = sum + value end
      maxima[i], means[i], padded[i] = math.max(unpack(window)), sum / #window, sum / kernel
    end
    t.near(nn.MaxPool1d(kernel, { stride = stride, padding = padding, dilation = dilation })(x):flatten(),
      torch.tensor(maxima), 1e-6)
    if dilation > 1 then return end
    local o = { stride = stride, padding = padding }
    t.near(nn.AvgPool1d(kernel, o)(x):flatten(), torch.tensor(padded), 1e-6)
    o.count_include_pad = false
    t.near(nn.AvgPool1d(kernel, o)(x):flatten(), torch.tensor(means), 1e-6)
  end)
end

t.test("PoolsOfImagesAreThoseOfRowsAndThenOfColumns", function()
  local x = torch.randn { 2, 3, 8, 6 }
  local function both(pool1d)
    local rows = pool1d(x:flatten(0, 1):flatten(0, 1):unsqueeze(1)):view(2, 3, 8, -1)
    local columns = rows:transpose(2, 3):flatten(0, 2):unsqueeze(1)
    return pool1d(columns):view(2, 3, rows:size(3), -1):transpose(2, 3)
  end
  t.near(nn.MaxPool2d(2)(x), both(nn.MaxPool1d(2)), 1e-6)
  t.near(nn.AvgPool2d(2, { stride = 1 })(x), both(nn.AvgPool1d(2, { stride = 1 })), 1e-6)
  t.near(nn.AdaptiveAvgPool2d(2)(x), both(nn.AdaptiveAvgPool1d(2)), 1e-6)
  t.near(nn.AdaptiveAvgPool2d(1)(x):flatten(1), x:mean({ 2, 3 }), 1e-6)
  t.equal(nn.MaxPool2d({ 2, 3 }, { stride = { 1, 3 } })(x).shape, { 2, 3, 7, 2 })
  t.equal(nn.MaxPool1d(2, { ceil_mode = true })(torch.zeros { 1, 1, 5 }).shape, { 1, 1, 3 })
end)

t.test("WhatCannotBeRightIsAnError", function()
  t.raises("nn.MaxPool2d: kernel_size must be a whole number of at least 1", nn.MaxPool2d, 0)
  t.raises("dilation", nn.AvgPool1d, 2, { dilation = 2 })
end)
