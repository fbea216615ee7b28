--- The decoder that Llama, Qwen and their kin share: pre-norm layers of attention and a gated MLP.
---
---     local Model = models.CausalLM:subclass("LlamaForCausalLM")
---     Model.keys = models.keys { attention_bias = false }
---     function Model.read(c) c.qkv_bias = c.attention_bias end
---
--- Modules have the names that they have on disk. Tokens lie one after the other, [T, hidden], without a batch
--- dimension. A layer takes cos and sin and a function `attend(q, k, v, attention)`; so training, a cache and
--- several position ids per token use the same layers.

local checkpoint = require "lockstep.checkpoint"
local config = require "lockstep.models.config"
local generation = require "lockstep.models.generation"
local nn = require "lockstep.nn"
local one_input = require "lockstep.nn.one_input"
local options = require "lockstep.options"
local plain = require "lockstep.plain"
local reading = require "lockstep.models.reading"
local scoring = require "lockstep.models.scoring"
local splits = require "lockstep.nn.splits"
local tiled_mlp = require "lockstep.tiled_mlp"
local torch = require "lockstep.torch"

local M = {}

local check, fail = plain.checks "models: "

-- Layers --------------------------------------------------------------------------------------------------

--- Settings that it reads: hidden_size, num_attention_heads, num_key_value_heads, head_dim, rms_norm_eps, and
--- qkv_bias, output_bias, qk_norm, windows, attention_scale.
---@class models.Attention: nn.Module
---@field index integer the layer, from 1
---@field window integer|false
---@field scale number? of the scores; default head_dim^-0.5
---@field sinks torch.Tensor? see nn.attention
---@field blocks torch.Tensor? see nn.attention
local Attention = nn.Module:subclass("Attention")
---@type fun(c: table, index: integer): models.Attention
M.Attention = Attention

function Attention:init(c, index)
  local hidden, dim, bias = c.hidden_size, c.head_dim, { bias = c.qkv_bias or false }
  self.index, self.head_dim, self.window = index, dim, c.windows and c.windows[index] or false
  self.scale = c.attention_scale
  self.q_proj = nn.Linear(hidden, c.num_attention_heads * dim, bias)
  self.k_proj = nn.Linear(hidden, c.num_key_value_heads * dim, bias)
  self.v_proj = nn.Linear(hidden, c.num_key_value_heads * dim, bias)
  self.o_proj = nn.Linear(c.num_attention_heads * dim, hidden, { bias = c.output_bias or false })
  if c.qk_norm then
    self.q_norm = nn.RMSNorm(dim, { eps = c.rms_norm_eps })
    self.k_norm = nn.RMSNorm(dim, { eps = c.rms_norm_eps })
  end
end

--- Overridden by architectures. Returns queries, keys and values, normalised and not yet rotated.
---@param x torch.Tensor [T, hidden]
---@return torch.Tensor q [T, heads, head_dim]; T is larger than that of x where ranks split the tokens between layers
---@return torch.Tensor k [T, kv_heads, head_dim]
---@return torch.Tensor v [T, kv_heads, head_dim]
function Attention:project(x)
  local q, k, v = one_input.linears(x, self.q_proj, self.k_proj, self.v_proj)
  local tokens, dim = q:size(0), self.head_dim -- sharding.tensor_parallel may split the tokens of x
  q, k, v = q:view(tokens, -1, dim), k:view(tokens, -1, dim), v:view(tokens, -1, dim)
  if self.q_norm then q, k = self.q_norm(q), self.k_norm(k) end
  return q, k, v
end

--- Overridden by architectures. Rotates queries or keys by their positions: the first numbers of each head, as many as
--- there are cosines.
---@param x torch.Tensor [T, heads, head_dim]
---@param pass models.Pass
---@return torch.Tensor # as x
function Attention:turn(x, pass)
  local turned = pass.cos:size(-1)
  if turned == self.head_dim then return nn.rotate(x, pass.cos, pass.sin) end
  local first = nn.rotate(x:narrow(-1, 0, turned):contiguous(), pass.cos, pass.sin)
  return torch.cat({ first, x:narrow(-1, turned, self.head_dim - turned) }, -1)
end

function Attention:forward(x, pass)
  local q, k, v = self:project(x)
  q, k = self:turn(q, pass), self:turn(k, pass)
  return self.o_proj(pass.attend(q, k, v, self):reshape(q:size(0), -1))
end

--- down(silu(gate(x)) * up(x)).
---@class models.Mlp: nn.Module
local Mlp = nn.Module:subclass("Mlp")
---@type fun(hidden: integer, intermediate: integer, opts: {bias: boolean?}?): models.Mlp
M.Mlp = Mlp

function Mlp:init(hidden, intermediate, opts)
  local bias = { bias = opts and opts.bias or false }
  self.gate_proj = nn.Linear(hidden, intermediate, bias)
  self.up_proj = nn.Linear(hidden, intermediate, bias)
  self.down_proj = nn.Linear(intermediate, hidden, bias)
end

function Mlp:forward(x)
  return self.down_proj(nn.swiglu(one_input.linears(x, self.gate_proj, self.up_proj)))
end

--- Returns whether a norm can add y to x. A module of the user may return a number, or a tensor that is broadcast.
local function has_size_of(x, y)
  return torch.is_tensor(y) and y:dim() == x:dim() and y:numel() == x:numel()
end

--- Returns norm(x + y) and x + y. Only a plain norm is sure to return its sum: hooks, a replaced forward or another
--- class may return one result.
local function add_and_norm(norm, y, x)
  if one_input.is_plain(nn.RMSNorm, norm) and has_size_of(x, y) then return norm(y, x) end
  local sum = x + y
  return (norm(sum)), sum
end

--- Returns the new hidden states, and the second result of its MLP if there is one.
---@class models.Layer: nn.Module
local Layer = nn.Module:subclass("DecoderLayer")
---@type fun(c: table, index: integer, mlp: nn.Module, attention: models.Attention?): models.Layer
M.Layer = Layer

function Layer:init(c, index, mlp, attention)
  self.self_attn = attention or Attention(c, index)
  self.mlp = mlp
  self.input_layernorm = nn.RMSNorm(c.hidden_size, { eps = c.rms_norm_eps })
  self.post_attention_layernorm = nn.RMSNorm(c.hidden_size, { eps = c.rms_norm_eps })
end

function Layer:forward(x, pass)
  local of_new_tokens = pass.layers and pass.layers[self]
  if of_new_tokens then return of_new_tokens(x, pass) end
  local y, sum, aux = self:without_last_sum(nil, x, pass)
  if aux then return sum + y, aux end
  return sum + y
end

--- Computes the layer of x + y, and returns the two terms of its last sum. The next layer's norm adds them, in one pass
--- over memory. The bits are those of forward. Private to Decoder.
---@param y torch.Tensor? [T, hidden]
---@param x torch.Tensor [T, hidden]
---@param pass models.Pass
---@return torch.Tensor y [T, hidden]
---@return torch.Tensor x [T, hidden]
---@return torch.Tensor? # of a mixture of experts: the router's logits
function Layer:without_last_sum(y, x, pass)
  local normalised, sum
  if y then
    normalised, sum = self.input_layernorm(y, x)
  else
    normalised, sum = one_input.norm(self.input_layernorm, x)
  end
  normalised, sum = add_and_norm(self.post_attention_layernorm, self.self_attn(normalised, pass), sum)
  local result, aux = self.mlp(normalised)
  return result, sum, aux
end

--- Computes the rest of forward after the attention. Private to models.new_tokens.
---@param attended torch.Tensor [T, hidden] what the attention gave
---@param x torch.Tensor [T, hidden] the layer's input
---@return torch.Tensor # [T, hidden]
---@return torch.Tensor? # of a mixture of experts: the router's logits
function Layer:after_attention(attended, x)
  local normalised, sum = add_and_norm(self.post_attention_layernorm, attended, x)
  local y, aux = self.mlp(normalised)
  if aux then return sum + y, aux end
  return sum + y
end

--- One pass through the layers.
---@class models.Pass
---@field cos torch.Tensor [T, 1, head_dim]
---@field sin torch.Tensor [T, 1, head_dim]
---@field attend fun(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, attention: models.Attention): torch.Tensor
---@field after (fun(index: integer, x: torch.Tensor): torch.Tensor)? is called after each layer and may change x
---@field takes_smaller_values boolean? `attend` takes heads of v that are smaller than those of k
---@field checkpoint checkpoint.Checkpoint? runs each layer
---@field layers table<models.Layer, models.NewTokens>? of generation: functions that take the place of layers
---@field stage pipeline.Stage? runs its layers alone

--- The layers between the embedding and the head.
---@class models.Decoder: nn.Module
local Decoder = nn.Module:subclass("Decoder")
---@type fun(c: table, make_layer: fun(index: integer): nn.Module): models.Decoder
M.Decoder = Decoder

function Decoder:init(c, make_layer)
  self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
  self.layers = nn.ModuleList()
  for i = 1, c.num_hidden_layers do self.layers:append(make_layer(i)) end
  self.norm = nn.RMSNorm(c.hidden_size, { eps = c.rms_norm_eps })
end

--- Returns whether a layer's sums may be left to norms: nothing else sees them. A checkpoint would keep two tensors in
--- place of their sum.
local function leaves_sum(layer, pass)
  return not pass.checkpoint and not pass.after and not pass.layers and one_input.is_plain(Layer, layer)
    and one_input.is_plain(nn.RMSNorm, layer.input_layernorm)
end

--- From embeddings [T, hidden] to what the head takes; also the second results of the layers, in their order.
function Decoder:forward(x, pass)
  local seconds, stage = {}, pass.stage or { first = 1, last = #self.layers, is_last = true }
  local y -- what is yet to be added to x
  for i = stage.first, stage.last do
    local layer = self.layers[i]
    local aux
    if leaves_sum(layer, pass) then
      y, x, aux = layer:without_last_sum(y, x, pass)
      if not has_size_of(x, y) then x, y = x + y, nil end
    else
      if y then x, y = x + y, nil end
      if pass.checkpoint then
        x, aux = pass.checkpoint(function(input) return layer(input, pass) end, x)
      else
        x, aux = layer(x, pass)
      end
    end
    seconds[#seconds + 1] = aux
    if pass.after then x = pass.after(i, x) end
  end
  if not stage.is_last then return y and x + y or x, seconds end
  if y and one_input.is_plain(nn.RMSNorm, self.norm) then return (self.norm(y, x)), seconds end
  return self.norm(y and x + y or x), seconds
end

-- The model -----------------------------------------------------------------------------------------------

--- A micro-batch. Further fields (kind, samples, ...) are not read.
---@class models.Batch
---@field input_ids torch.Tensor [T] int64
---@field seq_lens integer[]? default: one sequence
---@field position_ids torch.Tensor? [T], or [3, T] of models with pictures; default: from 0 in each sequence
---@field loss_mask torch.Tensor? [T]; default: all tokens
---@field pixel_values torch.Tensor? [P, D] float32, the patches of all pictures
---@field image_grid_thw torch.Tensor? [images, 3] int64, t, h and w of each in patches
---@field image_order torch.Tensor? [places] int64, for each run of placeholders the number of its picture, from 0, if a
--- picture has several places; default: each has one, in order
---@field pixel_values_videos torch.Tensor? as pixel_values, of videos
---@field video_grid_thw torch.Tensor? [videos, 3] int64
---@field second_per_grid_ts torch.Tensor|number[]|nil of each video, the seconds that a temporal patch spans
---@field shares nn.Shares? the first sequences are parts of samples that several ranks hold: batching.prepare
---@field continues boolean? set by models.generate: the ids follow those of earlier batches
---@field visual torch.Tensor? in place of pixel values: what model:visual(batch) returned, perhaps on other ranks
---@field own_visual torch.Tensor? the rows of `visual` whose places are among those of this rank of cp, and of tp with
--- sequence parallelism, in their order

--- A language model. A subclass sets `keys`, and may override `read`, `mlp`, `layer`, `inputs` and
--- `layouts`.
---@class models.CausalLM: nn.Module
---@field config table<string, any> as config.json has it
---@field needs_whole_sequences boolean? attention cannot see chunks, but by all-to-all over heads
---@field has_states boolean? layers pass a state along the sequence: no chunks at all
---@field settings table<string, any> the values of `keys`, and what `read` adds
---@field is_unread (fun(self, name: string): boolean|string)? of architectures whose folders hold tensors that take
--- no part; a string is what a printed line calls them
---@field stage_input {stage: pipeline.Stage, x: torch.Tensor?, carry: torch.Tensor?}? while a stage of a pipeline runs
---@field stage_device string? of a stage
---@field num_too_long integer? prompts of models.generate whose positions may have passed max_position_embeddings
---@field checkpoint checkpoint.Checkpoint? recomputes each layer in backward, and each block of a vision tower. Options
--- make one: model.checkpoint = { offload = "host" }
---@field tiled_mlp tiled_mlp.TiledMlp? runs the MLPs of all layers, and of a vision tower, over tiles. Options of
--- tiled_mlp.apply make one: model.tiled_mlp = { tiles = 4 }
---@field label_smoothing number? of model:loss in training: from 0 to 1
local CausalLM = nn.Module:subclass("CausalLM")
M.CausalLM = CausalLM

--- Assigns a field. Options in place of a checkpoint or of tiles become one; nil takes it away.
---@param name string
---@param value any
function CausalLM:__newindex(name, value)
  if name == "checkpoint" and value and not plain.is_callable(value) then value = checkpoint.new(value) end
  if name == "tiled_mlp" then
    local before = self.tiled_mlp
    value = value and tiled_mlp.apply(self, value) or nil
    if before then before:remove() end
    nn.Module.__newindex(self, name, nil)
  end
  nn.Module.__newindex(self, name, value)
end

local COMMON = { vocab_size = options.required, hidden_size = options.required, intermediate_size = options.required,
  num_hidden_layers = options.required, num_attention_heads = options.required,
  num_key_value_heads = options.optional, head_dim = options.optional, rms_norm_eps = 1e-6,
  tie_word_embeddings = false }

--- Returns the keys that every decoder reads, and `more`.
---@param more table<string, any> names with defaults; see config.settings
---@return table<string, any>
function M.keys(more) return plain.copy(COMMON, more) end

--- Overridden by architectures: completes the settings. Adds qkv_bias, output_bias, qk_norm, windows,
--- attention_scale.
---@param c table<string, any>
function CausalLM.read(c) end -- luacheck: ignore 212

--- Overridden by architectures: makes the MLP of a layer.
---@param c table<string, any>
---@param index integer from 1
---@return nn.Module
function CausalLM.mlp(c, index) -- luacheck: ignore 212
  return Mlp(c.hidden_size, c.intermediate_size, { bias = c.mlp_bias })
end

--- Overridden by architectures whose layers are others: makes a layer, which is called as Layer is.
---@param c table<string, any>
---@param index integer from 1
---@param mlp nn.Module what CausalLM.mlp returned
---@return nn.Module
function CausalLM.layer(c, index, mlp) return Layer(c, index, mlp) end

local function complete(architecture, c)
  c.num_key_value_heads = c.num_key_value_heads or c.num_attention_heads
  config.check_whole(architecture, "num_key_value_heads", c.num_key_value_heads)
  if c.head_dim then config.check_whole(architecture, "head_dim", c.head_dim) end
  check(c.num_attention_heads % c.num_key_value_heads == 0, "%s: num_attention_heads %d is not a multiple of "
    .. "num_key_value_heads %d", architecture, c.num_attention_heads, c.num_key_value_heads)
  check(c.head_dim or c.hidden_size % c.num_attention_heads == 0, "%s: hidden_size %d is not a multiple of "
    .. "num_attention_heads %d, and head_dim is not given", architecture, c.hidden_size, c.num_attention_heads)
  c.head_dim = c.head_dim or c.hidden_size / c.num_attention_heads
end

function CausalLM:init(raw, opts)
  local o = options.read("models." .. self.class_name, opts, { ignore = {} })
  local c = config.settings(self.class_name, raw, self.keys, o.ignore)
  complete(self.class_name, c)
  self.read(c)
  self.config, self.settings = raw, c
  self.model = Decoder(c, function(i) return self.layer(c, i, self.mlp(c, i)) end)
  if not c.tie_word_embeddings then self.lm_head = nn.Linear(c.hidden_size, c.vocab_size, { bias = false }) end
  local rope = plain.copy(c.rope)
  rope.dim = c.rotary_dim or c.head_dim
  self.rotary = nn.rotary(rope)
end

--- Overridden where the decoder is a part of `model`.
---@return models.Decoder
function CausalLM:decoder() return self.model end

--- The plan of sharding.tensor_parallel for this model. Architectures with other attention override it. Experts and
--- vision towers are whole on every rank.
---@return table<string, "column"|"row"|"vocabulary">
function CausalLM.tensor_plan()
  return { embed_tokens = "vocabulary", lm_head = "vocabulary",
    ["layers.*.self_attn.q_proj"] = "column", ["layers.*.self_attn.k_proj"] = "column",
    ["layers.*.self_attn.v_proj"] = "column", ["layers.*.self_attn.o_proj"] = "row",
    ["layers.*.mlp.gate_proj"] = "column", ["layers.*.mlp.up_proj"] = "column",
    ["layers.*.mlp.down_proj"] = "row" }
end

--- Whether sharding.tensor_parallel may split the tokens between the layers.
CausalLM.splits_tokens = true

--- The parts that models.load can load by themselves, for modules on their own ranks; none of a model of text alone.
CausalLM.parts = {} ---@type string[]

--- Overridden by models with parts: leaves the parameters of one part, and sets `part` to its name.
---@param part string one of `parts`
function CausalLM:take_part(part) end -- luacheck: ignore 212

--- Returns the weight of the head, [vocab_size, hidden]: the embedding's where they are tied.
---@return torch.Tensor
function CausalLM:head_weight() return (self.lm_head or self:decoder().embed_tokens).weight end

--- Gives a model whose head is the embedding a head of its own, and says so in its configuration. The weight has no
--- values yet.
function CausalLM:untie()
  local c, weight = self.settings, self:head_weight()
  self.lm_head = nn.Linear(c.hidden_size, c.vocab_size, { bias = false })
    :to { device = weight.device, dtype = weight.dtype }
  c.tie_word_embeddings = false
  self.config = plain.copy(self.config, { tie_word_embeddings = false })
  local text = self.config.text_config
  if type(text) == "table" then self.config.text_config = plain.copy(text, { tie_word_embeddings = false }) end
end

--- Returns the logits of hidden states.
---@param x torch.Tensor [..., hidden]
---@return torch.Tensor # [..., vocab_size]
function CausalLM:head(x)
  if self.lm_head then return self.lm_head(x) end
  local weight = self:head_weight()
  return splits.of(weight) and splits.scores(x, weight) or nn.linear(x, weight)
end

--- Checks a batch, and returns its ids and position ids on the model's device, and its seq_lens: see reading.lua.
---@param batch models.Batch
---@return torch.Tensor input_ids
---@return torch.Tensor position_ids
---@return integer[] seq_lens
function CausalLM:read_batch(batch) return reading.read(self, batch) end

--- Overridden by models whose tokens have three positions. Returns the position ids of one sample.
---@param raw table<string, any>
---@param sample models.Batch
---@return torch.Tensor # [T] int64
function CausalLM.positions(raw, sample) -- luacheck: ignore 212
  local ids = sample.input_ids
  return torch.arange(torch.is_tensor(ids) and ids:size(0) or #ids)
end

--- Returns the position ids of one sample: see models.position_ids.
---@param sample models.Batch
---@return torch.Tensor
function CausalLM:position_ids(sample) return self.positions(self.config, sample) end

--- Overridden by models that take more than text. Returns embeddings and angles, and optionally what to do after
--- each layer.
---@param batch models.Batch
---@return torch.Tensor x [T, hidden]
---@return torch.Tensor angles [T, head_dim / 2] float32
---@return integer[] seq_lens
---@return (fun(index: integer, x: torch.Tensor): torch.Tensor)? after
function CausalLM:inputs(batch)
  if type(batch) == "table" and batch.pixel_values then
    fail("%s takes text alone, but the batch has pixel_values", self.class_name)
  end
  local ids, positions, seq_lens = self:read_batch(batch)
  check(positions:dim() == 1, "position_ids must have shape [T], got %s", positions.shape)
  local x = self.stage_input and self.stage_input.x or self:decoder().embed_tokens(ids)
  return x, self.rotary:angles(positions, seq_lens), seq_lens
end

--- `inputs`, where it takes the hidden states of an earlier stage (stage_input) in place of embeddings. A model with
--- another `inputs` cannot be cut into stages.
CausalLM.staged_inputs = CausalLM.inputs

--- Returns the last hidden states, after the final norm: what the head takes.
---@param batch models.Batch
---@param attend (fun(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, attention: models.Attention): torch.Tensor)?
--- default: nn.attention within each sequence
---@param layers table<models.Layer, models.NewTokens>? see models.new_tokens
---@return torch.Tensor # [T, hidden]
---@return table # what the layers' MLPs returned besides: of a mixture of experts the router's logits [T, experts]
function CausalLM:hidden(batch, attend, layers)
  local x, angles, seq_lens, after = self:inputs(batch)
  local cos, sin = self.rotary:cos_sin(angles, { dtype = x.dtype })
  local takes_smaller_values = attend == nil
  attend = attend or function(q, k, v, attention)
    if attention.recur then return (attention:recur(q, k, v, seq_lens)) end
    return nn.attention(q, k, v, { seq_lens = seq_lens, window = attention.window or nil, scale = attention.scale,
      sinks = attention.sinks, blocks = attention.blocks, shares = batch.shares })
  end
  local stage = self.stage_input and self.stage_input.stage
  local y, seconds = self.model(x, { cos = cos, sin = sin, attend = attend, takes_smaller_values = takes_smaller_values,
    after = after, checkpoint = self.checkpoint, layers = layers, stage = stage })
  for i, second in ipairs(seconds) do seconds[i] = splits.whole_tokens(self, second) end
  return stage and not stage.is_last and y or splits.whole_tokens(self, y), seconds
end

CausalLM.staged_hidden = CausalLM.hidden -- as staged_inputs

--- Methods that forward calls by their name. What sharding.data_parallel returns has them, too.
---@type table<string, true>
CausalLM.computed_by_forward = plain.words "loss hidden log_probs"

--- Returns the logits. With what = "loss" the results of model:loss(batch), with "hidden" those of model:hidden(batch),
--- with "log_probs" those of model:log_probs(batch): for wrappers that watch forward, such as data_parallel.
---
---     local sum, count = replicas(batch, "loss")
---     local log_probs = replicas(batch, "log_probs", { temperature = 0.7 })
---@param batch models.Batch
---@param what ("logits"|"loss"|"hidden"|"log_probs")? default "logits"
---@param ... any further arguments of that method
---@return any ... # logits: [T, vocab_size], in the model's dtype
function CausalLM:forward(batch, what, ...)
  if what == nil or what == "logits" then return self:head((self:hidden(batch))) end
  check(CausalLM.computed_by_forward[what],
    'forward returns "logits", "loss", "hidden" or "log_probs", not "%s"', what)
  return self[what](self, batch, ...)
end

--- Overridden by a mixture of experts. Returns a term that the mean loss gets in addition, or nil.
---@param seconds table the second result of model:hidden
---@return torch.Tensor?
function CausalLM:balance_loss(seconds) end -- luacheck: ignore 212

--- Returns the sum of the next-token losses of the tokens in loss_mask, and how many they are. The first token of a
--- sequence has no loss. Divide the sum by the count of all ranks and micro-steps: a mean of means is not the mean.
--- While lockstep.graph records, the count is a tensor of one element.
---
--- A mixture of experts whose config says output_router_logits adds its balance loss, times router_aux_loss_coef and
--- the count, so that the mean has it once.
---@param batch models.Batch
---@return torch.Tensor sum float32
---@return integer count
function CausalLM:loss(batch) return scoring.loss(self, batch) end

--- Returns, for each token, its log-probability given the tokens before it in its sequence, and the entropy of the
--- distribution that it was drawn from. Both are 0 for the first token of a sequence. Differentiable; the logits of
--- tile_tokens tokens are held at a time, and computed again in backward.
---
---     local log_probs = model:log_probs(batch, { temperature = 0.7 })
---     local ratio = torch.exp(log_probs - batch.old_log_probs)
---@param batch models.Batch
---@param opts {temperature: number?, tile_tokens: integer?}? logits are divided by temperature; default 1 and 1,024
---@return torch.Tensor log_probs [T] float32, or float64 of such a model
---@return torch.Tensor entropy [T]
function CausalLM:log_probs(batch, opts) return scoring.log_probs(self, batch, opts) end

--- See models.generate.
---@param prompts (integer[]|torch.Tensor|models.Batch)[]
---@param opts models.GenerateOptions?
---@return integer[][]
function CausalLM:generate(prompts, opts) return generation.generate(self, prompts, opts) end

--- Overridden where files and memory differ: tables of tensors by their names on disk, the one to save first. Those
--- of the model are views of its parameters.
---@return table<string, torch.Tensor>[]
function CausalLM:layouts() return { self:state_dict() } end

return M
