--- The plan of sharding.tensor_parallel: which module is split, how, and what the other modules see.

local adapters = require "lockstep.lora.adapters"
local core = require "lockstep.core"
local few_bits = require "lockstep.nn.few_bits"
local nn = require "lockstep.nn"
local plain = require "lockstep.plain"
local splits = require "lockstep.nn.splits"
local torch = require "lockstep.torch"

local M = {}

local check, fail = plain.checks "sharding.tensor_parallel: "

--- Layers whose weights are split.
local SPLITS_WEIGHTS = { column = true, row = true, vocabulary = true }

--- Kinds of modules with whole weights. They see all tokens, this rank's tokens, or this rank's part of the features.
--- "split" divides the tokens of its result, and "join" puts those of its input together.
local SEES = { whole = true, split = true, join = true, tokens = true, features = true }

--- Returns whether a kind is one whose weights are split.
---@param kind string
---@return boolean
function M.splits_weights(kind) return SPLITS_WEIGHTS[kind] == true end

--- A Lua pattern for names that end so, with "*" in place of any one part.
local function pattern_of(text)
  local escaped = text:gsub("[%^%$%(%)%%%.%[%]%+%-%?]", "%%%0"):gsub("%*", "[^.]+")
  return "^" .. escaped .. "$", "%." .. escaped .. "$"
end

local function check_kinds(plan)
  for pattern, kind in pairs(plan) do
    check(type(pattern) == "string" and pattern ~= "",
      'a key of plan must be a name such as "layers.*.mlp.up_proj", not %s',
      pattern == "" and "an empty one" or "a " .. type(pattern))
    check(SPLITS_WEIGHTS[kind] or SEES[kind],
      'plan: "%s" must be "column", "row" or "vocabulary", or "split", "join", "tokens", "features" or "whole", not %s',
      pattern, plain.shown(kind, "string"))
  end
end

---@class sharding.PlannedModule
---@field name string
---@field module nn.Module|torch.Tensor
---@field kind string
---@field sections integer[]? rows of each of the weights that are one behind another in this one
---@field copies integer? consecutive ranks that hold the same part, of keys and values with fewer heads than ranks

--- Returns the modules and parameters that a plan names, in the model's order.
---@param model nn.Module
---@param plan table<string, string>
---@param is_own boolean the model's own plan may name modules that it does not have
---@return sharding.PlannedModule[]
function M.find(model, plan, is_own)
  check_kinds(plan)
  local found, names, used, kind_of = {}, {}, {}, {}
  local function look_at(name, module)
    if name ~= "" then names[#names + 1] = name end
    local chosen, by
    for pattern, kind in pairs(plan) do
      local whole, tail = pattern_of(pattern)
      if name:find(whole) or name:find(tail) then
        if chosen and chosen ~= kind then
          fail('plan: "%s" is a %s layer by "%s", and a %s layer by "%s"', name, chosen, by, kind, pattern)
        end
        chosen, by, used[pattern] = kind, pattern, true
      end
    end
    if not chosen then return end
    if kind_of[module] and kind_of[module] ~= chosen then
      fail('plan: "%s" is a %s layer, but the same module has another name, where it is a %s layer', name, chosen,
        kind_of[module])
    end
    found[#found + 1] = { name = name, module = module, kind = chosen, is_again = kind_of[module] ~= nil,
      sections = not torch.is_tensor(module) and nn.fields(module).sections or nil }
    kind_of[module] = chosen
  end
  for name, module in model:named_modules() do
    look_at(name, module)
    -- The experts of a mixture lie in one tensor; ep divides them.
    local fields = module.holds_experts and {} or nn.fields(module)
    for _, field in ipairs(plain.keys(fields, function(field) return torch.is_tensor(fields[field]) end)) do
      look_at(name == "" and field or name .. "." .. field, fields[field])
    end
  end
  for pattern in pairs(plan) do
    if not used[pattern] and not is_own then
      local nearest = core.nearest(pattern, names)
      fail('plan: no module is named "%s"%s', pattern, nearest and ('; did you mean "%s"?'):format(nearest) or "")
    end
  end
  return found
end

--- Returns a function that says whether a model with a plan of its own contains a name. Such a model divides and joins
--- its tokens itself. It may be the whole net or a part of it.
---@param net nn.Module
---@return fun(name: string): boolean
function M.parts_with_own_plan(net)
  local prefixes = {}
  for name, module in net:named_modules() do
    if module.tensor_plan then prefixes[#prefixes + 1] = name == "" and "" or name .. "." end
  end
  return function(name)
    for _, prefix in ipairs(prefixes) do
      if name:sub(1, #prefix) == prefix then return true end
    end
    return false
  end
end

--- The classes that can be split beside nn.Linear, by kind.
local CLASSES = { column = { class = nn.RMSNorm, parameter = true, text = ", an nn.RMSNorm or a parameter" },
  row = { text = "" }, vocabulary = { class = nn.Embedding, text = " or an nn.Embedding" } }

--- Raises unless the weights that are one behind another in a layer can each be divided.
local function check_sections(one, size, features)
  local sum = 0
  check(one.sections == nil or type(one.sections) == "table", '"%s": sections must be an array of the output features '
    .. "of each weight, not a %s", one.name, type(one.sections))
  for i, section in ipairs(one.sections or {}) do
    check(plain.is_whole(section, 1), '"%s": sections[%d] must be a whole number of at least 1, not %s', one.name, i,
      tostring(section))
    sum = sum + section
    check(section % size == 0, '"%s": a section of %d output features cannot be divided by %d ranks', one.name, section,
      size)
  end
  check(not one.sections or one.kind == "column" and sum == features, '"%s": its sections, of %d output features, are '
    .. 'for a "column" layer with as many, not for a "%s" layer with %d', one.name, sum, one.kind, features)
end

--- Raises where a module cannot be split, or have its forward wrapped, as the plan says.
---@param one sharding.PlannedModule
---@param size integer
---@param owners table<torch.Tensor, integer> how many fields of modules hold each tensor
---@param has_own_plan boolean whether a model with a plan of its own contains the module
function M.check_module(one, size, owners, has_own_plan)
  local module, class = one.module, getmetatable(one.module)
  local adapter = not torch.is_tensor(module) and adapters.of(module) or nil
  if adapter and SPLITS_WEIGHTS[one.kind] then
    class = adapter.class
  end
  if not SPLITS_WEIGHTS[one.kind] then
    if torch.is_tensor(module) then
      check(one.kind ~= "split" and one.kind ~= "join", '"%s" is no module, which "%s" is about', one.name, one.kind)
    elseif class == nn.ModuleList then
      fail('"%s" is a ModuleList, which has no forward; name its members, "%s.*"', one.name, one.name)
    end
    check(not has_own_plan or one.kind == "features" or one.kind == "whole",
      'plan: "%s" is a "%s" layer, but this model divides and joins its tokens itself', one.name, one.kind)
    return
  end
  local can = CLASSES[one.kind]
  if class ~= nn.Linear and class ~= can.class and not (can.parameter and torch.is_tensor(module)) then
    check(not few_bits.is_one(module),
      '"%s" is of the class %s, and layers in 4 or 8 bits cannot be divided; load the model with load_in_4bit = false '
      .. "or load_in_8bit = false (scripts: --set read_whole=true), or leave tp out", one.name, module.class_name)
    fail('"%s" is %s; a "%s" layer is an nn.Linear%s', one.name,
      torch.is_tensor(module) and "a parameter" or "of the class " .. module.class_name, one.kind, can.text)
  end
  local weight = torch.is_tensor(module) and module or module.weight
  local dim = one.kind == "row" and 1 or 0
  local features = weight:size(dim)
  if one.kind == "vocabulary" then
    -- Parts of ceil(features / size); the last one may be smaller, and must not be empty.
    if math.ceil(features / size) * (size - 1) >= features then
      fail('"%s": a vocabulary of %d is too small for %d ranks', one.name, features, size)
    end
  elseif features % (size / (one.copies or 1)) ~= 0 then
    fail('"%s": %d %s features cannot be divided by %d ranks', one.name, features,
      dim == 0 and "output" or "input", size / (one.copies or 1))
  end
  check_sections(one, size, features)
  splits.refuse("sharding.tensor_parallel", weight, "call it once for each model")
  if torch.is_tensor(module) then
    check(owners[module] == 1, '"%s" is a parameter of several modules, which would get a part of it', one.name)
    return
  end
  for _, name in ipairs { "weight", "bias" } do
    if module[name] and owners[module[name]] > 1 then
      fail('"%s" shares its %s with another module, which would get a part of it', one.name, name)
    end
  end
  if nn.fields(module).forward then fail('"%s" has a forward of its own, which would be lost', one.name) end
end

--- Returns how many fields of modules hold each tensor.
---@param model nn.Module
---@return table<torch.Tensor, integer>
function M.count_owners(model)
  local owners = {}
  for _, module in model:named_modules() do
    for _, value in pairs(nn.fields(module)) do
      if torch.is_tensor(value) then owners[value] = (owners[value] or 0) + 1 end
    end
  end
  return owners
end

--- Raises where a rank's queries would meet keys of other heads. Where there are fewer heads of keys and values than
--- ranks, notes how many ranks share one.
---@param model nn.Module
---@param found sharding.PlannedModule[]
---@param size integer
function M.check_heads(model, found, size)
  local settings, kinds, is_there = model.settings, {}, {}
  if type(settings) ~= "table" then return end
  local queries, keys = settings.num_attention_heads, settings.num_key_value_heads
  local projections = { q_proj = queries, k_proj = keys, v_proj = keys, q_b_proj = queries, kv_b_proj = queries }
  local others = { q_norm = queries, k_norm = keys, sinks = queries, qkv_proj = keys } -- where they are column layers
  local can_be_few = { k_proj = true, v_proj = true, k_norm = true }
  for _, one in ipairs(found) do kinds[one.name] = one.kind end
  for name in model:named_modules() do is_there[name] = true end
  for _, one in ipairs(found) do
    local parent, field = one.name:match "^(.-)([^.]*)$"
    local heads = projections[field] or one.kind == "column" and others[field] or nil
    if heads and heads < size and can_be_few[field] and size % heads == 0 then
      one.copies = size / heads
    elseif heads and heads % size ~= 0 then
      fail('"%s": %d heads cannot be divided by %d ranks%s', one.name, heads, size, field == "qkv_proj"
        and "; ranks cannot share heads of keys and values that are one weight with the queries" or "")
    end
    for other in pairs(projections[field] and projections or {}) do
      if is_there[parent .. other] and kinds[parent .. other] ~= one.kind then
        fail('"%s" is a %s layer, but "%s" is not; queries, keys and values are split together', one.name, one.kind,
          parent .. other)
      end
    end
  end
end

--- Raises unless tokens are divided somewhere, and joined again.
---@param net nn.Module
---@param found sharding.PlannedModule[]
function M.check_sequence(net, found)
  local kind_of, divides, joins = {}, false, false
  for _, one in ipairs(found) do
    kind_of[one.module] = one.kind
    local is_vocabulary = one.kind == "vocabulary"
    divides = divides or one.kind == "split" or is_vocabulary and getmetatable(one.module) == nn.Embedding
    joins = joins or one.kind == "join" or is_vocabulary and getmetatable(one.module) == nn.Linear
  end
  for _, model in net:named_modules() do
    if model.tensor_plan then
      check(model.splits_tokens, "sequence = true: %s does not support it; leave it out", model.class_name)
      local head = nn.fields(model).lm_head or model:decoder().embed_tokens
      if kind_of[model:decoder().embed_tokens] ~= "vocabulary" or kind_of[head] ~= "vocabulary" then
        fail 'sequence = true: plan must make "embed_tokens" and the head "vocabulary", which split and join the tokens'
      end
      joins = true
    end
  end
  check(divides and joins, 'sequence = true: plan must say where tokens are divided, by "split" or by "vocabulary" '
    .. 'of an nn.Embedding, and where they are put together, by "join" or by "vocabulary" of the head')
end

--- Returns the kind that a plan gives to a name, or else to the nearest module that contains it; and that module.
local function kind_of_nearest(name, kinds)
  while name ~= "" do
    if kinds[name] then return kinds[name], name end
    name = name:match "^(.*)%.[^.]*$" or ""
  end
end

--- Raises where a module inside one that sees a part would see all tokens.
local function check_nesting(found, kinds)
  for _, one in ipairs(found) do
    local outer, name = kind_of_nearest(one.name:match "^(.*)%.[^.]*$" or "", kinds)
    local sees_all = one.kind == "whole" or one.kind == "split" or one.kind == "join"
    if sees_all and (outer == "tokens" or outer == "features") then
      fail('plan: "%s" is a "%s" layer inside "%s", which sees a part alone ("%s")', one.name, one.kind, name, outer)
    end
  end
end

--- Returns the parameters that stay whole and see a part, of the tokens or of the features. Each rank's gradient covers
--- its part alone. With sequence = true a plan of one's own says what each weight and each dropout sees.
---@param model nn.Module
---@param found sharding.PlannedModule[]
---@param sequence boolean
---@return table<torch.Tensor, string> # with the parameter's name
function M.find_partial(model, found, sequence)
  local kinds, is_parameter, partial, whole, unclear = {}, {}, {}, {}, {}
  for _, one in ipairs(found) do kinds[one.name] = one.kind end
  for _, p in ipairs(model:parameters()) do is_parameter[p] = true end
  check_nesting(found, kinds)
  local has_own_plan = M.parts_with_own_plan(model) -- such a model divides tokens first
  local is_of_adapter = {} -- of split layers, which are split with them
  for _, one in ipairs(found) do
    if SPLITS_WEIGHTS[one.kind] and not torch.is_tensor(one.module) and adapters.of(one.module) then
      is_of_adapter[one.module.lora_A], is_of_adapter[one.module.lora_B] = true, true
      is_of_adapter[one.module.lora_magnitude_vector or one.module.lora_A] = true
    end
  end

  local function note(p, name)
    local kind = kind_of_nearest(name, kinds) or sequence and has_own_plan(name) and "tokens" or nil
    if sequence and kind == nil then unclear[#unclear + 1] = name end
    local sees_part = kind == "features" or sequence and (kind == "tokens" or kind == "row")
    local seen, other = sees_part and partial or whole, sees_part and whole or partial
    if other[p] then
      fail('"%s" and "%s" are one weight or module, which sees a part in one place alone', name, other[p])
    end
    seen[p] = name
  end
  for name, module in model:named_modules() do
    local fields, prefix = nn.fields(module), name == "" and "" or name .. "."
    for field, value in pairs(fields) do
      local is_split = SPLITS_WEIGHTS[kinds[name]] and (field == "weight" or kinds[name] ~= "row")
        or SPLITS_WEIGHTS[kinds[prefix .. field]]
      local is_noted = not is_split and not is_of_adapter[module] and not is_of_adapter[value]
      if is_noted and torch.is_tensor(value) and is_parameter[value] then note(value, prefix .. field) end
    end
    if getmetatable(module) == nn.Dropout and module.p > 0 then note(module, name) end
    -- The norms of queries and keys see this rank's heads.
    for _, letter in ipairs { "q", "k" } do
      local norm = fields[letter .. "_norm"]
      if nn.is_module(norm) and SPLITS_WEIGHTS[kinds[prefix .. letter .. "_proj"]] then
        kinds[prefix .. letter .. "_norm"] = kinds[prefix .. letter .. "_norm"] or "features"
      end
    end
  end
  if #unclear > 0 then
    table.sort(unclear)
    fail('sequence = true: plan must say what these see, "tokens" (this rank\'s), "features" (this rank\'s part) or '
      .. '"whole" (all tokens): %s%s', table.concat(unclear, ", ", 1, math.min(#unclear, 8)),
      #unclear > 8 and ", ..." or "")
  end
  return partial
end

return M
