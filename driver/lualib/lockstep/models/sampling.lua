--- Draws the next token of each sequence from logits.

local bit = require "bit"
local core = require "lockstep.core"
local ffi = require "ffi"
local torch = require "lockstep.torch"

local M = {}

--- A number from 0 up to 1 from a state of 64 bits (splitmix64). Each sequence has a state of its own, so what it draws
--- does not depend on the others.
local function uniform(states, sequence)
  local state = states[sequence] + 0x9e3779b97f4a7c15ULL
  states[sequence] = state
  local z = bit.bxor(state, bit.rshift(state, 30)) * 0xbf58476d1ce4e5b9ULL
  z = bit.bxor(z, bit.rshift(z, 27)) * 0x94d049bb133111ebULL
  return tonumber(bit.rshift(bit.bxor(z, bit.rshift(z, 31)), 11)) / 2 ^ 53
end

local function check(o)
  local function fail(what, value) core.raise(string.format("models.generate: %s, got %s", what, tostring(value))) end
  if not (o.temperature >= 0 and o.temperature < math.huge) then
    fail("temperature must be at least 0 and finite", o.temperature)
  end
  if type(o.seed) ~= "number" or math.abs(o.seed) > 2 ^ 53 or o.seed % 1 ~= 0 then
    fail("seed must be a whole number from -2^53 to 2^53", o.seed)
  end
  if o.top_k and (type(o.top_k) ~= "number" or not (o.top_k >= 1) or o.top_k % 1 ~= 0) then
    fail("top_k must be a whole number of at least 1", o.top_k)
  end
  if o.top_p and not (type(o.top_p) == "number" and o.top_p > 0 and o.top_p <= 1) then
    fail("top_p must be above 0 and at most 1", o.top_p)
  end
  if o.min_p and not (type(o.min_p) == "number" and o.min_p >= 0 and o.min_p <= 1) then
    fail("min_p must be from 0 to 1", o.min_p)
  end
end

--- Ids and largest logits of the rows, as arrays: read from a GPU at once.
local function read(ids, largest)
  if ids.device == "cpu" then return ids:totable(), largest:totable() end
  return unpack(torch.stack({ ids:double(), largest:double() }):totable())
end

--- Returns a function that draws from logits [rows, vocabulary]; its second argument names the sequence of each row.
--- Temperature, top_k, top_p and min_p apply in this order, as in transformers. Temperature 0 takes the most probable
--- token.
---
--- The second result is the largest logit of each row, divided by the temperature. It is finite exactly if the row can
--- be drawn from: NaN counts as the largest number.
---@param o {temperature: number, top_k: integer?, top_p: number?, min_p: number?, seed: integer, numbers: integer[]?}
---@param num_sequences integer
---@return fun(logits: torch.Tensor, sequences: integer[]): integer[], number[] # ids, largest logits
function M.sampler(o, num_sequences)
  check(o)
  if o.temperature == 0 then
    return function(logits)
      local largest, ids = logits:max(-1)
      return read(ids, largest)
    end
  end
  local states, seed = {}, ffi.cast("int64_t", o.seed) -- as a double, all negative seeds would be one
  for i = 1, num_sequences do
    states[i] = seed * 0x2545f4914f6cdd1dULL + (o.numbers and o.numbers[i] or i) * 0x9e6c63d0676a9a99ULL
  end
  return function(logits, sequences)
    logits = logits:to(torch.float32) / o.temperature
    local values, ids = logits:topk(math.min(o.top_k or logits:size(-1), logits:size(-1)), -1)
    local probabilities = values:softmax(-1, { dtype = torch.float64 })
    if o.top_p then
      local before = probabilities:cumsum(-1) - probabilities
      probabilities = probabilities:masked_fill(before:ge(o.top_p), 0)
    end
    if o.min_p then -- a share of the largest probability (arXiv 2407.01082)
      probabilities = probabilities:masked_fill(probabilities:lt(probabilities:narrow(-1, 0, 1) * o.min_p), 0)
    end
    local sums = probabilities:cumsum(-1)
    local thresholds = {}
    for i, sequence in ipairs(sequences) do thresholds[i] = { uniform(states, sequence) } end
    local at = torch.tensor(thresholds, { dtype = torch.float64 }):to(sums.device) * sums:narrow(-1, -1, 1)
    local drawn = torch.searchsorted(sums, at, { right = true }):clamp_max(sums:size(-1) - 1) -- of NaN it is beyond
    return read(ids:gather(-1, drawn):squeeze(-1), values:select(-1, 0))
  end
end

return M
