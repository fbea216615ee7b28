--- Changes logits before a token is drawn from them, as transformers' logits processors do, in their order: the
--- repetition penalty (arXiv 1909.05858), forced ids, suppressed ids.

local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

local M = {}

--- Makes ids impossible to draw.
local function suppress(logits, ids)
  for _, id in ipairs(ids) do logits:select(-1, id):fill_(-math.huge) end
end

--- Makes these ids the only ones that can be drawn.
local function force(logits, ids)
  logits:fill_(-math.huge)
  for _, id in ipairs(ids) do logits:select(-1, id):fill_(0) end
end

--- Returns the ids that each sequence has so far, once each, and a function that adds one.
local function histories(samples)
  local lists, sets = {}, {}
  local function add(sequence, id)
    if sets[sequence][id] then return end
    sets[sequence][id] = true
    table.insert(lists[sequence], id)
  end
  for i, sample in ipairs(samples) do
    lists[i], sets[i] = {}, {}
    for _, id in ipairs(sample.input_ids:totable()) do add(i, id) end
  end
  return lists, add
end

--- Divides positive logits of a row's ids by the penalty, and multiplies negative ones.
local function penalize(row, ids, penalty)
  local at = torch.tensor(ids, { dtype = torch.int64 }):to(row.device)
  local old = row:index_select(0, at)
  row:index_copy_(0, at, torch.where(old:lt(0), old * penalty, old / penalty))
end

---@class models.ProcessorOptions
---@field repetition_penalty number
---@field suppress integer[]
---@field begin_suppress integer[]
---@field forced_begin integer[]?
---@field forced_end integer[]?
---@field max_new_tokens integer[] of each sequence

--- Raises unless the penalty is a number above 0.
---@param o models.ProcessorOptions
function M.check(o)
  plain.check(o.repetition_penalty > 0 and o.repetition_penalty < math.huge,
    "models.generate: repetition_penalty must be a number above 0, got %s", o.repetition_penalty)
end

--- Returns a function that changes logits [rows, vocabulary], and returns them. Row i is of sequence number
--- sequences[i], which has drawn results[sequences[i]]. Either all rows are of first new ids, or none.
---@param o models.ProcessorOptions
---@param samples models.Batch[]
---@param results integer[][]
---@return fun(logits: torch.Tensor, sequences: integer[]): torch.Tensor
function M.new(o, samples, results)
  local seen, add
  if o.repetition_penalty ~= 1 then seen, add = histories(samples) end
  return function(logits, sequences)
    local is_first = #results[sequences[1]] == 0
    if seen then
      logits = logits:to(torch.float32) -- as in transformers
      for row, sequence in ipairs(sequences) do
        if not is_first then add(sequence, results[sequence][#results[sequence]]) end
        penalize(logits[row - 1], seen[sequence], o.repetition_penalty)
      end
    end
    for row, sequence in ipairs(o.forced_begin and is_first and sequences or {}) do
      if samples[sequence].input_ids:numel() == 1 then force(logits[row - 1], o.forced_begin) end
    end
    for row, sequence in ipairs(o.forced_end and sequences or {}) do
      if #results[sequence] + 1 == o.max_new_tokens[sequence] then force(logits[row - 1], o.forced_end) end
    end
    suppress(logits, o.suppress)
    if is_first then suppress(logits, o.begin_suppress) end
    return logits
  end
end

return M
