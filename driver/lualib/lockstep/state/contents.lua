--- Converts a run's objects to tensors by name and plain values, and back.
---
--- A module's tensors go by their own names where it is registered as "model", so that the folder reads as one of
--- Hugging Face's; behind the registered name otherwise. An optimizer's go by the parameters that they belong to:
--- "optimizer.state.layers.0.weight.exp_avg". Both are alike on every rank, and written once. All else is a value.

local core = require "lockstep.core"
local core_state = require "lockstep.core.state"
local data_parallel = require "lockstep.sharding.data_parallel"
local dist = require "lockstep.distributed"
local files = require "lockstep.core.files"
local plain = require "lockstep.plain"
local sharded = require "lockstep.state.sharded"
local stage_parameters = require "lockstep.sharding.pipeline.parameters"
local torch = require "lockstep.torch"

local M = {}

local VALUES = "lockstep.values."
local PER_RANK = "lockstep.rank-%d.values."

-- Kinds of objects ------------------------------------------------------------------------------------

--- A method of an object, nil where it has none: also of a table that complains about unknown keys.
local function method(object, name)
  local ok, found = pcall(function() return object[name] end)
  return ok and type(found) == "function" and found or nil
end

--- "module", "optimizer", "stateful" (state_dict, load_state_dict), "position" (state, load_state), "table".
---@param name string
---@param object any
---@return string
function M.kind_of(name, object)
  if type(object) == "table" and not getmetatable(object) and not method(object, "state_dict") then return "table" end
  if type(object) == "table" or type(object) == "userdata" then
    if method(object, "named_parameters") and method(object, "named_buffers") then return "module" end
    if method(object, "state_dict") and method(object, "load_state_dict") then
      return type(object.groups) == "table" and "optimizer" or "stateful"
    end
    if method(object, "state") and method(object, "load_state") then return "position" end
  end
  core.raise(('run:state: "%s" is %s; it can be a module, an optimizer, a dataset, any object with state_dict() and '
    .. 'load_state_dict(state), or a plain table, as in %s = { best = 0 }'):format(name,
    torch.is_tensor(object) and "a tensor" or "a " .. type(object), name))
end

--- Returns the path of the first table within `value` that has a metatable, and the table; or nothing.
local function find_metatable(value, seen)
  if type(value) ~= "table" or seen[value] then return end
  seen[value] = true
  if getmetatable(value) ~= nil then return "", value end
  local first, first_found
  for key, element in next, value do
    local path, found = find_metatable(element, seen)
    if path then
      path = (type(key) == "string" and "." .. key or ("[%s]"):format(tostring(key))) .. path
      if not first or path < first then first, first_found = path, found end
    end
  end
  return first, first_found
end

--- Why a value would not come back as it is: a module or another table with a metatable in it. "" where it would.
---@param name string of the object that it is of
---@param value any
---@return string
function M.plain_mismatch(name, value)
  local path, found = find_metatable(value, {})
  if not path then return "" end
  local has_kind, kind = pcall(M.kind_of, name, found)
  if has_kind then
    local is = { module = "a module", optimizer = "an optimizer" }
    return ('"%s": value%s is %s, which would be restored as a plain table without its state; register it by '
      .. "its own name, as in run:state { %s = ... }"):format(name, path, is[kind] or "an object with a state",
      path:match("([%a_][%w_]*)$") or "model")
  end
  return ('"%s": value%s is a table with a metatable, which would be restored without it; give it state_dict() and '
    .. "load_state_dict(state) and register it by its own name, or keep its plain values"):format(name, path)
end

---@class state.Tensor
---@field name string in the files
---@field tensor torch.Tensor of a part: the whole tensor's dtype and shape, on "meta"
---@field is_model boolean
---@field may_wait boolean? nothing writes to it but operators, so that it may be copied later
---@field part state.Part? this rank's part, where no rank holds the whole
---@field object string the registered name
---@field field string? of an optimizer's state
---@field absorb (fun())? lets an optimizer take what was copied into its tensors
---@field stage pipeline.Place? of a model whose layers are on several ranks
---@field holder integer? the rank that writes it, where not every rank has it: see state/stages.lua

--- An entry of a parameter's tensor, or of its part.
local function entry_of(entry, of)
  entry.stage = stage_parameters.of(of)
  entry.part = sharded.part(of, entry.tensor)
  if entry.part then entry.tensor = sharded.outline(entry.part) end
  return entry
end

--- Parameters and buffers, a tensor that several names share under the first.
local function tensors_of_module(name, module)
  local prefix = name == "model" and "" or name .. "."
  local found = {}
  for i, iterate in ipairs { module.named_parameters, module.named_buffers } do
    for own, tensor in iterate(module) do
      -- A kernel may write to a buffer without saying so, as batch_norm's does to its running mean.
      found[#found + 1] = entry_of({ name = prefix .. own, tensor = tensor:detach(), is_model = name == "model",
        of = tensor, object = name, may_wait = i == 1 }, tensor)
    end
  end
  return found
end

--- The tensors of each parameter: in the order of the groups, under the parameter's name if a module has it.
local function tensors_of_optimizer(name, optimizer, names)
  local found, saved, index = {}, optimizer:state_dict(), 0
  local states = saved.states
  local function absorb() optimizer:absorb(saved) end
  for _, group in ipairs(optimizer.groups) do
    for _, p in ipairs(group.params) do
      index = index + 1
      for field, tensor in pairs(states[index]) do
        if stage_parameters.of(p) and not names[p] then
          error(('"%s" trains a stage of a model; register the model, too, which names its parameters'):format(name), 0)
        end
        local full = ("%s.state.%s.%s"):format(name, names[p] or index - 1, field)
        found[#found + 1] = entry_of({ name = full, tensor = tensor, is_model = false, index = index, field = field,
          object = name, absorb = absorb, may_wait = true }, p)
      end
    end
  end
  return found
end

local function groups_of(optimizer)
  local groups = {}
  for i, group in ipairs(optimizer.groups) do
    -- Each stage of a pipeline has other parameters. Their tensors are compared by name.
    groups[i] = { num_params = not stage_parameters.of_any(group.params) and #group.params or nil }
    for key, value in pairs(group) do
      if key ~= "params" then groups[i][key] = value end
    end
  end
  return groups
end

local function value_of(kind, object)
  if kind == "optimizer" then return groups_of(object) end
  if kind == "stateful" then return object:state_dict() end
  if kind == "position" then return object:state() end
  return object
end

local function is_expanded(tensor)
  for dim = 0, tensor:dim() - 1 do
    if tensor:size(dim) > 1 and tensor:stride(dim) == 0 then return true end
  end
  return false
end

---@class state.Contents
---@field tensors state.Tensor[] alike on every rank, by name
---@field values table<string, {bytes: string, tensors: torch.Tensor[]}>

--- Returns the present content of the objects. Tensors share memory with them.
---@param objects table<string, any>
---@return state.Contents
function M.collect(objects)
  local names, tensors, values = {}, {}, {}
  local order = plain.keys(objects)
  local function add(found)
    for _, one in ipairs(found) do
      tensors[#tensors + 1] = one
      if one.of then names[one.of] = names[one.of] or one.name end
    end
  end
  for _, name in ipairs(order) do
    if M.kind_of(name, objects[name]) == "module" then add(tensors_of_module(name, objects[name])) end
  end
  for _, name in ipairs(order) do
    local kind = M.kind_of(name, objects[name])
    if kind == "optimizer" then add(tensors_of_optimizer(name, objects[name], names)) end
    if kind ~= "module" then
      local value = value_of(kind, objects[name])
      local problem = kind == "optimizer" and "" or M.plain_mismatch(name, value)
      if problem ~= "" then error(problem, 0) end
      local bytes, inside = core_state.encode(value, '"' .. name .. '"')
      values[name] = { bytes = bytes, tensors = inside }
    end
  end
  table.sort(tensors, function(a, b) return a.name < b.name end)
  for i = 2, #tensors do
    if tensors[i].name == tensors[i - 1].name then
      error(('two objects have a tensor "%s"; register one of them under another name'):format(tensors[i].name), 0)
    end
  end
  for _, one in ipairs(tensors) do
    if is_expanded(one.tensor) then
      error(('"%s" is expanded: several of its elements are one number in memory, which a saved tensor cannot be '
        .. "copied into; give it memory of its own with clone(), as in torch.zeros({ 1 }):expand({ 3 }):clone()")
        :format(one.name), 0)
    end
  end
  return { tensors = tensors, values = values }
end

-- Buckets ---------------------------------------------------------------------------------------------

local BUCKETS = "%s.buckets"

--- Returns the groups in which replicas among the objects average gradients, as values. Collective.
---@param objects table<string, any>
---@return table<string, {bytes: string, tensors: torch.Tensor[]}>
function M.bucket_values(objects)
  local values = {}
  for _, name in ipairs(plain.keys(objects)) do
    if M.kind_of(name, objects[name]) == "module" then
      local bytes = core_state.encode(data_parallel.buckets_below(objects[name]), "run:save")
      values[BUCKETS:format(name)] = { bytes = bytes, tensors = {} }
    end
  end
  return values
end

--- Lets replicas go on with them. Collective.
---@param objects table<string, any>
---@param values table<string, {value: any}>
function M.restore_buckets(objects, values)
  for _, name in ipairs(plain.keys(objects)) do
    local saved = values[BUCKETS:format(name)]
    if saved and M.kind_of(name, objects[name]) == "module" then
      data_parallel.set_buckets_below(objects[name], saved.value)
    end
  end
end

--- The names of the objects that a state is of, each as a key: every value is one, or the buckets of a module.
---@param values table<string, any> the state's, by name
---@return table<string, true>
function M.object_names(values)
  local names = {}
  for name in pairs(values) do
    local object = name:match("^[%w_]+")
    if name == object or name == BUCKETS:format(object) then names[object] = true end
  end
  return names
end

-- Random numbers --------------------------------------------------------------------------------------

--- The generators, as values.
---@return table<string, {bytes: string, tensors: torch.Tensor[]}>
function M.random_values()
  local values = {}
  local function add(name, value)
    local bytes, inside = core_state.encode(value, "run:save")
    values[name] = { bytes = bytes, tensors = inside }
  end
  add("rng.torch", torch.get_rng_state())
  add("rng.math", core_state.math_random_state())
  if dist.device() ~= "cpu" then add("rng.device", torch.get_rng_state(dist.device())) end
  return values
end

local set_random = {
  ["rng.torch"] = function(state) torch.set_rng_state(state) end,
  ["rng.math"] = function(state) core_state.set_math_random_state(state) end,
  ["rng.device"] = function(state)
    if dist.device() ~= "cpu" then torch.set_rng_state(state, dist.device()) end
  end,
}

--- Whether a value is one of M.random_values.
---@param name string
---@return boolean
function M.is_random(name) return set_random[name] ~= nil end

--- Lets this rank's random numbers go on as saved, or, where `state` is nil, begin a sequence of their own, the same on
--- all ranks with this leader.
---@param name string
---@param state any
---@param step integer
---@param leader integer
function M.restore_random(name, state, step, leader)
  local seed = (step + 1) * 1000003 + leader * 7919
  if state ~= nil then
    set_random[name](state)
  elseif name == "rng.math" then
    math.randomseed(seed)
  else
    torch.manual_seed(seed)
  end
end

--- Returns a function that sets one of this rank's generators back to where it is now.
---@param name string
---@return fun()
function M.keep_random(name)
  local value = M.random_values()[name]
  if not value then return function() end end
  local state = core_state.decode(value.bytes, value.tensors, name)
  return function()
    if state ~= nil then set_random[name](state) end
  end
end

-- In files --------------------------------------------------------------------------------------------

--- Returns a fingerprint that differs for different values of two ranks.
---@param value {bytes: string, tensors: torch.Tensor[]}
---@return string
function M.fingerprint(value)
  local bytes, crc32 = files.checksum_of { value.bytes, unpack(value.tensors) }
  return bytes .. " " .. crc32
end

--- Puts a value among the tensors of a file.
---@param into table<string, torch.Tensor>
---@param name string
---@param value {bytes: string, tensors: torch.Tensor[]}
---@param rank integer? where ranks differ in it
function M.put_value(into, name, value, rank)
  local prefix = (rank and PER_RANK:format(rank) or VALUES) .. name
  into[prefix] = core_state.bytes_to_tensor(value.bytes)
  for i, tensor in ipairs(value.tensors) do into[prefix .. "." .. i] = tensor end
end

--- Finds it there again.
---@param from table<string, torch.Tensor>
---@param name string
---@param rank integer? of those that saved, where they differed in it
---@return any
function M.take_value(from, name, rank)
  local prefix = (rank and PER_RANK:format(rank) or VALUES) .. name
  local bytes, tensors = from[prefix], {}
  if not bytes or bytes.dtype ~= torch.uint8 then error(('the files hold no "%s"'):format(prefix), 0) end
  while from[prefix .. "." .. #tensors + 1] do tensors[#tensors + 1] = from[prefix .. "." .. #tensors + 1]:clone() end
  return core_state.decode(core_state.tensor_to_bytes(bytes), tensors, 'the value "' .. name .. '"')
end

-- Back into the objects -------------------------------------------------------------------------------

local function describe(tensor) return tostring(tensor.dtype) .. " " .. tostring(tensor.shape) end

--- Returns the reason why the saved tensors do not fit the objects, or "".
---@param contents state.Contents
---@param saved table<string, torch.Tensor>
---@return string
function M.mismatch(contents, saved)
  for _, own in ipairs(contents.tensors) do
    local tensor = saved[own.name]
    if not tensor then return ('it has no tensor "%s", which the script has now'):format(own.name) end
    if describe(tensor) ~= describe(own.tensor) then
      return ('"%s" is %s in it, and %s in the script now'):format(own.name, describe(tensor), describe(own.tensor))
    end
  end
  return ""
end

local function restore_table(object, value)
  for key in pairs(object) do object[key] = nil end
  for key, element in pairs(value) do object[key] = element end
end

--- Whether an object may still refuse a value that M.value_mismatch finds nothing wrong with.
---@param name string
---@param object any
---@return boolean
function M.may_refuse(name, object)
  local kind = M.kind_of(name, object)
  return kind == "stateful" or kind == "position"
end

--- Returns a function that gives such an object back what it has now, which M.collect found.
---@param name string
---@param object any
---@param value {bytes: string, tensors: torch.Tensor[]}
---@return fun()
function M.keep_value(name, object, value)
  local tensors = {}
  for i, tensor in ipairs(value.tensors) do tensors[i] = tensor:clone() end
  return function() M.restore_value(name, object, core_state.decode(value.bytes, tensors, name)) end
end

--- Restores what an optimizer's groups say; returns what changed, for a line of the log.
local function restore_groups(name, optimizer, groups)
  local changes = {}
  for i, group in ipairs(optimizer.groups) do
    for key, value in pairs(groups[i]) do
      local is_table = type(value) == "table"
      local before = is_table and table.concat(group[key] or {}, ", ") or tostring(group[key])
      local after = is_table and table.concat(value, ", ") or tostring(value)
      if key ~= "num_params" then
        if before ~= after then
          changes[#changes + 1] = ("%s.groups[%d].%s is %s, as saved, not %s"):format(name, i, key, after, before)
        end
        group[key] = value
      end
    end
  end
  return changes
end

--- Why an optimizer's groups cannot be the saved ones: "" where they can.
local function groups_mismatch(name, optimizer, groups)
  local function sizes(list, count)
    local parts = {}
    for i, group in ipairs(list) do parts[i] = tostring(count(group)) end
    return #parts .. " groups of " .. table.concat(parts, ", ") .. " parameters"
  end
  local has_stages = false
  for i, group in ipairs(groups_of(optimizer)) do
    has_stages = has_stages or not group.num_params or groups[i] and not groups[i].num_params
  end
  local function size_of(group) return has_stages and "any" or group.num_params end
  local own, theirs = sizes(groups_of(optimizer), size_of), sizes(groups, size_of)
  if own ~= theirs then return ('"%s" has %s in it, and %s in the script now'):format(name, theirs, own) end
  for i, group in ipairs(groups_of(optimizer)) do
    for _, pair in ipairs { { group, groups[i] }, { groups[i], group } } do
      for key, value in pairs(pair[1]) do
        if type(pair[2][key]) ~= type(value) and key ~= "num_params" then
          return ('the groups of "%s" do not have the same options in it and in the script now: %s'):format(name,
            tostring(key))
        end
      end
    end
  end
  return ""
end

--- Returns the reason why a saved value does not fit an object, or "".
---@param name string
---@param object any
---@param value any
---@return string
function M.value_mismatch(name, object, value)
  local kind = M.kind_of(name, object)
  if kind == "stateful" then return "" end -- its load_state_dict says
  local ok = type(value) == "table"
  for _, group in ipairs(ok and kind == "optimizer" and value or {}) do ok = ok and type(group) == "table" end
  if not ok then return ('"%s" is no %s in it'):format(name, kind) end
  return kind == "optimizer" and groups_mismatch(name, object, value) or ""
end

--- Copies the saved tensors into those of the objects.
---@param contents state.Contents
---@param saved table<string, torch.Tensor>
function M.restore_tensors(contents, saved)
  local absorbs = {}
  torch.no_grad(function()
    for _, own in ipairs(contents.tensors) do
      if own.part then sharded.restore(own.part, saved[own.name]) else own.tensor:copy_(saved[own.name]) end
      if own.absorb then absorbs[own.absorb] = true end
    end
    for absorb in pairs(absorbs) do absorb() end
  end)
end

--- Gives an object its saved value; returns lines for the log.
---@param name string
---@param object any
---@param value any
---@return string[]
function M.restore_value(name, object, value)
  local kind = M.kind_of(name, object)
  if kind == "optimizer" then return restore_groups(name, object, value) end
  if kind == "stateful" then object:load_state_dict(value) end
  if kind == "position" then
    local lines, changes = {}, object:load_state(value)
    for i, change in ipairs(type(changes) == "table" and changes or {}) do
      lines[i] = name .. "." .. tostring(change)
    end
    return lines
  end
  if kind == "table" then restore_table(object, value) end
  return {}
end

return M
