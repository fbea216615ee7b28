--- Rotary position embeddings (arXiv 2104.09864): attention sees the distance between two tokens.
---
---     local rotary = nn.rotary { dim = 128, rope_theta = 1e6 }
---     local cos, sin = rotary(position_ids, { dtype = torch.bfloat16 })        -- once for all layers
---     q, k = nn.rotate(q, cos, sin), nn.rotate(k, cos, sin)
---
--- Frequencies and angles are float32, in the order of operations of transformers: with doubles the cosines differ
--- by 0.002 near position 32,000. The tests compare them with transformers' own.

local chunks = require "lockstep.nn.chunks"
local core = require "lockstep.core"
local fused = require "lockstep.nn.fused"
local options = require "lockstep.options"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

local M = {}

local F32 = { dtype = torch.float32 }

--- base^(-2i/dim) for each pair of dimensions.
local function plain_frequencies(o)
  return 1 / (o.rope_theta ^ (torch.arange(0, o.dim, 2, F32) / o.dim))
end

local function need(o, ...)
  for _, key in ipairs { ... } do
    plain.check(type(o[key]) == "number", 'nn.rotary: rope_type "%s" needs the number "%s", got %s', o.rope_type, key,
      tostring(o[key]))
  end
end

-- Each kind returns the frequencies [dim / 2] and a factor for cosines and sines.

local function default(o) return plain_frequencies(o), 1 end

local function linear(o)
  need(o, "factor")
  return plain_frequencies(o) / o.factor, 1
end

--- Llama 3.1: long wavelengths are stretched, short ones stay, those between are mixed.
local function llama3(o)
  need(o, "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
  local length = o.original_max_position_embeddings
  local frequencies = plain_frequencies(o)
  local wavelength = 2 * math.pi / frequencies
  local is_long, is_short = wavelength:gt(length / o.low_freq_factor), wavelength:lt(length / o.high_freq_factor)
  local stretched = torch.where(is_long, frequencies / o.factor, frequencies)
  local share = (length / wavelength - o.low_freq_factor) / (o.high_freq_factor - o.low_freq_factor)
  local mixed = (1 - share) * stretched / o.factor + share * stretched
  return torch.where(is_long:logical_or(is_short), stretched, mixed), 1
end

--- YaRN (arXiv 2309.00071): dimensions that turn often stay, those that turn rarely are stretched.
local function yarn(o)
  need(o, "factor", "original_max_position_embeddings")
  local function dim_of(turns)
    return o.dim * math.log(o.original_max_position_embeddings / (turns * 2 * math.pi)) / (2 * math.log(o.rope_theta))
  end
  local low, high = dim_of(o.beta_fast or 32), dim_of(o.beta_slow or 1)
  if o.truncate ~= false then low, high = math.floor(low), math.ceil(high) end
  low, high = math.max(low, 0), math.min(high, o.dim - 1)
  if low == high then high = high + 0.001 end
  local powers = o.rope_theta ^ (torch.arange(0, o.dim, 2, F32) / o.dim)
  local kept = 1 - ((torch.arange(o.dim / 2, F32) - low) / (high - low)):clamp(0, 1)
  local frequencies = 1 / (o.factor * powers) * (1 - kept) + 1 / powers * kept

  local function magnitude(scale) return o.factor <= 1 and 1 or 0.1 * scale * math.log(o.factor) + 1 end
  local has_both = (o.mscale or 0) ~= 0 and (o.mscale_all_dim or 0) ~= 0
  local ratio = has_both and magnitude(o.mscale) / magnitude(o.mscale_all_dim) or magnitude(1)
  return frequencies, o.attention_factor or ratio
end

--- LongRoPE (arXiv 2402.13753): each dimension has a factor, another one in sequences beyond the first training's
--- length. Returns both sets of frequencies.
local function longrope(o)
  need(o, "original_max_position_embeddings", "factor")
  local powers = o.rope_theta ^ (torch.arange(0, o.dim, 2, F32) / o.dim)
  local both = {}
  for i, key in ipairs { "short_factor", "long_factor" } do
    local factors = o[key]
    plain.check(type(factors) == "table" and #factors == o.dim / 2, 'nn.rotary: rope_type "longrope" needs %d numbers '
      .. '"%s", one for each pair of dimensions, got %s', o.dim / 2, key,
      type(factors) == "table" and #factors or factors)
    both[i] = 1 / (torch.tensor(factors, F32) * powers)
  end
  local original = o.original_max_position_embeddings
  local scale = o.factor <= 1 and 1 or math.sqrt(1 + math.log(o.factor) / math.log(original))
  return both[1], o.attention_factor or scale, both[2]
end

--- Dynamic NTK: beyond max_position_embeddings the base grows with the length of the sequence.
local function dynamic(o)
  need(o, "factor", "max_position_embeddings")
  return plain_frequencies(o), 1
end

local KINDS = { default = default, linear = linear, llama3 = llama3, yarn = yarn, longrope = longrope,
  dynamic = dynamic }

local KNOWN = "default, dynamic, linear, llama3, longrope, yarn"

local OPTIONS = { dim = options.required, rope_theta = 10000, rope_type = "default", factor = options.optional,
  low_freq_factor = options.optional, high_freq_factor = options.optional, beta_fast = options.optional,
  beta_slow = options.optional, truncate = true, attention_factor = options.optional, mscale = options.optional,
  mscale_all_dim = options.optional, original_max_position_embeddings = options.optional,
  short_factor = options.optional, long_factor = options.optional, max_position_embeddings = options.optional }

---@class nn.Rotary
---@field frequencies torch.Tensor [dim / 2] float32
---@field factor number of cosines and sines; 1 unless rope_type is "yarn" or "longrope"
---@field long_from integer? of "longrope": sequences with this position, or a later one, have other frequencies
---@operator call: any
local Rotary = {}
Rotary.__index = Rotary

--- Returns for each token the length of its sequence: the largest position and 1. Collective where ranks hold chunks.
local function lengths_of(positions, seq_lens)
  local current = chunks.current()
  if current and current.size > 1 and seq_lens and positions:dim() == 1 then
    local all = chunks.with(nil, lengths_of, chunks.gather(current, positions), seq_lens)
    return chunks.own(current, all)
  end
  if not seq_lens then return (positions:max() + 1):expand(positions.shape) end
  local sum, parts = 0, {}
  for _, length in ipairs(seq_lens) do sum = sum + length end
  if positions:dim() ~= 1 or sum ~= positions:size(0) then
    core.raise(string.format("nn.rotary: frequencies depend on the length of a sequence, so all its positions are "
      .. "needed: expected [%d], got %s", sum, positions.shape))
  end
  if #seq_lens == sum then return positions + 1 end -- new tokens of generation: one of each sequence
  for i, part in ipairs(positions:split(seq_lens)) do
    parts[i] = part:numel() > 0 and (part:max() + 1):expand(part.shape) or part
  end
  return torch.cat(parts)
end

--- Returns the angle of each position and frequency. Frequencies of "longrope" and "dynamic" depend on the length of
--- the sequence.
---@param position_ids torch.Tensor [...] integer
---@param seq_lens integer[]? tokens of each sequence, for position_ids [T]; default: all are one sequence
---@return torch.Tensor # [..., dim / 2] float32, on the device of position_ids
function Rotary:angles(position_ids, seq_lens)
  local device, long, ntk = position_ids.device, self.long_frequencies, self.ntk
  self.on_device[device] = self.on_device[device] or { self.frequencies:to(device), long and long:to(device) }
  local frequencies = self.on_device[device][1]
  if long then
    local is_long = lengths_of(position_ids, seq_lens):gt(self.long_from):unsqueeze(-1)
    frequencies = torch.where(is_long, self.on_device[device][2], frequencies)
  elseif ntk then
    local lengths = lengths_of(position_ids, seq_lens):to(torch.float32):unsqueeze(-1)
    local most, dim = ntk.max_position_embeddings, ntk.dim
    local grown = (lengths * ntk.factor / most - (ntk.factor - 1)) ^ (dim / (dim - 2)) * ntk.rope_theta
    local longer = 1 / grown:pow(torch.arange(0, dim, 2, F32):to(device) / dim)
    frequencies = torch.where(lengths:gt(most), longer, frequencies)
  end
  return position_ids:unsqueeze(-1) * frequencies -- in float32
end

--- Returns what nn.rotate takes. The sine of the first half is negated.
---@param angles torch.Tensor [T, dim / 2] float32, as angles() returns them
---@param opts {dtype: torch.dtype?}? default float32
---@return torch.Tensor cos [T, 1, dim]
---@return torch.Tensor sin [T, 1, dim]
function Rotary:cos_sin(angles, opts)
  local o = options.read("nn.rotary", opts, { dtype = torch.float32 })
  return fused.turns_of(angles, self.factor, o.dtype)
end

function Rotary:__call(position_ids, opts) return self:cos_sin(self:angles(position_ids), opts) end

--- Makes the rotary embedding of a model. The options have the names of `rope_parameters` in config.json; rope_type is
--- "default", "linear", "llama3", "yarn", "longrope" or "dynamic". The result is called with position ids [T] of one
--- sequence, and returns cos and sin.
---
---     local cos, sin = nn.rotary { dim = 64, rope_type = "linear", factor = 2 }(torch.arange(10))
---@param opts {dim: integer, rope_theta: number?, rope_type: string?, factor: number?, [string]: any}
---@return nn.Rotary
function M.rotary(opts)
  local o = options.read("nn.rotary", opts, OPTIONS)
  plain.check(type(o.dim) == "number" and o.dim >= 2 and o.dim % 2 == 0, "nn.rotary: dim must be an even number of at "
    .. "least 2, got %s", o.dim)
  local kind = KINDS[o.rope_type]
  plain.check(kind, 'nn.rotary: unknown rope_type "%s" (known: %s)', o.rope_type, KNOWN)
  local frequencies, factor, long = torch.no_grad(kind, o)
  return setmetatable({ frequencies = frequencies, factor = factor, on_device = {}, long_frequencies = long,
    long_from = long and o.original_max_position_embeddings, ntk = kind == dynamic and o or nil }, Rotary)
end

return M
