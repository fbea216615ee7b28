--- Quantized weights of a folder, which are read into the model's dtype: MXFP4 (OCP Microscaling Formats 1.0), as
--- gpt-oss has its experts; FP8 in blocks, as DeepSeek-V3 has its weights; and those of bitsandbytes, in 4 bits and in
--- 8 (LLM.int8), which layers may keep (models.few_bits).
---
--- MXFP4: NAME_blocks [experts, out, in / 32, 16] uint8 has two numbers of 4 bits in each byte, the lower ones first.
--- NAME_scales [experts, out, in / 32] uint8 has an exponent for each block of 32. The weight is transposed, [experts,
--- in, out]. FP8: NAME float8_e4m3fn [out, in], and NAME_scale_inv with a factor for each block. 4 bits: NAME uint8
--- [out * in / 2, 1], NAME.absmax and its like, and NAME.quant_state.bitsandbytes__nf4 with a text. LLM.int8: NAME int8
--- [out, in], and SCB, the largest magnitude of each row, next to it.

local core = require "lockstep.core"
local core_state = require "lockstep.core.state"
local few_bits = require "lockstep.nn.few_bits"
local torch = require "lockstep.torch"

local M = {}

--- The numbers of E2M1 by their 4 bits.
local FP4 = { 0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6 }

local F32 = { dtype = torch.float32 }

--- The dtypes that a weight in 4 bits may have had.
local DTYPES = { float32 = torch.float32, bfloat16 = torch.bfloat16, float16 = torch.float16 }

--- The numbers of E8M0 by their 8 bits: powers of two, and not a number.
local function powers()
  local list = {}
  for i = 0, 254 do list[i + 1] = 2 ^ (i - 127) end
  list[256] = 0 / 0
  return torch.tensor(list, F32)
end

local function look_up(list, index) return list:index_select(0, index:flatten():to(torch.int32)):view(index.shape) end

--- Returns a weight of MXFP4.
---@param blocks torch.Tensor [experts, out, in / 32, 16] uint8
---@param scales torch.Tensor [experts, out, in / 32] uint8
---@param dtype torch.dtype
---@return torch.Tensor # [experts, in, out]
function M.from_mxfp4(blocks, scales, dtype)
  local experts, out, groups = scales:size(0), scales:size(1), scales:size(2)
  local numbers, factors = torch.tensor(FP4, F32), powers()
  local weight = torch.empty({ experts, groups * 32, out }, { dtype = dtype })
  for i = 0, experts - 1 do
    local codes = torch.stack({ blocks[i]:bitwise_and(15), blocks[i]:bitwise_right_shift(4) }, -1)
    local values = look_up(numbers, codes:view(out, groups, 32)) * look_up(factors, scales[i]):unsqueeze(-1)
    weight[i]:copy_(values:view(out, -1):transpose(0, 1))
  end
  return weight
end

--- Returns a weight of FP8 whose blocks have factors.
---@param weight torch.Tensor [out, in] float8_e4m3fn
---@param factors torch.Tensor [ceil(out / block[1]), ceil(in / block[2])]
---@param block integer[]
---@param dtype torch.dtype
---@return torch.Tensor # [out, in]
function M.from_fp8(weight, factors, block, dtype)
  local whole = factors:to(torch.float32):repeat_interleave(block[1], 0):repeat_interleave(block[2], 1)
  return (weight:to(torch.float32) * whole[{ { 0, weight:size(0) }, { 0, weight:size(1) } }]):to(dtype)
end

--- Returns why quantized weights are not read, or nil if they are.
---@param given any quantization_config of config.json
---@return string?
function M.problem(given)
  local method = type(given) == "table" and given.quant_method or nil
  if method == "mxfp4" or method == "bitsandbytes" then return nil end
  local block = method == "fp8" and given.weight_block_size
  if type(block) == "table" and type(block[1]) == "number" and type(block[2]) == "number" then return nil end
  return ('of quantized weights those with quant_method "mxfp4" and "bitsandbytes", and "fp8" with weight_block_size '
    .. "are read, not %s")
    :format(method and '"' .. tostring(method) .. '"' or "any without quant_method")
end

local function mxfp4_of(tensors, name, blocks)
  local scales = tensors[name .. "_scales"]
  local shape = torch.is_tensor(scales) and scales.shape or "none"
  if not torch.is_tensor(scales) or blocks.dtype ~= torch.uint8 or scales.dtype ~= torch.uint8
    or blocks:dim() ~= 4 or blocks:size(3) ~= 16 or tostring(blocks[{ {}, {}, {}, 0 }].shape) ~= tostring(shape) then
    core.raise(("models.load: %s_blocks must be uint8 [experts, out, blocks, 16], and %s_scales uint8 [experts, out, "
      .. "blocks]; got %s %s and %s"):format(name, name, tostring(blocks.dtype), tostring(blocks.shape),
      tostring(shape)))
  end
  return { blocks:size(0), blocks:size(2) * 32, blocks:size(1) }
end

local function check_fp8(tensors, name, weight, block)
  local factors = tensors[name .. "_scale_inv"]
  local rows, columns = math.ceil(weight:size(0) / block[1]), math.ceil(weight:size(1) / block[2])
  if not torch.is_tensor(factors) or factors:dim() ~= 2 or factors:size(0) ~= rows or factors:size(1) ~= columns then
    core.raise(("models.load: %s is %s %s, so %s_scale_inv must be [%d, %d], got %s"):format(name,
      tostring(weight.dtype), tostring(weight.shape), name, rows, columns,
      torch.is_tensor(factors) and tostring(factors.shape) or "none"))
  end
end

--- Raises where the text that describes a matrix in 4 bits does not hold what the kernels read.
local function check_state(about, fail)
  local function check(holds, key, expected)
    if not holds then fail("expected %s as %s of its quant_state, got %s", expected, key, tostring(about[key])) end
  end
  local function is_count(value) return type(value) == "number" and value >= 1 and value % 1 == 0 and value < 2 ^ 31 end
  local shape, nested = about.shape, about.nested_blocksize
  if type(shape) ~= "table" or #shape ~= 2 or not is_count(shape[1]) or not is_count(shape[2]) then
    fail("expected a weight of shape [out, in] in 4 bits")
  end
  check(is_count(about.blocksize), "blocksize", "a whole number of at least 1")
  check(nested == nil or is_count(nested), "nested_blocksize", "a whole number of at least 1")
  check(about.quant_type == "nf4" or about.quant_type == "fp4", "quant_type", "nf4 or fp4")
  check(DTYPES[about.dtype], "dtype", "float32, bfloat16 or float16")
  check(about.nested_offset == nil or type(about.nested_offset) == "number", "nested_offset", "a number")
end

--- Takes a matrix in 4 bits out of the tensors. `state` is the name of the text that describes it.
---@return nn.FewBitsMatrix
local function four_bit_of(tensors, name, state)
  local function fail(message, ...)
    core.raise(("models.load: %s: "):format(name) .. message:format(...))
  end
  local function take(key)
    local tensor = tensors[key]
    tensors[key] = nil
    return tensor
  end
  local ok, about = pcall(core.json_decode, core_state.tensor_to_bytes(take(state)))
  if not ok or type(about) ~= "table" then fail("%s holds no JSON object", state) end
  local packed, absmax = take(name), take(name .. ".absmax")
  local nested_absmax, nested_map = take(name .. ".nested_absmax"), take(name .. ".nested_quant_map")
  take(name .. ".quant_map") -- the type says it
  check_state(about, fail)
  local shape = about.shape
  if not packed or not absmax or (nested_absmax == nil) ~= (nested_map == nil) then
    fail("a weight in 4 bits needs the tensors .absmax and, with double quantization, .nested_absmax and "
      .. ".nested_quant_map next to it")
  end
  return { packed = packed:view(torch.uint8):view(-1, 1), absmax = absmax, nested_absmax = nested_absmax,
    nested_map = nested_map, offset = about.nested_offset or 0, type = about.quant_type, dtype = DTYPES[about.dtype],
    shape = { shape[1], shape[2] }, blocks = { about.blocksize, about.nested_blocksize or 256 } }
end

--- Raises for a weight of LLM.int8 whose numbers are not row after row: old versions of bitsandbytes could write it in
--- the order of a GPU's kernels (col32, col_turing, col_ampere).
local function check_rows(tensors, name)
  local format = tensors[name .. "_format"]
  if not format or format:numel() == 1 and format:item() == 0 then return end
  core.raise(("models.load: %s_format must be 0, which stands for rows, got %s; write the folder again with a newer "
    .. "version of bitsandbytes"):format(name, tostring(format:numel() == 1 and format:item() or format.shape)))
end

--- Puts a tensor without memory in the place of each quantized weight, which has its shape. Returns functions that read
--- the weights, by name.
---@param tensors table<string, torch.Tensor> by name on disk; is changed
---@param given table? quantization_config of config.json
---@param dtype torch.dtype? of the weights; default bfloat16
---@return table<string, fun(): torch.Tensor>
---@return table<string, nn.FewBitsMatrix> # those of bitsandbytes, by name
function M.take(tensors, given, dtype)
  local readers, names, matrices = {}, {}, {}
  dtype = dtype or torch.bfloat16
  for name in pairs(given and tensors or {}) do names[#names + 1] = name end
  local function put(name, shape, reader)
    tensors[name], readers[name] = torch.empty(shape, { dtype = dtype, device = "meta" }), reader
  end
  for _, key in ipairs(names) do
    local tensor, name = tensors[key], key:match "^(.*)_blocks$"
    local of_4_bits = key:match "^(.*)%.quant_state%.bitsandbytes__[nf]+p?4$"
    if of_4_bits and given.quant_method == "bitsandbytes" then
      local matrix = four_bit_of(tensors, of_4_bits, key)
      matrices[of_4_bits] = matrix
      put(of_4_bits, matrix.shape, function() return few_bits.dequantize(matrix, dtype) end)
    elseif key:match "%.SCB$" and given.quant_method == "bitsandbytes" then
      name = key:gsub("SCB$", "weight")
      local codes = tensors[name]
      if not codes or codes.dtype ~= torch.int8 or codes:dim() ~= 2 or codes:size(0) ~= tensor:numel() then
        core.raise(("models.load: %s is for %s, which must be int8 [%d, in], got %s"):format(key, name, tensor:numel(),
          codes and tostring(codes.dtype) .. " " .. tostring(codes.shape) or "none"))
      end
      check_rows(tensors, name)
      tensors[key], tensors[key .. "_format"] = nil, nil
      tensors[name .. "_format"] = nil
      local absmax = tensor:to(torch.float32):view(-1)
      local is_length = absmax:ge(0):logical_and(absmax:isfinite())
      if not is_length:all():item() then
        local row = is_length:int():argmin(0):item()
        core.raise(("models.load: %s[%d] is %s, but it holds the largest magnitude of each row, from 0 on; write the "
          .. "folder again"):format(key, row, absmax[row]:item()))
      end
      matrices[name] = { packed = codes, absmax = absmax, offset = 0, type = "int8",
        dtype = dtype, blocks = { codes:size(1), 256 }, shape = { codes:size(0), codes:size(1) } }
      put(name, codes.shape, function()
        return (codes:to(torch.float32) * (absmax:unsqueeze(1) * (1 / 127))):to(dtype)
      end)
    elseif name and given.quant_method == "mxfp4" then
      local shape, scales = mxfp4_of(tensors, name, tensor), tensors[name .. "_scales"]
      tensors[key], tensors[name .. "_scales"] = nil, nil
      put(name, shape, function() return M.from_mxfp4(tensor, scales, dtype) end)
    elseif tensor and tensor.dtype == torch.float8_e4m3fn and given.quant_method == "fp8" and tensor:dim() == 2 then
      local block, factors = given.weight_block_size, tensors[key .. "_scale_inv"]
      check_fp8(tensors, key, tensor, block)
      tensors[key .. "_scale_inv"] = nil
      put(key, tensor.shape, function() return M.from_fp8(tensor, factors, block, dtype) end)
    end
  end
  return readers, matrices
end

return M
