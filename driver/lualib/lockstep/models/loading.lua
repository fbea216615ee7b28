--- Puts the tensors of files into a model that was built without memory.
---
--- On the CPU a parameter takes the mapped file as its memory where dtype and layout agree: nothing is copied until
--- the parameter is changed, and then page by page. Everything else is copied once. A rank of a sharded model reads
--- what it keeps of each parameter.

local config = require "lockstep.models.config"
local core = require "lockstep.core"
local few_bits = require "lockstep.models.few_bits"
local fully_shard = require "lockstep.sharding.fully_shard"
local nn = require "lockstep.nn"
local parallelize = require "lockstep.sharding.parallelize"
local plain = require "lockstep.plain"
local read_once = require "lockstep.models.read_once"
local splits = require "lockstep.nn.splits"
local torch = require "lockstep.torch"

local M = {}

local function fail(message, ...) core.raise("models.load: " .. message:format(...)) end

local function count_differences(layout, tensors)
  local count = 0
  for name in pairs(layout) do count = count + (tensors[name] and 0 or 1) end
  for name in pairs(tensors) do count = count + (layout[name] and 0 or 1) end
  return count
end

local function shape(tensor) return tostring(tensor.shape) end

local function all_shapes_agree(layout, tensors)
  for name, own in pairs(layout) do
    if tensors[name] and shape(tensors[name]) ~= shape(own) then return false end
  end
  return true
end

--- The index of the layout that the files have. Names decide, then shapes.
local function choose(layouts, tensors)
  local best, fewest = 1, math.huge
  for i, layout in ipairs(layouts) do
    local differences = count_differences(layout, tensors)
    if differences < fewest or (differences == fewest and not all_shapes_agree(layouts[best], tensors)
        and all_shapes_agree(layout, tensors)) then
      best, fewest = i, differences
    end
  end
  return best
end

--- Drops tensors that the model does not need: old versions saved the rotary frequencies, and some folders hold a
--- head although it is tied.
local function drop_copies(model, tensors, opts)
  local noted = {}
  for name, tensor in pairs(tensors) do
    local unread = model.is_unread and model:is_unread(name)
    if type(unread) == "string" then noted[unread] = (noted[unread] or 0) + 1 end
    if name:match("%.rotary_emb%.inv_freq$") or unread then
      tensors[name] = nil
    elseif name == "lm_head.weight" and model.settings.tie_word_embeddings then
      local embedding = tensors["model.embed_tokens.weight"] or tensors["model.language_model.embed_tokens.weight"]
      local is_read = read_once.reads(opts.once)
      if embedding and is_read and not (shape(embedding) == shape(tensor) and torch.equal(embedding, tensor)) then
        fail("the config ties the head to the embedding (tie_word_embeddings), but lm_head.weight differs from it")
      end
      tensors[name] = nil
    end
  end
  for what, count in pairs(noted) do
    config.note("%s: %d tensors of %s are passed over, as in transformers", opts.path, count, what)
  end
end

local function list(names)
  table.sort(names)
  local shown = {}
  for i = 1, math.min(#names, 5) do shown[i] = names[i] end
  return table.concat(shown, ", ") .. (#names > 5 and string.format(" and %d more", #names - 5) or "")
end

local function check(path, layout, tensors)
  local missing, unknown, wrong = {}, {}, {}
  for name, own in pairs(layout) do
    local tensor = tensors[name]
    if not tensor then
      missing[#missing + 1] = name
    elseif shape(tensor) ~= shape(own) then
      wrong[#wrong + 1] = string.format("%s has shape %s, the config makes it %s", name, shape(tensor), shape(own))
    elseif not tensor:is_floating_point() or tensor:element_size() < 2 then
      wrong[#wrong + 1] = string.format("%s is %s; quantized weights are not supported", name, tostring(tensor.dtype))
    end
  end
  for name in pairs(tensors) do
    if not layout[name] then unknown[#unknown + 1] = name end
  end
  local problems = {}
  if #wrong > 0 then problems[#problems + 1] = list(wrong) end
  if #missing > 0 then problems[#problems + 1] = string.format("%d are missing: %s", #missing, list(missing)) end
  if #unknown > 0 then
    problems[#problems + 1] = string.format("%d are not in the model: %s", #unknown, list(unknown))
  end
  if #problems > 0 then fail("the tensors in %s contradict config.json: %s", path, table.concat(problems, "; ")) end
end

--- The layout of a model that the files have. Throws where they contradict it.
local function layout_of(model, tensors, opts)
  drop_copies(model, tensors, opts)
  local layouts = model:layouts()
  local index = choose(layouts, tensors)
  check(opts.path, layouts[index], tensors)
  return layouts[index], index
end

--- Leaves one part of a model that was built on "meta", and of its tensors. Throws if the files contradict the whole.
---@param model models.CausalLM
---@param tensors table<string, torch.Tensor> by name on disk; is changed
---@param part string
---@param opts {path: string}
function M.take_part(model, tensors, part, opts)
  local is_known = false
  for _, name in ipairs(model.parts) do is_known = is_known or name == part end
  if not is_known then
    fail("part = %s: %s has %s", tostring(part), model.class_name,
      #model.parts > 0 and 'the parts "' .. table.concat(model.parts, '" and "') .. '"' or "no parts")
  end
  local _, index = layout_of(model, tensors, opts)
  model:take_part(part)
  local kept = model:layouts()[index]
  for name in pairs(tensors) do
    if not kept[name] then tensors[name] = nil end
  end
end

--- Whether a parameter lies in the files as in memory.
local function is_as_on_disk(layout, name, own)
  return layout[name] and layout[name]:is_contiguous() and shape(layout[name]) == shape(own)
end

--- Returns a function that returns a tensor of the files by its name.
local function reader(tensors, opts)
  return function(name)
    local read = opts.packed[name]
    return read and read() or tensors[name]
  end
end

--- Gives buffers their values. They have memory before, and keep their dtype; their names on disk are the same.
local function fill_buffers(model, read, opts)
  for name, buffer in model:named_buffers() do
    if read_once.reads(opts.once) then buffer:copy_(read(name)) end
    if opts.once then read_once.pass_on(opts.once, buffer) end
    buffer:set_data(buffer:to(opts.device))
  end
end

---@class models.HowToLoad
---@field path string
---@field device string
---@field dtype torch.dtype?
---@field packed table<string, fun(): torch.Tensor> see models.quantized
---@field matrices table<string, nn.FewBitsMatrix> of these, by name
---@field few_bits models.FewBitsOptions? where layers keep 4 or 8 bits
---@field shard sharding.FullyShardOptions?
---@field parallel sharding.ParallelOptions? of a model on a grid
---@field once models.ReadOnce?

--- Returns stand-ins for the tensors of a state, which keep their whole shapes when layers are split.
local function outlines(state)
  local copies = {}
  for name, tensor in pairs(state) do
    copies[name] = torch.empty(tensor.shape, { dtype = tensor.dtype, device = "meta" })
  end
  return copies
end

--- Puts the whole value of a parameter together that the files hold in another form, such as experts one by one.
local function assemble(model, own, index, read, name, dtype)
  local state = plain.copy(own)
  state[name] = torch.empty(own[name].shape, { dtype = dtype })
  local with_state = setmetatable({ state_dict = function() return state end }, { __index = model })
  for disk_name, view in pairs(model.layouts(with_state)[index]) do
    if view.device ~= "meta" then view:copy_(read(disk_name)) end
  end
  return state[name]
end

--- Gives each parameter of a model that was built on "meta" its values from the files.
---@param model models.CausalLM
---@param tensors table<string, torch.Tensor> by name on disk; is changed
---@param opts models.HowToLoad
function M.fill(model, tensors, opts)
  local read = reader(tensors, opts)
  local layout, index = layout_of(model, tensors, opts)
  local names, own, values, copied = {}, model:state_dict(), {}, {}
  for name, p in model:named_parameters() do names[p] = name end
  local is_read, order = read_once.reads(opts.once), {}
  local in_few_bits = opts.few_bits and few_bits.choose(model, opts.few_bits, opts.matrices) or {}
  for _, place in ipairs(nn.parameter_places(model)) do
    local name, chosen = names[place.tensor], place.name == "weight" and in_few_bits[place.fields]
    local is_there = is_as_on_disk(layout, name, own[name])
    if not values[name] then order[#order + 1] = name end
    if chosen and is_there then
      values[name] = nil -- stays on "meta" until the end, where it is read one at a time
    elseif not values[name] and is_there then
      values[name] = is_read and read(name):to { device = opts.device, dtype = opts.dtype }
        or torch.empty(own[name].shape, { device = opts.device, dtype = opts.dtype or tensors[name].dtype })
    elseif not values[name] then
      values[name] = torch.empty(place.tensor.shape, { device = opts.device, dtype = opts.dtype })
      copied[name] = true
    end
    if values[name] then place.fields[place.name] = values[name]:requires_grad_(true) end
  end
  read_once.by_source(opts.once, function()
    torch.no_grad(function()
      for name, view in pairs(next(copied) and model:layouts()[index] or {}) do
        if copied[name] or not values[name] and view.device ~= "meta" then view:copy_(read(name)) end
      end
    end)
  end)
  for _, name in ipairs(opts.once and order or {}) do read_once.pass_on(opts.once, values[name]) end
  fill_buffers(model, read, opts)
  for _, one in pairs(in_few_bits) do
    few_bits.convert(one, function()
      return values[one.name] or read(one.name):to { device = opts.device, dtype = opts.dtype }
    end, opts)
  end
end

--- Makes the whole value of each parameter, one at a time, where take(name) is true, and gives it to put(name, whole).
local function each_value(model, files, opts, wants, put)
  for _, name in ipairs(files.names) do
    if wants(name) then
      local is_there = is_as_on_disk(files.layout, name, files.own[name])
      put(name, is_there and files.read(name)
        or assemble(model, files.own, files.index, files.read, name, opts.dtype or files.own[name].dtype))
    end
  end
end

--- Returns what the files hold of a model, before its layers are split.
local function read_files(model, tensors, opts)
  local layout, index = layout_of(model, tensors, opts)
  local files = { layout = layout, index = index, tensors = tensors, own = outlines(model:state_dict()), names = {},
    read = reader(tensors, opts) }
  for name in model:named_parameters() do table.insert(files.names, name) end
  fill_buffers(model, files.read, opts)
  return files
end

--- The dtype that a parameter gets.
local function dtype_on_disk(files, name, opts)
  local is_there = is_as_on_disk(files.layout, name, files.own[name])
  return opts.dtype or (is_there and files.tensors[name] or files.own[name]).dtype
end

--- Shards a model whose files have been read. A parameter that the files hold in another form is put together by the
--- ranks that keep a part of it, one parameter at a time.
local function shard(model, files, opts, shards)
  local function dtype_of(name) return dtype_on_disk(files, name, opts) end
  local sharded, take = fully_shard.from_meta(model, shards, dtype_of, opts.device)
  local kept = {}
  for name, part in sharded:named_parameters() do kept[name] = part:numel() > 0 end
  each_value(model, files, opts, function(name) return kept[name] end, take)
  return sharded
end

--- Shards a model that was built on "meta".
---@param model models.CausalLM
---@param tensors table<string, torch.Tensor> by name on disk; is changed
---@param opts models.HowToLoad
---@return sharding.FullyShard
function M.fill_sharded(model, tensors, opts)
  return shard(model, read_files(model, tensors, opts), opts, opts.shard)
end

--- Puts a model that was built on "meta" on a grid. Each rank reads the parts of the weights that it keeps.
---@param model models.CausalLM
---@param tensors table<string, torch.Tensor> by name on disk; is changed
---@param grid sharding.Grid
---@param opts models.HowToLoad
---@return sharding.FullyShard|sharding.DataParallel|sharding.Pipeline
function M.fill_grid(model, tensors, grid, opts)
  local files = read_files(model, tensors, opts)
  return parallelize.on_meta(model, grid, opts.parallel, function(shards)
    if shards then return shard(model, files, opts, shards) end
    local metas, values = {}, {}
    for name, p in model:named_parameters() do metas[name] = p end
    local function put(meta, value)
      values[meta] = value:requires_grad_(true)
      splits.move(meta, values[meta])
    end
    local function is_read(name) return metas[name] ~= nil and read_once.reads(opts.once) end
    each_value(model, files, opts, is_read, function(name, whole)
      local split = splits.of(metas[name])
      local part = split and splits.own(whole, split, name):contiguous():clone() or whole
      put(metas[name], part:to { device = opts.device, dtype = opts.dtype })
    end)
    for _, name in ipairs(opts.once and files.names or {}) do
      local meta = metas[name]
      if meta and not values[meta] then
        put(meta, torch.empty(meta.shape, { device = opts.device, dtype = dtype_on_disk(files, name, opts) }))
      end
      if meta then read_once.pass_on(opts.once, values[meta]) end
    end
    for _, place in ipairs(nn.parameter_places(model)) do place.fields[place.name] = values[place.tensor] end
  end)
end

return M
