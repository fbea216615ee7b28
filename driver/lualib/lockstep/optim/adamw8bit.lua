--- optim.AdamW8bit: AdamW whose moments are numbers of 8 bits in blocks of 256.
---
--- Source: arXiv 2110.02861, as bitsandbytes' AdamW8bit computes it. Parameters of fewer than 4,096 elements have
--- moments in float32, as there.

local adamw = require "lockstep.optim.adamw"
local blockwise = require "lockstep.nn.blockwise"
local torch = require "lockstep.torch"

---@type OptimizerKind
local M = {}

--- The name that errors begin with.
M.name = "optim.AdamW8bit"
--- The options and their defaults.
M.defaults = adamw.defaults

M.check = function(o, check)
  adamw.check(o, check)
  check(o.states == nil or o.states == torch.float32, "states must be left out: they have 8 bits", o.states)
end

M.moments = function() return {} end

local BLOCK, LEAST = 256, 4096

--- The moments, and whether their numbers have a sign.
local MOMENTS = { exp_avg = true, exp_avg_sq = false }

M.own_state = function(p)
  local state, where = {}, { device = p.device, dtype = torch.float32 }
  for name in pairs(MOMENTS) do
    if p:numel() < LEAST then
      state[name] = torch.zeros_like(p, where)
    else
      state[name .. "_codes"] = torch.zeros({ p:numel() }, { device = p.device, dtype = torch.uint8 })
      state[name .. "_absmax"] = torch.zeros({ math.ceil(p:numel() / BLOCK) }, where)
    end
  end
  return state
end

local function read(state, name, like)
  if state[name] then return state[name] end
  return blockwise.dequantize(state[name .. "_codes"], state[name .. "_absmax"], MOMENTS[name], BLOCK):view(like.shape)
end

local function write(state, name, value, quantize)
  if state[name] then return rawequal(state[name], value) or state[name]:copy_(value) end
  local codes, absmax = quantize(value:flatten(), MOMENTS[name], BLOCK)
  state[name .. "_codes"]:copy_(codes)
  state[name .. "_absmax"]:copy_(absmax)
end

--- Returns 1 - beta ^ step, float64 on the step's device: a graph draws the step from there.
local function correction(beta, step) return 1 - (step:to(torch.float64) * math.log(beta)):exp() end

M.update = function(bucket, group, lr)
  local beta1, beta2 = group.betas[1], group.betas[2]
  for i, p in ipairs(bucket.params) do
    local state, grad, step = bucket.states[i], bucket.grads[i]:to(torch.float32), bucket.steps[i]
    local m, v = read(state, "exp_avg", p), read(state, "exp_avg_sq", p)
    m:mul_(beta1):add_(grad, { alpha = 1 - beta1 })
    v:mul_(beta2):addcmul_(grad, grad, { value = 1 - beta2 })
    local root = v:sqrt():div_(correction(beta2, step):sqrt()):add_(group.eps)
    if group.weight_decay ~= 0 then p:mul_(1 - lr * group.weight_decay) end
    p:sub_((m / root):mul_(correction(beta1, step):reciprocal() * lr))
    write(state, "exp_avg", m, blockwise.quantize)
    write(state, "exp_avg_sq", v, blockwise.quantize)
  end
end

--- Returns what a state of a run holds: the moments of optim.AdamW, in float32. Shards of any number of ranks can go on
--- from it, although their blocks lie elsewhere, and so can optim.AdamW.
M.to_saved = function(state, p)
  local saved = { step = state.step, master = state.master }
  for name in pairs(MOMENTS) do saved[name] = read(state, name, p) end
  return saved
end

--- Takes what to_saved returned, or values that were copied into it. Numbers that blocks of this layout had are exact.
M.from_saved = function(state, saved)
  for name in pairs(MOMENTS) do write(state, name, saved[name], blockwise.recover) end
end

return M
