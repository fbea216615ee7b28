--- Attention in which the tokens of a block see each other, as those of a picture in Gemma 3; all others see what comes
--- before them. Private to nn.attention.
---
--- Each sequence is a call of scaled_dot_product_attention with a mask.

local torch = require "lockstep.torch"

local M = {}

--- True where a query sees a key. [tokens, tokens]
local function mask_of(blocks, o)
  local tokens = blocks:size(0)
  local same = blocks:unsqueeze(1):eq(blocks:unsqueeze(0)):logical_and(blocks:ge(0):unsqueeze(1))
  local mask = torch.ones({ tokens, tokens }, { dtype = torch.bool, device = blocks.device })
  mask = mask:tril(0):logical_or(same)
  return o.window and mask:triu(1 - o.window) or mask
end

--- See nn.attention, which has checked the arguments.
---@param q torch.Tensor [T, heads, D]
---@param k torch.Tensor [T, kv_heads, D]
---@param v torch.Tensor [T, kv_heads, D]
---@param o {seq_lens: integer[], scale: number?, window: integer?, blocks: torch.Tensor}
---@return torch.Tensor # [T, heads, D]
function M.attention(q, k, v, o)
  local heads, dim = q:size(1), q:size(2)
  local results, start = {}, 0
  for _, length in ipairs(o.seq_lens) do
    local function of_heads(x) -- [heads, length, D]
      local part = x:narrow(0, start, length):transpose(0, 1):unsqueeze(1)
      return part:expand(-1, heads / x:size(1), -1, -1):reshape(heads, length, dim)
    end
    local mask = mask_of(o.blocks:narrow(0, start, length), o)
    local y = torch.scaled_dot_product_attention(of_heads(q):unsqueeze(0), of_heads(k):unsqueeze(0),
      of_heads(v):unsqueeze(0), mask, 0, false, { scale = o.scale })
    results[#results + 1] = y:squeeze(0):transpose(0, 1)
    start = start + length
  end
  return torch.cat(results)
end

return M
