--- Numbers of 8 bits in blocks, as bitsandbytes stores moments of optimizers and the magnitudes of 4-bit weights.
---
--- A block's numbers are divided by its largest magnitude, absmax. Each becomes the nearest of 256 values, which are
--- dense near 0: a sign, an exponent whose length varies, and a fraction (arXiv 1511.04561). Numbers that are never
--- negative need no sign, and have one bit more for the fraction.

local torch = require "lockstep.torch"

local M = {}

local F32 = { dtype = torch.float32 }

local function make_map(signed)
  local values = { 0, 1 }
  for i = 0, 6 do
    local bounds = torch.linspace(0.1, 1, 2 ^ (signed and i or i + 1) + 1, F32)
    local count = bounds:size(0) - 1
    local means = bounds:narrow(0, 0, count):add(bounds:narrow(0, 1, count)):div_(2):mul_(10 ^ (i - 6))
    for _, mean in ipairs(means:totable()) do
      values[#values + 1] = mean
      if signed then values[#values + 1] = -mean end
    end
  end
  table.sort(values)
  return torch.tensor(values, F32)
end

--- Values in order, and the numbers in the middle between two of them, by sign and device.
local maps, middles = {}, {}

--- Returns the 256 values in order, float32.
---@param signed boolean
---@param device string
---@return torch.Tensor
function M.map(signed, device)
  local key = device .. (signed and " signed" or "")
  maps[key] = maps[key] or torch.no_grad(make_map, signed):to(device)
  return maps[key]
end

local function middles_of(signed, device)
  local key, map = device .. (signed and " signed" or ""), M.map(signed, device)
  middles[key] = middles[key] or map:narrow(0, 0, 255):add(map:narrow(0, 1, 255)):div_(2)
  return middles[key]
end

--- Returns a tensor in rows of one block, with zeros behind the last number.
---@param x torch.Tensor
---@param block integer
---@return torch.Tensor # [ceil(n / block), block]
function M.rows(x, block)
  local flat = x:flatten()
  local rest = flat:numel() % block
  if rest > 0 then flat = torch.constant_pad_nd(flat, { 0, block - rest }) end
  return flat:view(-1, block)
end

--- Returns the bytes that stand for float32 numbers, and the largest magnitude of each block. A block with a NaN has
--- NaN as its magnitude, and so numbers that are NaN.
---@param x torch.Tensor float32
---@param signed boolean
---@param block integer
---@return torch.Tensor codes uint8, in x's shape
---@return torch.Tensor absmax float32 [ceil(n / block)]
function M.quantize(x, signed, block)
  local rows = M.rows(x, block)
  local absmax = rows:abs():amax { 1 }
  local scaled = rows * absmax:clamp { min = 1e-38 }:reciprocal():unsqueeze(1)
  local codes = torch.bucketize(scaled:clamp_(-1, 1), middles_of(signed, x.device), { out_int32 = true })
  return codes:to(torch.uint8):view(-1):narrow(0, 0, x:numel()):view(x.shape), absmax
end

--- Returns bytes and magnitudes like `quantize`, of numbers that were stored in such blocks before. These come out as
--- they are: their block's magnitude is found, which may belong to a negative number, whose value is not -1.
---@param x torch.Tensor float32
---@param signed boolean
---@param block integer
---@return torch.Tensor codes
---@return torch.Tensor absmax
function M.recover(x, signed, block)
  local codes, absmax = M.quantize(x, signed, block)
  if not signed then return codes, absmax end
  local rows, map = M.rows(x, block), M.map(signed, x.device)
  local is_negative = torch.eq(rows:amin { 1 }, -absmax)
  local guess = torch.where(is_negative, absmax / map[0]:neg(), absmax):view(torch.int32)
  local found = torch.zeros_like(is_negative)
  codes = M.rows(codes, block):clone()
  for ulps = -2, 2 do
    local magnitude = (guess + ulps):view(torch.float32)
    local near = torch.bucketize((rows / magnitude:unsqueeze(1)):clamp_(-1, 1), middles_of(signed, x.device),
      { out_int32 = true })
    local values = map:index_select(0, near:view(-1)):view(rows.shape) * magnitude:unsqueeze(1)
    local fits = torch.eq(values, rows):all(1):bitwise_and(found:bitwise_not())
    absmax = torch.where(fits, magnitude, absmax)
    codes = torch.where(fits:unsqueeze(1), near:to(torch.uint8), codes)
    found = found:bitwise_or(fits)
  end
  return codes:view(-1):narrow(0, 0, x:numel()):view(x.shape), absmax
end

--- Returns the numbers that bytes stand for.
---@param codes torch.Tensor uint8
---@param absmax torch.Tensor float32
---@param signed boolean
---@param block integer
---@return torch.Tensor # float32, in the codes' shape
function M.dequantize(codes, absmax, signed, block)
  local numbers = M.map(signed, codes.device):index_select(0, M.rows(codes, block):view(-1):to(torch.int32))
  return numbers:view(-1, block):mul_(absmax:unsqueeze(1)):view(-1):narrow(0, 0, codes:numel()):view(codes.shape)
end

return M
