--- Computes a new token of each sequence as one graph, so that a GPU launches the kernels of all layers at once.
--- Private to models.rows.
---
--- Without a graph a token takes as long as Lua takes to call some 20 operators of each layer. A graph repeats fixed
--- addresses and shapes, but a cache grows. So the graph's attention reads the columns of a whole bucket (256, then
--- 512, ...), and a mask hides those that a row does not see. The column, where each row begins, the ids and the
--- positions are values on the device. The first token of a bucket runs without the graph, the second one is recorded.
--- Source: static caches, as in gpt-fast and transformers.

local core_graph = require "lockstep.core.graph"
local dist = require "lockstep.distributed"
local graph = require "lockstep.graph"
local hooks = require "lockstep.nn.hooks"
local nn = require "lockstep.nn"
local torch = require "lockstep.torch"

local M = {}

--- Returns whether tokens of a device are graphs by default. A test replaces it.
---@param device string
---@return boolean
function M.is_default(device) return device ~= "cpu" end

--- The fewest new tokens for a graph. A recording takes about as long as this many tokens without one.
M.LEAST_NEW_TOKENS = 16
--- The most columns that a graph reads. The kernel that takes a mask does not split the keys, and with more columns it
--- loses more time than a graph saves.
M.MOST_COLUMNS = 8192
--- The most recordings of one call of models.generate. Further shapes run without one.
local MAX_RECORDINGS = 64

---@class models.TokenGraph
---@field private model models.CausalLM
---@field private cache models.Cache
---@field private call lockstep.Graph?
local TokenGraph = {}
TokenGraph.__index = TokenGraph

--- Returns whether a token needs no Lua and no wait for the device: all layers are attention to a cache.
local function can_record(model)
  if not rawequal(model.inputs, model.staged_inputs) or model.rotary.ntk then return false end
  for _, module in model:named_modules() do
    local class = module.class_name
    if hooks.has(module) or module.holds_experts then return false end
    -- A recorded product casts the weight again for each token.
    if class:find("Float8", 1, true) or class:find("FewBits", 1, true) then return false end
    if nn.fields(module).self_attn then
      local attention = module.self_attn
      if attention.recur or attention.sinks or attention.blocks then return false end
    end
  end
  return true
end

--- Returns a function that returns the mask of a window [rows, columns], which is added to the scores. A row sees the
--- columns from its first one to the one that it writes.
local function masks_of(column, starts, columns, dtype)
  local places = torch.arange(columns, { device = starts.device })
  local sees, masks = places:le(column):logical_and(places:ge(starts:unsqueeze(1))), {}
  return function(window)
    if not masks[window] then
      local seen = window and sees:logical_and(places:gt(column - window)) or sees
      masks[window] = torch.zeros(seen.shape, { dtype = dtype, device = starts.device })
        :masked_fill_(seen:logical_not(), -math.huge)
    end
    return masks[window]
  end
end

--- Computes the logits of one new token of each row. `numbers` has the column, and of each row its id, its position and
--- its first column.
local function compute(self, numbers, columns)
  local rows, cache, lengths = (numbers:size(0) - 1) / 3, self.cache, {}
  local column = numbers:narrow(0, 0, 1)
  local ids, positions, starts = unpack(numbers:narrow(0, 1, 3 * rows):chunk(3))
  for row = 1, rows do lengths[row] = 1 end
  local mask_of = masks_of(column, starts, columns, cache.masks.dtype)
  local hidden = self.model:hidden({ input_ids = ids, position_ids = positions, seq_lens = lengths, continues = true },
    function(q, k, v, attention)
      return cache:tokens_at(column, columns, mask_of(attention.window or false), q, k, v, attention)
    end)
  return self.model:head(hidden)
end

--- Returns a graph for new tokens, or nil where they run better without one, and where the model is not on this rank's
--- device. rows.lua does not call this for a model whose ranks compute together.
---@param model models.CausalLM
---@param cache models.Cache that has the prompts
---@param most_new integer the most new tokens of a prompt
---@return models.TokenGraph?
function M.new(model, cache, most_new)
  if most_new < M.LEAST_NEW_TOKENS or not cache.masks or not can_record(model) or core_graph.is_recording()
      or select(2, core_graph.modes()) or cache.masks.device ~= dist.device() then
    return nil
  end
  local self = setmetatable({ model = model, cache = cache }, TokenGraph)
  self.call = graph(function(...) return compute(self, ...) end, { warmup = 1, buckets = MAX_RECORDINGS })
  self.call.is_local = true
  return self
end

--- Returns the columns that attention reads: a few sizes, so that there are few recordings.
---@param cache models.Cache
---@return integer
function M.columns_for(cache)
  local needed = cache.used + 1
  local step = needed <= 2048 and 256 or 1024
  return math.min(math.ceil(needed / step) * step, cache.columns)
end

--- Returns the logits of one new token of each row, at the next column. The next call overwrites them. Returns nil
--- where this token must run without a graph.
---@param ids integer[]
---@param positions integer[]
---@return torch.Tensor?
function TokenGraph:logits(ids, positions)
  local cache, count, rows = self.cache, #ids, 1
  local columns = M.columns_for(cache)
  if not self.call or columns > M.MOST_COLUMNS then return nil end
  while rows < count do rows = 2 * rows end
  rows = math.min(rows, cache.capacity)
  -- A row without a sequence sees its own token alone, so that its numbers stay finite.
  local list = { cache.used }
  for row = 1, rows do
    list[1 + row], list[1 + rows + row] = ids[row] or 0, positions[row] or 0
    list[1 + 2 * rows + row] = cache.starts[row] or cache.used
  end
  local numbers, device = torch.tensor(list, { dtype = torch.int64 }), cache.masks.device
  if device ~= "cpu" then numbers = numbers:pin_memory():to(device, { non_blocking = true }) end
  local is_well, logits = pcall(self.call, numbers, columns)
  if not is_well then
    local text = tostring(logits)
    if not (text:find "graph" or text:find "captur") then error(logits, 0) end -- Ctrl-C, for example
    io.stderr:write(("lockstep: warning: models.generate: new tokens run without a graph, at the usual speed: %s\n")
      :format(text))
  end
  if not is_well or self.call.failures > 0 then self.call = nil end -- lockstep.graph has told of its failures
  if not is_well then return nil end
  return logits:narrow(0, 0, count)
end

return M
