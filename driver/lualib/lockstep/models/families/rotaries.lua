--- Rotary embeddings of models whose layers with a window have frequencies of their own.
---
---     c.rope, c.windowed_rope = rotaries.read(c, 1e6, 1e4)
---     self.rotary = rotaries.of(c.rope, c.windowed_rope, c.head_dim)
---
--- In a pass `cos` and `sin` are then pairs; rotaries.Attention takes its layer's.

local config = require "lockstep.models.config"
local decoder = require "lockstep.models.decoder"
local nn = require "lockstep.nn"
local plain = require "lockstep.plain"

local M = {}

--- Returns the options of nn.rotary of layers that see everything, and of those with a window. Version 5 of
--- transformers writes rope_parameters for each kind of layer. Version 4 writes rope_theta and rope_scaling of the
--- first kind.
---@param c table<string, any> settings with `rope` and max_position_embeddings
---@param full_theta number the first base, where rope_parameters have none
---@param windowed_theta number the second base, where rope_parameters have none
---@return table<string, any> full
---@return table<string, any> windowed
function M.read(c, full_theta, windowed_theta)
  local given = c.rope
  local function of(parameters, theta)
    return config.rope({ rope_parameters = parameters, max_position_embeddings = c.max_position_embeddings }, theta)
  end
  if given.full_attention or given.sliding_attention then
    return of(given.full_attention, full_theta), of(given.sliding_attention, windowed_theta)
  end
  return given, of(nil, windowed_theta)
end

---@class models.Rotaries
---@field pair nn.Rotary[] of layers that see everything, and of those with a window
local Rotaries = {}
Rotaries.__index = Rotaries

--- Makes both from what `read` returned.
---@param full table
---@param windowed table
---@param dim integer
---@return models.Rotaries
function M.of(full, windowed, dim)
  local function make(rope) return nn.rotary(plain.copy(rope, { dim = dim })) end
  return setmetatable({ pair = { make(full), make(windowed) } }, Rotaries)
end

--- See nn.Rotary: returns a pair of its results.
---@param position_ids torch.Tensor [T]
---@param seq_lens integer[]?
---@return torch.Tensor[]
function Rotaries:angles(position_ids, seq_lens)
  return { self.pair[1]:angles(position_ids, seq_lens), self.pair[2]:angles(position_ids, seq_lens) }
end

--- See nn.Rotary: returns pairs of its results. `blocks` of the angles goes with the cosines: see gemma3_vision.lua.
---@param angles torch.Tensor[]
---@param opts {dtype: torch.dtype?}?
---@return torch.Tensor[] cos
---@return torch.Tensor[] sin
function Rotaries:cos_sin(angles, opts)
  local full_cos, full_sin = self.pair[1]:cos_sin(angles[1], opts)
  local cos, sin = self.pair[2]:cos_sin(angles[2], opts)
  return { full_cos, cos, blocks = angles.blocks }, { full_sin, sin }
end

--- Attention that rotates by the frequencies of its kind of layer.
---@class models.AttentionOfTwoRotaries: models.Attention
local Attention = decoder.Attention:subclass("AttentionOfTwoRotaries")
M.Attention = Attention

--- See Attention:turn.
---@param x torch.Tensor
---@param pass models.Pass
---@return torch.Tensor
function Attention:turn(x, pass)
  local kind = self.window and 2 or 1
  return nn.rotate(x, pass.cos[kind], pass.sin[kind])
end

return M
