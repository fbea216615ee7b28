--- Runs prompts in the rows of a batch. A prompt that waits takes the row of a sequence that has ended (Orca, Yu et al.
--- 2022), and prompts that are the same are computed once. Private to models.generation.

local Cache = require "lockstep.models.cache"
local core = require "lockstep.core"
local fully_shard = require "lockstep.sharding.fully_shard"
local new_tokens = require "lockstep.models.new_tokens"
local nn = require "lockstep.nn"
local processors = require "lockstep.models.processors"
local same_prompts = require "lockstep.models.same_prompts"
local sampling = require "lockstep.models.sampling"
local splits = require "lockstep.nn.splits"
local token_graph = require "lockstep.models.token_graph"
local torch = require "lockstep.torch"

local M = {}

local I64 = { dtype = torch.int64 }

--- Columns after which the cache moves its tokens, if prompts wait. Moving copies about the bytes that a new token
--- reads, so each takes a small part of the time.
local SPARE = 128

---@class models.Rows
---@field model models.CausalLM
---@field samples models.Batch[]
---@field o table options of models.generate; max_new_tokens is an array
---@field most integer rows
---@field entered integer prompts that have entered
---@field sequences integer[] of each row in use, the number of its prompt
---@field ids integer[] of each row, the last id
---@field positions integer[] of each row, the position of the last id
---@field results integer[][] of each prompt
local Rows = {}
Rows.__index = Rows

--- Prompts as one batch, one after the other.
local function pack(samples)
  local parts, lengths = {}, {}
  for i, sample in ipairs(samples) do
    lengths[i] = sample.input_ids:size(0)
    for key, value in pairs(sample) do
      if torch.is_tensor(value) then
        parts[key] = parts[key] or {}
        table.insert(parts[key], value)
      end
    end
  end
  local batch = { seq_lens = lengths }
  for key, list in pairs(parts) do batch[key] = torch.cat(list, key == "position_ids" and -1 or 0) end
  return batch
end

--- Returns the mode in which a model runs on new tokens. Inference mode spends less time on each operator. But a model
--- that is sharded, split, or has a forward of its own may keep a tensor that it made there, which training cannot use.
local function mode_of(model)
  if splits.owner_of(model) then return torch.no_grad end
  for _, module in model:named_modules() do
    if nn.fields(module).forward then return torch.no_grad end
  end
  for _, p in ipairs(model:parameters()) do
    if fully_shard.shard_of(p) or fully_shard.place_of(p) then return torch.no_grad end
  end
  return torch.inference_mode
end

--- Runs the model on `batch` and returns the logits after the rows `last`.
local function logits_after(model, batch, attend, last, layers)
  local hidden = model:hidden(batch, attend, layers)
  if last then hidden = hidden:index_select(0, torch.tensor(last, I64):to(hidden.device)) end
  return model:head(hidden)
end

local function last_rows(lengths)
  local rows, sum = {}, 0
  for i, length in ipairs(lengths) do
    sum = sum + length
    rows[i] = sum - 1
  end
  return rows
end

--- Returns ids and largest logits of rows.
local function draw(self, logits, sequences) return self.sample(self.process(logits, sequences), sequences) end

local function remove(self, row)
  for _, list in ipairs { self.sequences, self.ids, self.positions } do
    list[row] = list[#list]
    list[#list] = nil
  end
  self.cache:remove(row)
end

--- Adds the ids that rows from `first` on have drawn to the results, and takes out the sequences that end.
local function take(self, first, ids, largest)
  local ended = {}
  for i, id in ipairs(ids) do
    local row = first + i - 1
    local sequence = self.sequences[row]
    local result = self.results[sequence]
    result[#result + 1] = id
    if not (math.abs(largest[i]) < math.huge) then
      core.raise(("models.generate: prompt %d, step %d: the largest logit is %s; are the model's weights finite?")
        :format(sequence, #result, tostring(largest[i])))
    end
    self.ids[row] = id
    if self.o.on_token then self.o.on_token(sequence, id) end
    if self.o.stop[id] or #result == self.o.max_new_tokens[sequence] then ended[#ended + 1] = row end
  end
  for i = #ended, 1, -1 do remove(self, ended[i]) end -- the last row, which moves, is not one of those that remain
end

--- Gives the next prompt a row. Returns the prompt, the row, and whether the model must still compute the prompt.
local function assign(self)
  self.entered = self.entered + 1
  local sequence, row = self.entered, #self.sequences + 1
  local leader, sample = self.leaders[sequence], self.samples[sequence]
  local prompt = self.prompts[leader]
  local is_new = prompt == nil
  if is_new then
    prompt = { sample = sample, length = sample.input_ids:size(0), rows = {} }
    self.prompts[leader] = prompt
  end
  self.sequences[row], self.positions[row] = sequence, sample.position_ids:max():item()
  self.waiting[leader] = self.waiting[leader] - 1
  if self.waiting[leader] == 0 then self.prompts[leader] = nil end -- nobody needs what is kept after this
  return prompt, row, is_new
end

--- Computes prompts that are new, and keeps what rows will need later. Each gets the logits of its first new token.
local function compute(self, prompts)
  local cache, samples = self.cache, {}
  for i, prompt in ipairs(prompts) do samples[i] = prompt.sample end
  for _, prompt in pairs(self.prompts) do
    if not prompt.logits then prompt.keys, prompt.values, prompt.kept = {}, {}, {} end
  end
  cache:enter(prompts)
  local batch = pack(samples)
  -- Outside inference mode: buffers that the model makes at its first call are used in training, too.
  local logits = logits_after(self.model, batch, function(...) return cache:prompts(...) end,
    last_rows(batch.seq_lens))
  for i, prompt in ipairs(prompts) do
    local row = logits[i - 1]
    prompt.logits = prompt.keys and row:clone() or row
  end
end

--- Fills free rows with prompts that wait, and draws their first ids.
local function enter(self)
  local first, new, entering = #self.sequences + 1, {}, {}
  while #self.sequences < self.most and self.entered < #self.samples do
    local prompt, row, is_new = assign(self)
    entering[#entering + 1] = prompt
    if is_new then new[#new + 1] = prompt end
    if prompt.logits then self.cache:repeat_prompt(prompt, row) else table.insert(prompt.rows, row) end
  end
  if #new > 0 then compute(self, new) end
  local logits, sequences = {}, {}
  for i, prompt in ipairs(entering) do
    self.cache:add(first + i - 1, prompt.length)
    logits[i], sequences[i] = prompt.logits, self.sequences[first + i - 1]
  end
  take(self, first, draw(self, torch.stack(logits), sequences))
end

--- Computes a sequence again as a prompt: its next position is the first one with which all have other frequencies.
local function compute_again(self, row)
  local sequence, position, row_after = self.sequences[row], self.positions[row] + 1, #self.sequences
  remove(self, row)
  local sample, ids = self.samples[sequence], self.results[sequence]
  local added = torch.arange(position - #ids + 1, position + 1)
  local prompt = { rows = { row_after }, sample = { position_ids = torch.cat { sample.position_ids, added },
    input_ids = torch.cat { sample.input_ids, torch.tensor(ids, { dtype = sample.input_ids.dtype }) } } }
  prompt.length = prompt.sample.input_ids:size(0)
  self.sequences[row_after], self.positions[row_after] = sequence, position
  compute(self, { prompt })
  self.cache:add(row_after, prompt.length)
  take(self, row_after, draw(self, torch.stack { prompt.logits }, { sequence }))
end

--- Draws one id for each row.
local function step(self)
  for row = #self.sequences, 1, -1 do
    if self.positions[row] + 1 == self.model.rotary.long_from then compute_again(self, row) end
  end
  local cache, count = self.cache, #self.sequences
  if count == 0 then return end
  cache:prepare()
  if not self.mode then
    self.mode = mode_of(self.model)
    self.layers = self.mode == torch.inference_mode and new_tokens.layers(self.model, cache) or nil
    self.graph = self.mode == torch.inference_mode and self.o.graph
      and token_graph.new(self.model, cache, self.most_new) or nil
  end
  local lengths = {}
  for row = 1, count do self.positions[row], lengths[row] = self.positions[row] + 1, 1 end
  local positions = torch.tensor(self.positions, I64)
  local first = self.samples[1].position_ids
  if first:dim() == 2 then positions = positions:expand(first:size(0), -1) end
  local batch = { input_ids = torch.tensor(self.ids, I64), position_ids = positions, seq_lens = lengths,
    continues = true }
  local ids, largest = self.mode(function()
    local function attend(...) return cache:next_tokens(...) end
    local logits = self.graph and self.graph:logits(self.ids, self.positions)
    return draw(self, logits or logits_after(self.model, batch, attend, nil, self.layers), self.sequences)
  end)
  cache.used = cache.used + 1
  take(self, 1, ids, largest)
end

--- Returns the new ids of each prompt.
---@param model models.CausalLM
---@param samples models.Batch[]
---@param o table options of models.generate, where max_new_tokens is an array, and stop a set
---@return integer[][]
function M.run(model, samples, o)
  local self = setmetatable({ model = model, samples = samples, o = o, entered = 0, sequences = {}, ids = {},
    positions = {}, results = {}, prompts = {}, waiting = {}, leaders = same_prompts.leaders(samples) }, Rows)
  self.most = math.min(o.max_batch_size or #samples, #samples)
  local longest, most_new = 0, 0
  for i, sample in ipairs(samples) do
    self.results[i] = {}
    self.waiting[self.leaders[i]] = (self.waiting[self.leaders[i]] or 0) + 1
    longest, most_new = math.max(longest, sample.input_ids:size(0)), math.max(most_new, o.max_new_tokens[i])
  end
  self.most_new = most_new
  if model.rotary.long_from then longest = longest + 1 end -- compute_again writes the last id, too
  self.cache = Cache.new { rows = self.most, longest = longest, new_tokens = most_new,
    spare = self.most < #samples and SPARE or 0 }
  self.sample, self.process = sampling.sampler(o, #samples), processors.new(o, samples, self.results)
  while self.entered < #samples or #self.sequences > 0 do
    if self.entered < #samples and #self.sequences < self.most then enter(self) else step(self) end
  end
  return self.results
end

return M
