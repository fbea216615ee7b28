--- LoRA: trains small adapters next to the frozen linear layers of a model, and exchanges them with PEFT.
---
---     local model = models.load("Qwen3-0.6B", { dtype = torch.bfloat16 })
---     lora.apply(model, { r = 16, alpha = 32, targets = { "q_proj", "v_proj" } })
---     local optimizer = optim.AdamW(model:parameters(), { lr = 2e-4, weight_decay = 0 })
---     ...
---     lora.save(model, run.dir .. "/adapter")       -- PEFT and vLLM load this folder
---
--- Apply or load adapters before optimizers are made. docs/lora.md has a whole script.

local across = require "lockstep.sharding.across"
local adapters = require "lockstep.lora.adapters"
local agreement = require "lockstep.state.agreement"
local core = require "lockstep.core"
local data_parallel = require "lockstep.sharding.data_parallel"
local dist = require "lockstep.distributed"
local experts = require "lockstep.lora.experts"
local files = require "lockstep.lora.files"
local few_bits = require "lockstep.nn.few_bits"
local fully_shard = require "lockstep.sharding.fully_shard"
local loading = require "lockstep.lora.loading"
local model_parts = require "lockstep.models.parts"
local models_folder = require "lockstep.models.folder"
local nn = require "lockstep.nn"
local options = require "lockstep.options"
local plain = require "lockstep.plain"
local replicas = require "lockstep.state.replicas"
local schedule_free = require "lockstep.optim.schedule_free"
local splits = require "lockstep.nn.splits"
local torch = require "lockstep.torch"

local M = {}

local function check_model(caller, model)
  local ok, method = pcall(function() return model.named_modules end)
  plain.check(type(model) == "table" and ok and type(method) == "function",
    "%s: expected a module, not a %s", caller, type(model))
end

local function has_stages(model) return require("lockstep.sharding.pipeline").is_one(model) end

--- Raises for a wrapper that holds no whole model, and for the module inside of a sharded or replicated model.
local function check_plain(caller, model)
  check_model(caller, model)
  if fully_shard.is_one(model) or data_parallel.is_one(model) then return end
  plain.check(not fully_shard.is_sharded(model), "%s: the module is sharded; give what sharding.fully_shard returned",
    caller)
  plain.check(not has_stages(model),
    "%s: the model's layers are divided into stages (pp); call this before sharding.parallelize", caller)
  if not nn.is_module(model) then core.raise(caller .. ": expected the module itself") end
end

--- The module itself of replicas. All else stays as it is.
local function inside(model) return data_parallel.is_one(model) and model.module or model end

--- Raises where layers are split: they are split together with the adapters that they have.
local function check_whole(caller, model)
  splits.refuse_module(caller, fully_shard.is_one(model) and fully_shard.net_of(model) or model,
    "call this before sharding.tensor_parallel or sharding.parallelize, which split adapters too")
end

--- Raises also for the module inside of data_parallel: each rank would have other adapters.
local function check_unused(caller, model)
  check_plain(caller, model)
  local own = inside(model)
  check_whole(caller, own)
  local net = fully_shard.is_one(own) and fully_shard.net_of(own) or own
  if nn.fields(net).stage_device then
    core.raise(caller .. ": the module has a pipeline's stages; call this before sharding.parallelize")
  end
  if rawequal(own, model) and not fully_shard.is_one(model) and data_parallel.has_replicas(model) then
    core.raise(caller .. ": the module has replicas; give what sharding.data_parallel returned")
  end
end

--- The adapters that a model has now.
---@return lora.Chosen
local function chosen_of(model)
  return { layers = adapters.adapted(model), holders = experts.adapted(model), saved = adapters.saved(model) }
end

--- Counts the adapters.
local function count_of(chosen)
  local count = #chosen.layers
  for _, holder in ipairs(chosen.holders) do count = count + #holder.parameters end
  return count
end

local function check_adapted(caller, model)
  check_model(caller, model)
  local chosen = chosen_of(model)
  if count_of(chosen) == 0 then core.raise(caller .. ": the model has no adapters; call lora.apply before") end
  return chosen
end

--- Returns the pipeline that a model is, or that its language model is on this rank.
local function stages_of(model) return has_stages(model) and model or rawget(model, "pipeline") end

--- Returns the tensors of all adapters on rank 0, where parts of the model are on other ranks. Collective.
local function gather(model)
  local tensors, stages = files.tensors_of(model), stages_of(model)
  local first = model.holders and model.holders.language or 0
  if stages and stages.group:ranks()[1] == first then -- other dp rows have the same
    tensors = model_parts.of_stages(tensors, {}, stages.group)
  end
  return model.holders and model_parts.gather(tensors, model.holders) or tensors
end

--- Raises where a parameter of a module that is saved as a whole has another name, under which it is not saved.
local function check_ties(caller, model, saved)
  local owners, is_saved = {}, {}
  for _, one in ipairs(saved) do
    for name, module in one.module:named_modules() do
      is_saved[name == "" and one.name or one.name .. "." .. name] = true
      for _, p in pairs(nn.fields(module)) do
        if torch.is_tensor(p) then owners[p] = one.name end
      end
    end
  end
  local function check(name, field, tensor)
    if not owners[tensor] or is_saved[name] then return end
    core.raise(string.format('%s: modules_to_save: "%s" shares its %s with "%s", which others would load without what '
      .. "was learned; list both", caller, owners[tensor], field, name))
  end
  adapters.each_tensor(model, check)
  local tied = adapters.tied_head(model)
  if tied then check(tied.name, "weight", nn.fields(tied.module).weight) end
end

--- Raises where a module that shall get adapters has two names. PEFT adapts the first place alone, so that a module
--- with an adapter in all its places could not be exchanged.
local function check_places(caller, model, chosen)
  local names, is_chosen = {}, {}
  for _, list in ipairs { chosen.layers, chosen.holders } do
    for _, one in ipairs(list) do is_chosen[one.module] = true end
  end
  for name, module in model:named_modules() do
    if is_chosen[module] and names[module] then
      core.raise(string.format('%s: "%s" and "%s" are one module, and PEFT\'s files can hold an adapter of one place '
        .. "only; leave it out, or give each place a module of its own", caller, names[module], name))
    end
    names[module] = name
  end
end

--- The module itself of a sharded model.
local function net_of(model) return fully_shard.is_one(model) and fully_shard.net_of(model) or model end

--- Returns a function that gives the whole value of a parameter, and one that gives a parameter a whole value.
local function access(model)
  if not fully_shard.is_one(model) then
    return function(p)
      local split = splits.of(p)
      return split and splits.whole(p, split) or p
    end, function(p, value)
      local split = splits.of(p)
      p:copy_(split and splits.own(value, split) or value)
    end
  end
  local names, whole_of = {}, fully_shard.whole_of(model)
  for name, p in net_of(model):named_parameters() do names[p] = name end
  return function(p) return whole_of(names[p]) end, function(p, value)
    if names[p] then fully_shard.load_values(model, { [names[p]] = value }) else p:copy_(value) end
  end
end

--- Gives a tied head its own weight, with the embedding's values.
local function untie(model, saved)
  local head, embedding
  local function change(net) head, embedding = adapters.untie(net, saved) end
  if fully_shard.is_one(model) then fully_shard.rebuild(model, change) else change(model) end
  local whole, set = access(model)
  torch.no_grad(function() set(head, whole(embedding)) end)
end

--- Freezes the model and adds adapters to what was chosen.
local function add_all(caller, model, chosen, options_of)
  local net = net_of(model)
  check_places(caller, net, chosen)
  if chosen.unties then untie(model, chosen.saved) end
  check_ties(caller, net, chosen.saved)
  local function add()
    net:requires_grad_(false)
    for _, one in ipairs(chosen.saved) do adapters.train_whole(one.module) end
    for _, one in ipairs(chosen.layers) do adapters.add(one.module, options_of(one.name)) end
    for _, holder in ipairs(chosen.holders) do experts.add(holder, options_of) end
  end
  if not fully_shard.is_one(model) then return add() end
  fully_shard.rebuild(model, add) -- the values of weights are not there meanwhile
  local whole, set = access(model)
  torch.no_grad(function()
    for _, one in ipairs(chosen.layers) do
      local magnitudes = one.module.lora_magnitude_vector
      if magnitudes then set(magnitudes, adapters.magnitudes(one.module, whole(one.module.weight))) end
    end
    for _, one in ipairs(chosen.saved) do adapters.fill_originals(one.module, whole) end
  end)
end

--- Gives all replicas the adapters that the first rank of their group has drawn.
local function share(model)
  if not data_parallel.is_one(model) then return end
  local first = model.group and model.group:ranks()[1] or 0
  for _, p in ipairs(model:parameters()) do
    if p.requires_grad then dist.broadcast(p:detach(), first, { group = model.group }) end
  end
end

---@class lora.Options
---@field r integer? rank of the update; default 16
---@field alpha number? the update is multiplied by alpha / r; default 32
---@field targets (string[]|string)? linear layers by their last names; default {"q_proj", "v_proj"}, which may also
---be written "q_proj,v_proj". "all-linear" takes all but the head, lm_head
---@field dropout number? probability that an input of an adapter is 0 in training; default 0
---@field rslora boolean? multiply by alpha / sqrt(r) (arXiv 2312.03732); default false
---@field dora boolean? learn each row's length apart from its direction (arXiv 2402.09353); default false
---@field parameters string[]? weights of experts, [experts, out, in], by last names: {"experts.gate_up_proj",
---"experts.down_proj"}. Without dropout and dora
---@field modules_to_save string[]? modules that are trained and saved as a whole, by last names: embeddings, heads

--- Adds an adapter to each target, and freezes all other parameters but those of modules_to_save. For a layer
--- y = W x + b with W [out, in], the adapter holds A [r, in], random, and B [out, r], zero at first. The layer then
--- computes y = W x + b + alpha / r * B A x. Adapters of bfloat16 and float16 layers are float32.
---
--- A target that matches no linear layer is an error that lists those there are. So is the head, lm_head: the loss
--- reads its weight without calling it. "all-linear" leaves out the head and the routers of mixtures of experts.
---
---     local count = lora.apply(model, { r = 8, targets = "all-linear", modules_to_save = { "lm_head" } })
---
--- A model of sharding.fully_shard is sharded again, with its adapters, and stays the object that it is. Replicas of
--- sharding.data_parallel get the adapters of their first rank. Make optimizers afterwards. Collective then.
---
--- Source: arXiv 2106.09685, as PEFT 0.21 computes it.
---@param model nn.Module|sharding.FullyShard|sharding.DataParallel
---@param opts lora.Options?
---@return integer count linear layers and parameters that have an adapter now
function M.apply(model, opts)
  check_unused("lora.apply", model)
  local o = options.read("lora.apply", opts, { r = 16, alpha = 32, targets = options.optional, dropout = 0,
    rslora = false, dora = false, modules_to_save = {}, parameters = {} })
  local function check(holds, what, value)
    if not holds then core.raise(string.format("lora.apply: %s, not %s", what, tostring(value))) end
  end
  check(o.r >= 1 and o.r % 1 == 0 and o.r < math.huge, "r must be a whole number of at least 1", o.r)
  check(o.alpha > 0 and o.alpha < math.huge, "alpha must be a number above 0", o.alpha)
  check(o.dropout >= 0 and o.dropout < 1, "dropout must be a number from 0 to below 1", o.dropout)
  check(#o.parameters == 0 or o.dropout == 0, "adapters of parameters have no dropout: it must be 0", o.dropout)
  check(#o.parameters == 0 or not o.dora, "adapters of parameters know no DoRA: dora must be false", o.dora)
  local targets = o.targets == nil and { "q_proj", "v_proj" } or o.targets
  if type(targets) == "string" and targets ~= "all-linear" then
    local names = {} -- as --set gives them
    for name in targets:gmatch "[^,%s]+" do names[#names + 1] = name end
    targets = names
  end
  check(targets == "all-linear" or type(targets) == "table" and #targets + #o.parameters > 0,
    'targets must be names of linear layers, as in {"q_proj", "v_proj"}, or "all-linear"',
    type(targets) == "table" and "an empty array" or targets)
  for _, names in ipairs { type(targets) == "table" and targets or {}, o.modules_to_save, o.parameters } do
    for _, name in ipairs(names) do check(type(name) == "string", "a name must be a string", name) end
  end
  if count_of(chosen_of(model)) > 0 then
    core.raise("lora.apply: the model has adapters already; call lora.merge first")
  end
  local own = inside(model)
  local net = net_of(own)
  local saved = adapters.find_modules_to_save("lora.apply", net, o.modules_to_save)
  local chosen = { saved = saved, layers = adapters.find_targets("lora.apply", net, targets, saved),
    holders = experts.find("lora.apply", net, o.parameters) }
  add_all("lora.apply", own, chosen, function() return o end)
  share(model)
  return count_of(chosen)
end

--- Writes the adapters into a folder as PEFT does: adapter_config.json and adapter_model.safetensors. Rank 0 writes; an
--- error of its disk is one on all ranks. Collective: every rank calls this.
---
---     lora.save(model, run.dir .. "/adapter")
---@param model any a module with adapters, or replicas of one
---@param dir string
function M.save(model, dir)
  local is_divided = across.is_one(model) -- into parts on several ranks, of which one may have none
  if not is_divided then check_adapted("lora.save", model) end
  plain.check(not is_divided or model.adapter_config, "lora.save: the model has no adapters; call lora.apply before "
    .. "%s", has_stages(model) and "sharding.parallelize" or "mimo.separate")
  if (has_stages(model) or is_divided and model.stages) and model.adapter_config.modules_to_save ~= core.null then
    core.raise("lora.save: modules_to_save does not go with stages (pp). models.save writes all weights; for the "
      .. "adapter go on with pp = 1 from the run's state")
  end
  if type(dir) ~= "string" then core.raise("lora.save: the folder must be a string, not a " .. type(dir)) end
  agreement.begin("lora.save") -- before the gathering of a sharded model
  replicas.check("lora.save", model)
  schedule_free.around(model:parameters(), function()
    local tensors = is_divided and gather(model) or files.tensors_of(model)
    agreement.together("lora.save", function()
      local adapter_config = is_divided and model.adapter_config or files.config_of(model)
      if dist.rank() == 0 then files.write(dir, adapter_config, tensors) end
    end)
  end)
end

--- Reads a folder that PEFT or lora.save wrote. A model without adapters gets them as its configuration says, like by
--- lora.apply; those that a model has must be the folder's. A setting that this module does not support is an error.
--- If the folder has other values for the head than for the embedding, and the model has one weight for both, the model
--- gets a head of its own.
---
--- Adapters of layers that sharding.parallelize has split take their parts of the folder's values. Such a model must
--- have adapters before it is split.
---
---     local count = lora.load(model, "adapter")
---@param model nn.Module|sharding.FullyShard|sharding.DataParallel|sharding.Pipeline
---@param dir string a folder, or OWNER/ADAPTER in Hugging Face's local cache
---@return integer count linear layers and parameters that have an adapter now
function M.load(model, dir)
  check_model("lora.load", model)
  local folder, chosen = loading.read(models_folder.find(dir, "lora.load")), chosen_of(net_of(model))
  if count_of(chosen) > 0 then
    loading.check_same(folder, chosen)
    loading.check_shapes(folder, chosen)
  else
    check_unused("lora.load", model)
    model = inside(model)
    chosen = loading.choose(net_of(model), folder)
    loading.check_shapes(folder, chosen)
    add_all("lora.load", model, chosen, function(path) return folder.wanted[path] end)
  end
  local _, set = access(model)
  loading.copy_in(folder, chosen, set)
  return count_of(chosen)
end

--- Adds each adapter to its layer's weight, and takes the adapters away: the model computes the same without them, and
--- models.save writes it for others. The sum is computed in float32 and rounded once. Parameters stay frozen. Save an
--- adapter that is needed later before this call. A layer in few bits gets a whole weight, in the dtype of the model:
--- what its bytes stand for, and the adapter.
---
---     lora.merge(model)
---@param model nn.Module|sharding.FullyShard|sharding.DataParallel
---@return integer count linear layers and parameters that had an adapter
function M.merge(model)
  check_adapted("lora.merge", model)
  plain.check(not has_stages(model),
    "lora.merge: the model's layers are divided into stages (pp); write the adapter with lora.save and then the whole "
    .. "model with lora.save_merged")
  check_plain("lora.merge", model)
  model = inside(model)
  local net = net_of(model)
  local chosen, owners, made_whole = chosen_of(net), {}, {}
  for _, one in ipairs(chosen.layers) do
    owners[one.module.weight] = one.name
    if few_bits.is_one(one.module) and fully_shard.is_one(model) then
      core.raise("lora.merge: the model is sharded, and its layers are in few bits, which whole weights cannot "
        .. "replace; save the adapter with lora.save, and call lora.save_merged with load_in_4bit or load_in_8bit")
    end
  end
  adapters.each_tensor(net, function(name, field, tensor)
    local owner = owners[tensor]
    if not owner or owner == name then return end
    core.raise(string.format('lora.merge: "%s" shares its weight with "%s" (%s), which merging would change, too',
      owner, name, field))
  end)
  local whole, set = access(model)
  schedule_free.around(model:parameters(), torch.no_grad, function()
    for _, one in ipairs(chosen.layers) do
      local merged, _, _, dtype = adapters.merged_weight(one.module, whole), few_bits.describe(one.module)
      if few_bits.is_one(one.module) then
        made_whole[one.module] = merged:to(dtype)
      else
        set(one.module.weight, merged)
      end
    end
    for _, holder in ipairs(chosen.holders) do
      for _, name in ipairs(holder.parameters) do
        set(nn.fields(holder.module)[name], experts.merged(holder.module, name, whole))
      end
    end
  end)
  local function remove()
    for _, one in ipairs(chosen.layers) do adapters.remove(one.module) end
    for _, holder in ipairs(chosen.holders) do experts.remove(holder) end
  end
  if fully_shard.is_one(model) then fully_shard.rebuild(model, remove) else remove() end
  for _, one in ipairs(chosen.saved) do adapters.forget_original(one.module) end
  for layer, weight in pairs(made_whole) do few_bits.restore(layer, weight) end
  return count_of(chosen)
end

--- Calls fn(...) as if the model had no adapters, modules_to_save as they were before training, and returns its
--- results, for a reference in preference training. It records nothing for backward. Adapters are on again afterwards,
--- also after an error.
---
---     local reference = lora.disabled(model, function() return model(batch) end)
---@param model any a module with adapters, or replicas of one
---@param fn fun(...): ...
---@param ... any
---@return any ...
function M.disabled(model, fn, ...)
  check_adapted("lora.disabled", model)
  plain.check(plain.is_callable(fn), "lora.disabled: fn must be a function or a module, not a %s", type(fn))
  return adapters.without(model, fn, ...)
end

--- Writes a model with the adapter of a folder in its weights, which loads without PEFT. Every rank reads the model,
--- and rank 0 writes.
---
---     lora.save_merged(run.dir .. "/adapter", run.dir .. "/model", { like = "Qwen/Qwen3-0.6B" })
---
--- load_in_4bit, load_in_8bit: as the adapter was trained. The weights are then those that it has learned with, if
--- `dtype` is the dtype of the model in training, too: other weights round to other numbers. dtype: default the
--- folder's.
---
--- Collective.
---@param adapter string a folder of lora.save or of PEFT
---@param dir string
---@param opts {like: string, ignore: string?, load_in_4bit: (boolean|models.FewBitsOptions)?, load_in_8bit:
--- (boolean|models.EightBitsOptions)?, dtype: torch.dtype?} the model's folder, and options of models.load
function M.save_merged(adapter, dir, opts)
  local o = options.read("lora.save_merged", opts, { like = options.required, ignore = "",
    load_in_4bit = options.optional, load_in_8bit = options.optional, dtype = options.optional })
  local models = require "lockstep.models" -- which needs this module
  local merged = models.load(o.like, { ignore = o.ignore, load_in_4bit = o.load_in_4bit,
    load_in_8bit = o.load_in_8bit, dtype = o.dtype })
  M.load(merged, adapter)
  M.merge(merged)
  models.save(merged, dir, { like = o.like })
end

M.save = agreement.counted(M.save)

return M
