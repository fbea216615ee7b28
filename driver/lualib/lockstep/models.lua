--- Language models: from a Hugging Face folder to a loss, to text, and back to a folder.
---
---     local model = models.load("Qwen/Qwen3-0.6B", { device = dist.device() })
---     local sum, count = model:loss(batch)             -- batch: input_ids [T], seq_lens, loss_mask, ...
---     models.save(model, run.dir .. "/model", { like = "Qwen/Qwen3-0.6B" })
---
--- docs/models.md lists the architectures, and shows how to add one.

local agreement = require "lockstep.state.agreement"
local classification = require "lockstep.models.classification"
local config = require "lockstep.models.config"
local core = require "lockstep.core"
local data_parallel = require "lockstep.sharding.data_parallel"
local decoder = require "lockstep.models.decoder"
local deepseek_v3 = require "lockstep.models.families.deepseek_v3"
local dist = require "lockstep.distributed"
local folder = require "lockstep.models.folder"
local few_bits = require "lockstep.models.few_bits"
local fully_shard = require "lockstep.sharding.fully_shard"
local gemma3 = require "lockstep.models.families.gemma3"
local gemma3_vision = require "lockstep.models.families.gemma3_vision"
local generation_config = require "lockstep.models.generation_config"
local gpt_oss = require "lockstep.models.families.gpt_oss"
local granite = require "lockstep.models.families.granite"
local init = require "lockstep.models.first_values"
local llama = require "lockstep.models.llama"
local loading = require "lockstep.models.loading"
local mistral = require "lockstep.models.families.mistral"
local mixtral = require "lockstep.models.families.mixtral"
local olmo = require "lockstep.models.families.olmo"
local options = require "lockstep.options"
local parameter = require "lockstep.nn.parameter"
local phi3 = require "lockstep.models.families.phi3"
local plain = require "lockstep.plain"
local quantized = require "lockstep.models.quantized"
local qwen2_5_vl = require "lockstep.models.qwen2_5_vl"
local qwen3 = require "lockstep.models.qwen3"
local qwen3_moe = require "lockstep.models.qwen3_moe"
local qwen3_next = require "lockstep.models.families.qwen3_next"
local qwen3_vl = require "lockstep.models.qwen3_vl"
local qwen3_vl_moe = require "lockstep.models.qwen3_vl_moe"
local read_once = require "lockstep.models.read_once"
local saving = require "lockstep.models.saving"
local schedule_free = require "lockstep.optim.schedule_free"
local shards = require "lockstep.data.shards"
local smollm3 = require "lockstep.models.families.smollm3"
local torch = require "lockstep.torch"

local M = {}

--- The base class of architectures; docs/models.md shows how to add one.
M.CausalLM = decoder.CausalLM
--- Attention of a decoder layer: a class to subclass.
M.Attention = decoder.Attention
--- A decoder layer: a class to subclass.
M.Layer = decoder.Layer
--- The gated MLP of a layer.
M.Mlp = decoder.Mlp
--- Returns the keys of config.json that an architecture reads: those of every decoder, and more.
M.keys = decoder.keys

local architectures = {} ---@type table<string, any>

--- Adds an architecture. A config whose `architectures` names it is built as class(config, {ignore = {...}}).
---
---     models.register("OlmoForCausalLM", Olmo)
---@param architecture string
---@param class any a subclass of models.CausalLM, or a module with its methods
function M.register(architecture, class)
  plain.check(type(architecture) == "string" and type(class) == "table",
    "models.register: expected the name of an architecture and a class")
  architectures[architecture] = class
end

M.register("LlamaForCausalLM", llama.Llama)
M.register("Qwen2ForCausalLM", llama.Qwen2)
M.register("Qwen3ForCausalLM", qwen3.Qwen3)
M.register("Qwen3MoeForCausalLM", qwen3_moe.Qwen3Moe)
M.register("Qwen3NextForCausalLM", qwen3_next.Qwen3Next)
M.register("MistralForCausalLM", mistral.Mistral)
M.register("MinistralForCausalLM", mistral.Ministral)
M.register("SmolLM3ForCausalLM", smollm3.SmolLM3)
M.register("Gemma3ForCausalLM", gemma3.Gemma3)
M.register("DeepseekV3ForCausalLM", deepseek_v3.DeepseekV3)
M.register("Gemma3ForConditionalGeneration", gemma3_vision.Gemma3Vision)
M.register("GptOssForCausalLM", gpt_oss.GptOss)
M.register("GraniteForCausalLM", granite.Granite)
M.register("MixtralForCausalLM", mixtral.Mixtral)
M.register("Olmo2ForCausalLM", olmo.Olmo2)
M.register("Olmo3ForCausalLM", olmo.Olmo3)
M.register("Phi3ForCausalLM", phi3.Phi3)
M.register("Qwen2_5_VLForConditionalGeneration", qwen2_5_vl.Qwen2_5_VL)
M.register("Qwen3VLForConditionalGeneration", qwen3_vl.Qwen3VL)
M.register("Qwen3VLMoeForConditionalGeneration", qwen3_vl_moe.Qwen3VLMoe)

--- The class of a config: by `architectures`, or by model_type where that is missing.
local function find_class(caller, raw)
  if type(raw) ~= "table" then core.raise(caller .. ": the config must be a table, got a " .. type(raw)) end
  local given = raw.architectures
  local first = type(given) == "table" and given[1] or ""
  plain.check(given == nil or given == core.null or type(given) == "table" and type(first) == "string",
    "%s: architectures of the config must be an array of names, got %s", caller,
    type(given) == "table" and "an array that begins with a " .. type(first) or tostring(given))
  local names = type(given) == "table" and given or {}
  if names[1] and architectures[names[1]] then return architectures[names[1]] end
  local base = classification.base_of(names[1])
  if base then return classification.class(names[1], architectures[base]) end
  for _, class in pairs(architectures) do
    if not names[1] and class.model_type and class.model_type == raw.model_type then return class end
  end
  core.raise(string.format('%s: unknown architecture "%s" (known: %s; models.register adds one)', caller,
    tostring(names[1] or raw.model_type), table.concat(plain.keys(architectures), ", ")))
end

--- Returns a model of random weights, as transformers draws them: matrices normal with the config's initializer_range
--- as their deviation, biases 0, norms 1.
---
---     local model = models.build { model_type = "qwen3", vocab_size = 1000, hidden_size = 64, ... }
---@param raw table<string, any> as config.json has it
---@param opts {dtype: torch.dtype?, device: string?, ignore: string[]|string?}? default float32 on the CPU; ignore:
--- keys of the config that are passed over as if they were absent, in a string split by commas
---@return models.CausalLM
function M.build(raw, opts)
  local o = options.read("models.build", opts, { dtype = options.optional, device = "cpu", ignore = options.optional })
  local dtype = o.dtype == nil and torch.float32 or o.dtype
  config.check_dtype("models.build", dtype)
  local class = find_class("models.build", raw)
  local model = parameter.on_meta(class, raw, { ignore = config.ignored(o.ignore) })
  return init.fill(model, { dtype = dtype, device = o.device, deviation = raw.initializer_range or 0.02 })
end

--- Returns a model whose parameters have shapes and no memory, for those who count them. Private to the library.
---@param caller string for messages
---@param raw table<string, any>
---@return models.CausalLM
function M.outline(caller, raw) return parameter.on_meta(find_class(caller, raw), raw, { ignore = {} }) end

---@class models.LoadOptions
---@field dtype torch.dtype? default: the config's, else the files'
---@field device string? default "cpu"
---@field ignore string[]|string? as for models.build
---@field shard sharding.FullyShardOptions?
---@field part "visual"|"language"|nil
---@field grid sharding.Grid?
---@field parallel sharding.ParallelOptions?
---@field read_once boolean|dist.Group|nil
---@field load_in_4bit boolean|models.FewBitsOptions|nil
---@field load_in_8bit boolean|models.EightBitsOptions|nil
---@field num_labels integer? gives a language model a new head for sequence classification

--- Loads a model from a Hugging Face folder: config.json and *.safetensors, in one file or in several with an index.
---
--- Files are mapped into memory. On the CPU weights of the same dtype stay there until they are changed, so ranks of
--- one machine share them; do not shorten the files in place meanwhile.
---
--- shard: the options of sharding.fully_shard, whose result is returned. Each rank reads the part of each parameter
--- that it keeps, so that no rank needs memory for the whole model. Collective.
---
---     local model = models.load(dir, { dtype = torch.float32, shard = { param_dtype = torch.bfloat16 } })
---
--- grid: of sharding.grid; `parallel` has the options of sharding.parallelize, whose result is returned. Each rank
--- reads the parts of the weights that it keeps. Collective.
---
---     local model = models.load(dir, { grid = sharding.grid { tp = 2 }, parallel = { sequence = true } })
---
--- part: a part of a model of pictures, for a module on its own ranks; the rest is neither read nor kept. "visual" is
--- the tower: model(batch) and model:visual(batch) return its tokens. "language" is all else, and takes these tokens as
--- batch.visual. models.save writes the parts of all ranks as one folder.
---
--- read_once: one rank reads the weights and sends them to the others, in place of a read by every rank: for storage
--- that many machines share. true: all ranks load the same model; or the group of those that do. With `grid`: the ranks
--- of dp and cp, whose parts are the same. With parameters shared out over ranks (`shard`, fully_shard of `parallel`)
--- each rank reads its own part anyway. The receivers hold the weights in memory of their own. Collective.
---
---     local model = sharding.data_parallel(models.load(dir, { read_once = true }))
---
--- load_in_4bit: linear layers keep their weights in 4 bits, as bitsandbytes does, and are frozen: train adapters
--- (lora.apply). true, or a table of options: quant_type "nf4" or "fp4", double_quant, compute_dtype, skip. The head,
--- routers and experts stay whole. A folder in 4 bits needs no option; false reads it whole. With `shard` each rank
--- makes the whole model in 4 bits first, and then keeps its part.
---
---     local model = models.load("Qwen/Qwen3-8B", { load_in_4bit = true })       -- QLoRA: docs/lora.md
---
--- load_in_8bit: the same in 8 bits, as LLM.int8. The options are compute_dtype and skip. A folder in 8 bits is read
--- whole without the option where layers cannot keep 8 bits: with grid, part, read_once, or in float64.
---
--- num_labels: a language model gets a head with random weights, `score`, in place of its own. model(batch) returns
--- [sequences, num_labels]. A folder of a ...ForSequenceClassification, as models.save writes it then, needs no option.
---
---     local judge = models.load("Qwen/Qwen3-0.6B", { num_labels = 1 })       -- to become a reward model
---@param dir string a folder, or OWNER/MODEL in Hugging Face's local cache
---@param opts models.LoadOptions?
---@return models.CausalLM|sharding.FullyShard|sharding.DataParallel|sharding.Pipeline
function M.load(dir, opts)
  local o = options.read("models.load", opts, { dtype = options.optional, device = "cpu", ignore = options.optional,
    shard = options.optional, part = options.optional, grid = options.optional, parallel = options.optional,
    num_labels = options.optional, read_once = options.optional, load_in_4bit = options.optional,
    load_in_8bit = options.optional })
  plain.check(o.grid ~= nil or o.parallel == nil, "models.load: parallel is for a grid; give grid = sharding.grid {}")
  plain.check(o.grid == nil or o.shard == nil and o.part == nil, "models.load: %s is not for a model on a grid%s",
    o.part and "part" or "shard", o.part and "" or "; give parallel = { fully_shard = { ... } }")
  local once = o.read_once
  plain.check(not once or not o.shard,
    "models.load: read_once is for ranks that hold the same weights; with shard each rank reads its own part")
  plain.check(once ~= true or not o.part, "models.load: read_once = true is for ranks that load the same; with part "
    .. "give the group of the ranks that load it")
  if once and o.grid then
    plain.check(once == true, "models.load: read_once is true for a model on a grid, whose groups are known")
    plain.check((o.grid.ep or 1) == 1, "models.load: read_once does not know which experts are the same on a grid with "
      .. "ep = %s; leave it out", o.grid.ep)
    once = o.parallel and o.parallel.fully_shard == false and o.grid:group "dp_cp" or nil
  end
  if o.dtype ~= nil then config.check_dtype("models.load", o.dtype) end
  local path = folder.find(dir, "models.load")
  local raw, text = config.read(path)
  local changes = o.num_labels ~= nil and classification.changes(raw, o.num_labels) or nil
  raw = plain.copy(raw, changes)
  local class, tensors = find_class("models.load", raw), shards.read(path, "models.load")
  config.check_layers(raw, #plain.keys(tensors), path)
  local model = parameter.on_meta(class, raw, { ignore = config.ignored(o.ignore) })
  model.source, model.config_text, model.config_changes = dir, text, changes
  model.generation, model.stop_ids = generation_config.read(path)
  config.check_stop_ids("config.json", raw.eos_token_id, model.settings.vocab_size)
  config.check_stop_ids("generation_config.json", model.stop_ids, model.settings.vocab_size)
  local how = { path = path, device = o.device, dtype = o.dtype or config.dtype(raw), shard = o.shard,
    once = read_once.of(once) }
  if changes then
    classification.add_head(tensors, raw, o.num_labels)
    local group = o.shard and o.shard.group or nil
    if o.grid or o.shard then -- each rank has drawn its own
      dist.broadcast(tensors["score.weight"], group and group:ranks()[1] or 0, { group = group })
    end
  end
  local given = config.quantization(raw, config.ignored(o.ignore))
  how.few_bits = few_bits.options(o, given)
  how.packed, how.matrices = quantized.take(tensors, given, how.dtype)
  if how.few_bits then
    few_bits.check_alone(how.few_bits, o)
    loading.fill(model, tensors, how)
    return o.shard and fully_shard.fully_shard(model, o.shard) or model
  end
  if o.part ~= nil then loading.take_part(model, tensors, o.part, how) end
  if o.grid then
    how.parallel = o.parallel
    return loading.fill_grid(model, tensors, o.grid, how)
  end
  if o.shard then return loading.fill_sharded(model, tensors, how) end
  loading.fill(model, tensors, how)
  return model
end

--- Writes a model as transformers does: weights in files of at most 5 GB with an index, and config.json. The folder
--- appears once it is complete; it replaces the weights and the config of a model that was there.
---
--- Collective: every rank calls this, rank 0 writes, and all return when the folder is complete. The parameters of a
--- model that sharding.fully_shard returned are gathered, which takes the memory of the whole model on each rank.
---
--- Where ranks have parts of a model (models.load), each gives its own, or an array of them, and rank 0 writes all
--- parts as one folder. If several ranks have a part, the first of them provides it. If no rank has some part, every
--- rank gets an error.
---@param model models.CausalLM|sharding.DataParallel|sharding.FullyShard|any[]
---@param dir string
---@param opts {like: string?, max_shard_bytes: integer?}? like: a folder whose config.json, tokenizer and other small
--- files are copied (config.json gets the dtype of the weights); default: config.json alone
function M.save(model, dir, opts)
  plain.check(type(dir) == "string" and dir ~= "", "models.save: the folder must be a path, got %s",
    dir == "" and "an empty string" or "a " .. type(dir))
  local o = options.read("models.save", opts, { like = options.optional, max_shard_bytes = 5e9 })
  plain.check(o.max_shard_bytes >= 1 and math.floor(o.max_shard_bytes) == o.max_shard_bytes,
    "models.save: max_shard_bytes must be a whole number of at least 1, got %s", o.max_shard_bytes)
  saving.save(model, (dir:gsub("(.)/+$", "%1")), o)
end

---@class models.GenerateOptions
---@field max_new_tokens integer|integer[]|nil default 64; an array has one number for each prompt
---@field max_batch_size integer? prompts that run at a time; default: all. The others wait, and the next one enters
--- when a sequence ends
---@field temperature number? default 0
---@field top_k integer? draws from so many of the most probable tokens
---@field top_p number? draws from the most probable tokens that have this probability together
---@field min_p number? draws from tokens with at least this share of the largest probability
---@field seed integer? default: from torch's generator
---@field numbers integer[]? of each prompt; default 1, 2, 3 and so on. With one seed, a prompt draws the same under the
--- same number, whichever prompts a call has besides: for answers that do not depend on the number of ranks
---@field stop integer[]? ids that end a sequence; default: eos_token_id of generation_config.json, else of config.json
---@field suppress integer[]? ids that are never drawn. A model of pictures that learns from its own answers needs its
--- placeholders here: without a picture a placeholder is an error
---@field begin_suppress integer[]? ids that are never drawn as the first new one
---@field forced_begin integer[]? after a prompt of one id, the first new id is one of these
---@field forced_end integer[]? the last of max_new_tokens ids is one of these
---@field repetition_penalty number? default 1. Logits of ids that the sequence has already, prompt included, are
--- divided by it if they are positive, and else multiplied
---@field graph boolean? repeats a recording for new tokens, as lockstep.graph does; default: on a GPU. Lua of a module
--- class of your own then runs for the first tokens alone. Layers that cannot be recorded run without a graph
---@field on_token (fun(prompt: integer, id: integer))? is called with each new id at once; prompts count from 1

--- Returns the ids that a model writes after each prompt, in the order of the prompts. Prompts of different lengths
--- run together, and those that are the same are computed once.
---
---     local ids = models.generate(model, { tok:encode("Once upon a time") }, { max_new_tokens = 100 })[1]
---     models.generate(model, prompts, { temperature = 0.7, top_p = 0.9, seed = 1 })
---     models.generate(model, prompts, model.generation)      -- as generation_config.json of the folder says
---     models.generate(model, prompts, { max_batch_size = 64 })  -- of any number of prompts, 64 at a time
---
--- temperature 0 takes the most probable token; else top_k and top_p apply to the logits / temperature. With a seed a
--- prompt at the same place gets the same ids, whatever the other prompts are, within the rounding of logits. A stop id
--- is the last id of its sequence. New tokens run in torch.inference_mode: training cannot use a tensor that a class of
--- your own keeps from there.
---@param model models.CausalLM|sharding.DataParallel|sharding.FullyShard
---@param prompts (integer[]|torch.Tensor|models.Batch)[]
---@param opts models.GenerateOptions?
---@return integer[][] # the new ids of each prompt
function M.generate(model, prompts, opts)
  if data_parallel.is_one(model) then model = model.module end
  return schedule_free.around(model:parameters(), function() return model:generate(prompts, opts) end)
end

--- Returns what a model answers to each prompt, as text: without special tokens, without reasoning in <think>, and
--- without white space around it. A rank without prompts gets no answers.
---
---     local answers = models.answers(model, tokenizer, prompts, { max_new_tokens = 64 })
---@param model models.CausalLM|sharding.DataParallel|sharding.FullyShard
---@param tokenizer text.Tokenizer
---@param prompts (integer[]|torch.Tensor|models.Batch)[]
---@param opts models.GenerateOptions?
---@return string[]
function M.answers(model, tokenizer, prompts, opts)
  local answers = {}
  for i, ids in ipairs(#prompts > 0 and M.generate(model, prompts, opts) or {}) do
    local answer = tokenizer:decode(ids, { skip_special = true }):gsub("^%s*<think>.-</think>", "")
    answers[i] = answer:match "^%s*(.-)%s*$"
  end
  return answers
end

--- Returns the position ids of one sample, before it is packed: 0, 1, 2, ... for text; architectures with images have
--- three rows.
---@param raw table<string, any> as config.json has it
---@param sample models.Batch
---@return torch.Tensor # int64 [T], or [3, T]
function M.position_ids(raw, sample)
  return find_class("models.position_ids", raw).positions(raw, sample)
end

M.save = agreement.counted(M.save)
M.exact_answers = require("lockstep.models.exact_answers").exact_answers
M.generate_turns = require("lockstep.models.generate_turns").generate_turns
M.server = require("lockstep.models.server").server

return M
