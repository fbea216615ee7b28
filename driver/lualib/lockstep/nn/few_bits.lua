--- Linear layers whose weights stay in 4 bits, the base of QLoRA (arXiv 2305.14314), or in 8 (LLM.int8, arXiv
--- 2208.07339).
---
---     local matrix = few_bits.quantize(layer.weight, { type = "nf4", double = true })
---     few_bits.put(layer, matrix, { dtype = torch.bfloat16 })
---
--- Format and numbers are bitsandbytes', bit for bit: see kernels/few_bits/few_bits.h. The layer's `weight` is a frozen
--- parameter of bytes, which sharding.fully_shard shares out. The magnitudes of its blocks are buffers. Their
--- float32 numbers are kept as int32 of the same bits, which model:to(dtype) leaves alone.

local blockwise = require "lockstep.nn.blockwise"
local nn = require "lockstep.nn"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

local M = {}

---@class nn.FewBitsMatrix a weight in 4 or 8 bits
---@field packed torch.Tensor uint8 [out * in / 2, 1], or int8 [out, in]
---@field absmax torch.Tensor float32 [blocks]; with double quantization uint8. A block of int8 is a row
---@field nested_absmax torch.Tensor? float32, of double quantization
---@field nested_map torch.Tensor? float32 [256]
---@field offset number
---@field shape integer[] {out, in}
---@field blocks integer[] numbers in a block, and magnitudes in a block of double quantization
---@field type "nf4"|"fp4"|"int8"
---@field dtype torch.dtype? of the whole weight, in a folder

local BLOCK, NESTED_BLOCK = 64, 256

--- The buffers of a layer that describe the blocks of its weight: weight_absmax and more.
local PARTS = { "absmax", "nested_absmax", "nested_map" }

--- The values in order, and the bits of each.
local VALUES = {
  nf4 = { -1, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634,
    0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1 },
  fp4 = { -1, -8 / 12, -0.5, -4 / 12, -0.25, -2 / 12, -0.0625 / 12, 0, 0, 0.0625 / 12, 2 / 12, 0.25, 4 / 12, 0.5,
    8 / 12, 1 },
}
local BITS = { fp4 = { 11, 10, 13, 12, 15, 14, 9, 0, 8, 1, 6, 7, 4, 5, 2, 3 } }

--- A linear layer whose weight stays in 4 or 8 bits. Inputs are computed in their own dtype, or in
--- `format.compute_dtype`.
---@class nn.LinearFewBits: nn.Linear
---@field format {shape: integer[], blocks: integer[], offset: number, type: string, dtype: torch.dtype,
--- compute_dtype: torch.dtype?}
local LinearFewBits = nn.Linear:subclass "LinearFewBits"
M.LinearFewBits = LinearFewBits

--- y = x W^T + b, in x's dtype. Private to the library.
---@param x torch.Tensor [..., in]
---@return torch.Tensor
function LinearFewBits:forward(x)
  local f, dtype = self.format, x.dtype
  local y = torch.ops.lockstep.linear_few_bits(f.compute_dtype and x:to(f.compute_dtype) or x, self.weight,
    self.weight_absmax, self.weight_nested_absmax, self.weight_nested_map, f.offset, f.shape, f.blocks, f.type,
    self.bias)
  return f.compute_dtype and y:to(dtype) or y
end

--- Returns whether a layer's weight is in 4 or 8 bits, with or without an adapter.
---@param layer any
---@return boolean
function M.is_one(layer) return nn.is_module(layer) and type(layer.format) == "table" and layer.format.blocks ~= nil end

--- Returns the layers of a model that are in 4 or 8 bits, by name.
---@param model any
---@return table<string, nn.LinearFewBits>
---@return integer count
function M.layers(model)
  local found, count = {}, 0
  for name, module in model:named_modules() do
    if M.is_one(module) and not found[name] then found[name], count = module, count + 1 end
  end
  return found, count
end

--- Returns the features and the dtype of a linear layer, in few bits or not.
---@param layer nn.Linear
---@return integer out
---@return integer input
---@return torch.dtype dtype
function M.describe(layer)
  if M.is_one(layer) then return layer.format.shape[1], layer.format.shape[2], layer.format.dtype end
  return layer.weight:size(0), layer.weight:size(1), layer.weight.dtype
end

--- Returns a linear layer's weight; of one in few bits a tensor without memory, in the shape of its whole weight.
---@param layer nn.Linear
---@return torch.Tensor
function M.outline(layer)
  return M.is_one(layer) and torch.empty(layer.format.shape, { device = "meta" }) or layer.weight
end

--- Returns the whole weight of a linear layer. For a layer in few bits this is a new tensor.
---@param layer nn.Linear
---@param packed torch.Tensor? the layer's parameter, where the layer has a part of it
---@return torch.Tensor # [out, in]
function M.whole(layer, packed)
  packed = packed or layer.weight
  if not M.is_one(layer) then return packed end
  local f = layer.format
  return torch.ops.lockstep.dequantize_few_bits(packed, layer.weight_absmax, layer.weight_nested_absmax,
    layer.weight_nested_map, f.offset, f.shape, f.blocks, f.type, f.dtype)
end

--- Returns the state of a model with whole weights in place of those in few bits.
---@param model any
---@param state table<string, torch.Tensor> whole tensors by name
---@return table<string, torch.Tensor>
function M.whole_state(model, state)
  local result = plain.copy(state)
  for name, layer in pairs((M.layers(model))) do
    local key = name == "" and "weight" or name .. ".weight"
    result[key] = torch.no_grad(M.whole, layer, state[key])
    for _, part in ipairs(PARTS) do result[key .. "_" .. part] = nil end
  end
  return result
end

--- Returns the whole numbers of a matrix.
---@param matrix nn.FewBitsMatrix
---@param dtype torch.dtype
---@return torch.Tensor
function M.dequantize(matrix, dtype)
  return torch.ops.lockstep.dequantize_few_bits(matrix.packed, matrix.absmax, matrix.nested_absmax, matrix.nested_map,
    matrix.offset, matrix.shape, matrix.blocks, matrix.type, dtype)
end

local function as_bits(tensor)
  return tensor and tensor.dtype == torch.float32 and tensor:view(torch.int32) or tensor
end

--- Lets a linear layer compute with a matrix in few bits in place of its weight.
---@param layer nn.Linear
---@param matrix nn.FewBitsMatrix
---@param o {dtype: torch.dtype, compute_dtype: torch.dtype?, device: string?} dtype: of the whole weight
function M.put(layer, matrix, o)
  local function own(tensor) return tensor and tensor:to { device = o.device } end
  nn.fields(layer).weight = own(matrix.packed) -- stays a parameter: an assignment would make it a buffer
  for _, name in ipairs(PARTS) do
    layer["weight_" .. name] = as_bits(own(matrix[name]))
  end
  layer.format = { shape = matrix.shape, blocks = matrix.blocks, offset = matrix.offset, type = matrix.type,
    dtype = o.dtype, compute_dtype = o.compute_dtype }
  setmetatable(layer, LinearFewBits)
end

--- Gives a layer without an adapter a whole weight again.
---@param layer nn.LinearFewBits
---@param weight torch.Tensor
function M.restore(layer, weight)
  setmetatable(layer, nn.Linear)
  for _, name in ipairs(PARTS) do layer["weight_" .. name] = nil end
  layer.format = nil
  nn.fields(layer).weight = weight
end

--- Returns numbers from -1 to 1 for each block, and the largest magnitudes.
local function scale(flat)
  local count = flat:numel()
  local whole = count - count % BLOCK
  local rows = flat:narrow(0, 0, whole):view(-1, BLOCK)
  local absmax = rows:abs():amax { 1 }
  local scaled = (rows * absmax:clamp { min = 1e-38 }:reciprocal():unsqueeze(1)):view(-1)
  if whole < count then -- bitsandbytes divides here, which rounds otherwise
    local rest = flat:narrow(0, whole, count - whole)
    local most = rest:abs():amax { 0 }:clamp { min = 1e-38 }:unsqueeze(0)
    absmax, scaled = torch.cat { absmax, most }, torch.cat { scaled, rest / most }
  end
  return scaled:clamp_(-1, 1), absmax
end

--- Rounds a weight to 8 bits, as bitsandbytes does, which makes it float16 first.
---@param weight torch.Tensor [out, in]
---@return nn.FewBitsMatrix
local function quantize_int8(weight)
  local half = weight:to(torch.float16):to(torch.float32)
  local absmax = half:abs():amax { 1 }
  local factors = absmax:clamp { min = 1e-30 }:reciprocal():mul_(127):unsqueeze(1)
  return { packed = (half * factors):round():to(torch.int8), absmax = absmax, offset = 0, type = "int8",
    blocks = { weight:size(1), NESTED_BLOCK }, shape = { weight:size(0), weight:size(1) } }
end

--- Rounds a weight to 4 or 8 bits, as bitsandbytes does.
---@param weight torch.Tensor [out, in], of 4 bits an even number of elements
---@param o {type: "nf4"|"fp4"|"int8", double: boolean?} double: magnitudes of 4 bits are rounded to 8 bits, too
---@return nn.FewBitsMatrix
function M.quantize(weight, o)
  if o.type == "int8" then return torch.no_grad(quantize_int8, weight) end
  plain.check(weight:numel() % 2 == 0,
    "4-bit weights: a weight of shape %s has an odd number of elements, and two make a byte", tostring(weight.shape))
  return torch.no_grad(function()
    local values = torch.tensor(VALUES[o.type], { dtype = torch.float32, device = weight.device })
    local scaled, absmax = scale(weight:flatten():to(torch.float32))
    local middles = values:narrow(0, 0, 15):add(values:narrow(0, 1, 15)):div_(2)
    local codes = torch.bucketize(scaled, middles, { out_int32 = true })
    if BITS[o.type] then
      codes = torch.tensor(BITS[o.type], { dtype = torch.int32, device = weight.device }):index_select(0, codes)
    end
    local pairs_of = codes:to(torch.uint8):view(-1, 2)
    local packed = pairs_of:select(1, 0):bitwise_left_shift(4):bitwise_or(pairs_of:select(1, 1)):unsqueeze(1)
    local matrix = { packed = packed, absmax = absmax, offset = 0, type = o.type, blocks = { BLOCK, NESTED_BLOCK },
      shape = { weight:size(0), weight:size(1) } }
    if not o.double then return matrix end
    local offset = absmax:mean()
    matrix.offset, matrix.nested_map = offset:item(), blockwise.map(true, weight.device):clone()
    matrix.absmax, matrix.nested_absmax = blockwise.quantize(absmax - offset, true, NESTED_BLOCK)
    return matrix
  end)
end

return M
