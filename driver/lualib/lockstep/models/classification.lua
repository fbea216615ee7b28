--- Sequence classification and reward models: a decoder whose head, `score`, gives each sequence one number for each
--- label, after its last token.
---
---     local judge = models.load("Qwen3-0.6B", { num_labels = 1 })      -- a new head on a language model
---     local scores = judge(batch)                                      -- [sequences, 1]

local chunks = require "lockstep.nn.chunks"
local dist = require "lockstep.distributed"
local nn = require "lockstep.nn"
local options = require "lockstep.options"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

local M = {}

local check, fail = plain.checks "models: "

--- The architectures that have such a class in transformers.
local FAMILIES = { "DeepseekV3", "GptOss", "Llama", "Ministral", "Mistral", "Mixtral", "Olmo2", "Olmo3", "Phi3",
  "Qwen2", "Qwen3", "Qwen3Moe", "SmolLM3" }

local SUFFIX = "ForSequenceClassification"

--- Models of pictures. transformers has such a class for Gemma 3; models.load opens those of the others.
local VISION = { "Gemma3", "Qwen2_5_VL", "Qwen3VL", "Qwen3VLMoe" }

--- Names by the class of the language model.
local names = { Gemma3ForCausalLM = "Gemma3Text" .. SUFFIX }
for _, family in ipairs(VISION) do names[family .. "ForConditionalGeneration"] = family .. SUFFIX end
for _, family in ipairs(FAMILIES) do names[family .. "ForCausalLM"] = family .. SUFFIX end

--- Returns the name of the language model that an architecture adds a head to, or nil.
---@param architecture string
---@return string?
function M.base_of(architecture)
  for base, name in pairs(names) do
    if name == architecture then return base end
  end
end

---@param raw table<string, any>
---@return integer
function M.count_labels(raw)
  if plain.is_whole(raw.num_labels, 1) then return raw.num_labels end
  local count = 0
  if type(raw.id2label) == "table" then
    for _ in pairs(raw.id2label) do count = count + 1 end
  end
  return count > 0 and count or 2
end

--- Methods of the class that has a head for labels.
local Classifier = {}

--- See CausalLM:init.
---@param raw table<string, any> config.json
---@param opts table?
function Classifier:init(raw, opts)
  self.base.init(self, raw, opts)
  self.lm_head = nil
  self.num_labels = M.count_labels(raw)
  self.score = nn.Linear(self.settings.hidden_size, self.num_labels, { bias = false })
end

--- The plan of sharding.tensor_parallel. Every rank has the whole head, which sees all tokens.
---@return table<string, string>|false
function Classifier:tensor_plan()
  local plan = self.base.tensor_plan
  return plan and plain.copy(plan(self), { score = "whole" })
end

--- Returns the scores after the tokens `last` of a batch whose chunks lie on several ranks. Each rank computes those of
--- its own tokens, and the ranks add them up.
local function scores_of_chunks(self, current, hidden, last)
  local tokens = current.table.tokens
  local places = chunks.own(current, torch.arange(tokens), 0, -1):totable() -- -1: a token that counts nowhere
  local row_of, own, rows = {}, {}, {}
  for i, place in ipairs(places) do row_of[place] = i - 1 end
  for i, place in ipairs(last) do
    if row_of[place] then own[#own + 1], rows[#rows + 1] = row_of[place], i - 1 end
  end
  local function index(list) return torch.tensor(list, { dtype = torch.int64 }):to(hidden.device) end
  -- A rank without a last token has no scores. They are in the graph all the same, so backward meets the same
  -- collectives on every rank.
  local scores = self.score(hidden:index_select(0, index(own)))
  local all = torch.zeros({ #last, self.num_labels }, { dtype = scores.dtype, device = scores.device })
  return dist.functional.all_reduce(all:index_add(0, index(rows), scores), "sum", { group = current.group })
end

--- Returns the scores of each sequence, after its last token.
---@param batch models.Batch
---@return torch.Tensor # [sequences, num_labels]
function Classifier:scores(batch)
  local current = chunks.current()
  if not (current and current.table) then chunks.refuse("models: scores", "give whole sequences") end
  check(not batch.shares,
    "scores are of whole sequences, and this batch has shares of samples; prepare it without split")
  local hidden = self:hidden(batch)
  local last, sum = {}, 0
  for i, length in ipairs(batch.seq_lens or { batch.input_ids:size(0) }) do
    if length == 0 then fail("seq_lens[%d] is 0: a sequence without tokens has no score", i) end
    sum = sum + length
    last[i] = sum - 1
  end
  if current then return scores_of_chunks(self, current, hidden, last) end
  return self.score(hidden:index_select(0, torch.tensor(last, { dtype = torch.int64 }):to(hidden.device)))
end

--- Returns the scores, or with "hidden" what model:hidden(batch) does.
---@param batch models.Batch
---@param what ("logits"|"scores"|"hidden")?
---@return torch.Tensor
function Classifier:forward(batch, what)
  if what == "hidden" then return self:hidden(batch) end
  check(what == nil or what == "logits" or what == "scores",
    '%s scores sequences: forward returns "scores" or "hidden", not "%s"', self.class_name, tostring(what))
  return self:scores(batch)
end

--- See loading. Language models with the same layers have a head that is not read.
---@param name string
---@return boolean
function Classifier:is_unread(name)
  return name == "lm_head.weight" or self.base.is_unread ~= nil and self.base.is_unread(self, name)
end

for _, method in ipairs { "loss", "log_probs", "generate", "head" } do
  Classifier[method] = function(self)
    fail("%s scores sequences, and predicts no tokens: it has no %s; model(batch) returns [sequences, %d]",
      self.class_name, method, self.num_labels)
  end
end

local classes = setmetatable({}, { __mode = "k" })

--- Returns the class of a language model's class with a head for labels.
---@param architecture string
---@param base any
---@return any
function M.class(architecture, base)
  if not classes[base] then
    local class = base:subclass(architecture)
    for name, method in pairs(Classifier) do class[name] = method end
    class.base = base
    class.keys = plain.copy(base.keys, { num_labels = options.optional })
    classes[base] = class
  end
  return classes[base]
end

--- Returns what a config gets where a language model is given a head, or nil where it has one.
---@param raw table<string, any>
---@param num_labels any
---@return table<string, any>?
function M.changes(raw, num_labels)
  plain.check(plain.is_whole(num_labels, 1), "models.load: num_labels must be a whole number of at least 1, got %s",
    tostring(num_labels))
  local architecture = type(raw.architectures) == "table" and raw.architectures[1] or nil
  if M.base_of(architecture) then
    local count = M.count_labels(raw)
    plain.check(count == num_labels, "models.load: the folder has a head of %d labels, not num_labels = %d; leave "
      .. "num_labels out", count, num_labels)
    return nil
  end
  plain.check(names[architecture],
    "models.load: num_labels: %s has no class for sequence classification (those that have: %s)",
    tostring(architecture), table.concat(plain.keys(names), ", "))
  local changes = { architectures = { names[architecture] }, id2label = {}, label2id = {} }
  for i = 0, num_labels - 1 do
    changes.id2label[tostring(i)], changes.label2id["LABEL_" .. i] = "LABEL_" .. i, i
  end
  return changes
end

--- Puts a new head next to the tensors of a language model.
---@param tensors table<string, torch.Tensor> is changed
---@param raw table<string, any>
---@param num_labels integer
function M.add_head(tensors, raw, num_labels)
  local embedding = tensors["model.embed_tokens.weight"] or tensors["model.language_model.embed_tokens.weight"]
    or tensors["language_model.model.embed_tokens.weight"]
  if not embedding or tensors["score.weight"] then return end
  local dtype = embedding:is_floating_point() and embedding.dtype or torch.float32
  tensors["score.weight"] = torch.empty({ num_labels, embedding:size(1) })
    :normal_(0, raw.initializer_range or 0.02):to(dtype)
end

return M
