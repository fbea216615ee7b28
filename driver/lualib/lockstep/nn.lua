--- Modules: tables with `forward`, called as functions.
---
---     local Net = nn.Module:subclass("Net")
---     function Net:init(hidden)
---       self.up = nn.Linear(hidden, 4 * hidden)      -- a module, registered as "up"
---       self.down = nn.Linear(4 * hidden, hidden)
---     end
---     function Net:forward(x) return self.down(torch.gelu(self.up(x))) end
---     local net = Net(64)
---     for name, p in net:named_parameters() do print(name, p.shape) end   -- up.weight {256, 64} ...

local core = require "lockstep.core"
local fused = require "lockstep.nn.fused"
local hooks = require "lockstep.nn.hooks"
local make = require "lockstep.nn.parameter"
local options = require "lockstep.options"
local torch = require "lockstep.torch"

local parameter, positive = make.new, make.positive

---@class lockstep.nn: nn.activation, nn.batch_norm, nn.convolution, nn.pooling, nn.recurrent, nn.copy
---@class lockstep.nn: nn.multihead_attention, nn.transformer
local M = {}

--- An instance keeps its fields apart from itself, so that every assignment is seen: one that replaces a
--- plain value by a tensor, or a parameter by a buffer, too. NAMES are those of modules and tensors, in the
--- order of their first assignment; PARAMETERS says of each whether it is a parameter. (A ModuleList's
--- modules are its array part.)
local FIELDS, NAMES, PARAMETERS = "_fields", "_names", "_is_parameter"

---@class nn.Module
---@field training boolean
---@field class_name string
---@operator call: any
local Module = { class_name = "Module" }
M.Module = Module

---@param value any
---@return boolean
local function is_module(value)
  return type(value) == "table" and rawget(value, FIELDS) ~= nil
end
--- Whether a value is a module, an instance of nn.Module or of a subclass; its classes are not.
---@type fun(value: any): boolean
M.is_module = is_module

--- Returns the values assigned to a module, by name, without its class's. Private to the library.
---@param module nn.Module
---@return table<string, any>
function M.fields(module) return rawget(module, FIELDS) end

local function complain(self, name, message)
  core.raise(string.format("%s.%s: %s", self.class_name, tostring(name), message))
end

local function check_no_array(self, name, value)
  if type(value) == "table" and not is_module(value) and is_module(rawget(value, 1)) then
    complain(self, name, "modules in a plain table are not registered, and would not be trained; use nn.ModuleList")
  end
end

local function check_registered(self, name, value)
  if type(name) ~= "string" then
    complain(self, name, "modules and tensors are registered under a name; use nn.ModuleList for a row of modules")
  elseif name == "" or name:find(".", 1, true) then
    complain(self, name, "the name must not be empty or hold a dot: dots join the names of modules")
  elseif Module[name] ~= nil then
    complain(self, name, "this is a method of modules; give the field another name")
  elseif torch.is_tensor(value) and not value.is_leaf then
    complain(self, name, "the tensor is the result of a computation, and so no parameter that could be trained; "
      .. "to keep it as a buffer, assign x:detach()")
  end
end

local function forget(names, name)
  for i, known in ipairs(names) do
    if known == name then return table.remove(names, i) end
  end
end

local function assign(self, name, value)
  local is_parameter = rawget(self, PARAMETERS)
  if torch.is_tensor(value) or is_module(value) then
    check_registered(self, name, value)
    if is_parameter[name] == nil then table.insert(rawget(self, NAMES), name) end
    is_parameter[name] = torch.is_tensor(value) and value.requires_grad
  else
    check_no_array(self, name, value)
    if is_parameter[name] ~= nil then forget(rawget(self, NAMES), name) end
    is_parameter[name] = nil
  end
  rawget(self, FIELDS)[name] = value
end

local function construct(class, ...)
  local self = setmetatable({ [FIELDS] = { training = true }, [NAMES] = {}, [PARAMETERS] = {} }, class)
  self:init(...)
  return self
end

--- Instances look a field up among their own, then in their class.
local function complete(class)
  class.__index = function(self, key)
    local value = rawget(self, FIELDS)[key]
    if value == nil then return class[key] end
    return value
  end
  return class
end

Module.__newindex = assign
Module.__call = hooks.call
complete(Module)

--- Makes a class of modules. Calling the class makes a module and calls its `init` with the arguments.
---@param name string
---@return any class
function Module:subclass(name)
  if type(name) ~= "string" then core.raise("subclass: the class needs a name, as in nn.Module:subclass(\"Net\")") end
  local class = complete { class_name = name, __newindex = self.__newindex, __call = self.__call,
    __tostring = self.__tostring }
  return setmetatable(class, { __index = self, __call = construct })
end

--- A subclass overrides it to make parameters and submodules.
function Module.init() end

--- A subclass must define it: from inputs to outputs.
function Module:forward()
  local name = self.class_name
  core.raise(string.format("%s has no forward: define function %s:forward(...)", name, name))
end

--- Calls a function after each forward pass of this module, with the module, the array of its inputs and its results.
--- Values that the hook returns take the place of the results; nil leaves them. Hooks run in the order of registration.
--- A call of module:forward(...), in place of module(...), runs none.
---
---     local handle = model.layers[1]:register_forward_hook(function(_, inputs, output) kept = output end)
---     model(x)
---     handle:remove()
---@param hook fun(module: nn.Module, inputs: any[], ...): ...
---@return nn.HookHandle
function Module:register_forward_hook(hook) return hooks.register(self, hook) end

--- Calls visit(name, value) for the modules and tensors of this module itself.
local function each(self, visit)
  local fields = rawget(self, FIELDS)
  for _, name in ipairs(rawget(self, NAMES)) do visit(name, fields[name]) end
  for i, module in ipairs(self) do
    if not is_module(module) then complain(self, i, "a " .. type(module) .. " is no module") end
    visit(tostring(i - 1), module)
  end
end

--- Walks the tree: calls visit(prefix, module) for this module and all below, parents first.
local function walk(self, prefix, visit, above)
  above = above or {}
  if above[self] then
    core.raise(string.format('%s is registered inside itself, as "%s"; keep what points back in a table, { up = x }',
      self.class_name, prefix:sub(1, -2)))
  end
  above[self] = true
  visit(prefix, self)
  -- A table may have been filled with modules after it was assigned.
  for name, value in pairs(rawget(self, FIELDS)) do check_no_array(self, name, value) end
  each(self, function(name, value)
    if is_module(value) then walk(value, prefix .. name .. ".", visit, above) end
  end)
  above[self] = nil
end

--- Collects {name, tensor} pairs of parameters or buffers. A tensor that several names share (tied
--- weights) is listed once, under the first.
local function collect(self, want_parameters)
  local found, seen = {}, {}
  walk(self, "", function(prefix, module)
    local is_parameter = rawget(module, PARAMETERS)
    each(module, function(name, value)
      if torch.is_tensor(value) and is_parameter[name] == want_parameters then
        if not seen[value] then found[#found + 1] = { prefix .. name, value } end
        seen[value] = true
      end
    end)
  end)
  return found
end

local function iterate(pairs_list)
  local i = 0
  return function()
    i = i + 1
    if pairs_list[i] then return pairs_list[i][1], pairs_list[i][2] end
  end
end

--- Parameters with their full names, "layers.0.mlp.up.weight", in the order they were assigned.
---@return fun(): string?, torch.Tensor?
function Module:named_parameters() return iterate(collect(self, true)) end

--- Tensors that belong to the module's state but are not trained.
---@return fun(): string?, torch.Tensor?
function Module:named_buffers() return iterate(collect(self, false)) end

--- This module as "" and all below with their full names.
---@return fun(): string?, nn.Module?
function Module:named_modules()
  local found = {}
  walk(self, "", function(prefix, module) found[#found + 1] = { prefix:sub(1, -2), module } end)
  return iterate(found)
end

--- Returns the places where this module and all below keep tensors that require a gradient. A shared tensor appears at
--- each of its places, and each place once, even if two names lead to its module. A library that computes on other
--- tensors instead puts them there. Private to the library.
---@param module nn.Module
---@return {fields: table<string, torch.Tensor>, name: string, tensor: torch.Tensor}[]
function M.parameter_places(module)
  local places, seen = {}, {}
  walk(module, "", function(_, below)
    if seen[below] then return end
    seen[below] = true
    each(below, function(name, value)
      if torch.is_tensor(value) and value.requires_grad then
        places[#places + 1] = { fields = rawget(below, FIELDS), name = name, tensor = value }
      end
    end)
  end)
  return places
end

---@return torch.Tensor[]
function Module:parameters()
  local parameters = {}
  for _, p in self:named_parameters() do parameters[#parameters + 1] = p end
  return parameters
end

--- Number of elements of all parameters.
---@return integer
function Module:num_parameters()
  local count = 0
  for _, p in self:named_parameters() do count = count + p:numel() end
  return count
end

--- Parameters and buffers by full name. They share memory with the module.
---@return table<string, torch.Tensor>
function Module:state_dict()
  local state = {}
  walk(self, "", function(prefix, module)
    local is_known = rawget(module, PARAMETERS) -- true for a parameter, false for a buffer
    each(module, function(name, value)
      if torch.is_tensor(value) and is_known[name] ~= nil then state[prefix .. name] = value:detach() end
    end)
  end)
  return state
end

--- Copies the values in. Every name of the module must be there, in its shape, and no other.
---@param state table<string, torch.Tensor>
function Module:load_state_dict(state)
  local own = self:state_dict()
  make.check_state(self.class_name .. ":load_state_dict", state, own)
  torch.no_grad(function()
    for name, tensor in pairs(own) do tensor:copy_(state[name]) end
  end)
end

--- Moves parameters and buffers, in place, and gradients with them; the dtype only of floating-point ones.
---@generic T: nn.Module
---@param self T
---@param where {device: string?, dtype: torch.dtype?}|string|torch.dtype a device alone, or a dtype alone, is enough
---@return T
function Module:to(where)
  if type(where) == "string" then where = { device = where } end
  if type(where) == "userdata" and not torch.is_tensor(where) then where = { dtype = where } end
  local o = options.read(self.class_name .. ":to", where, { device = options.optional, dtype = options.optional })
  for _, want_parameters in ipairs { true, false } do
    for _, entry in ipairs(collect(self, want_parameters)) do
      local tensor = entry[2]
      local dtype = tensor:is_floating_point() and o.dtype or nil
      tensor:set_data(tensor:detach():to { device = o.device, dtype = dtype })
      if tensor.grad then tensor.grad = tensor.grad:to { device = o.device, dtype = dtype } end
    end
  end
  return self
end

---@generic T: nn.Module
---@param self T
---@param training boolean? default true
---@return T
function Module:train(training)
  if training == nil then training = true end
  walk(self, "", function(_, module) rawget(module, FIELDS).training = training end)
  return self
end

---@generic T: nn.Module
---@param self T
---@return T
function Module:eval() return self:train(false) end

--- Freezes (false) or unfreezes all parameters. Those of 4-bit layers (models.load) stay frozen.
---@generic T: nn.Module
---@param self T
---@param requires_grad boolean
---@return T
function Module:requires_grad_(requires_grad)
  for _, p in ipairs(self:parameters()) do p:requires_grad_(requires_grad and p:is_floating_point()) end
  return self
end

--- Forgets all gradients.
function Module:zero_grad()
  for _, p in ipairs(self:parameters()) do p.grad = nil end
end

--- Describes a module's own values except modules: its tensors, "weight {3, 2}, bias {3}", and p of a Dropout.
local function own_repr(module)
  local parts = {}
  each(module, function(name, value)
    if torch.is_tensor(value) then
      local frozen = rawget(module, PARAMETERS)[name] and not value.requires_grad and ", frozen" or ""
      parts[#parts + 1] = string.format("%s %s%s", name, tostring(value.shape), frozen)
    end
  end)
  if type(module.p) == "number" then parts[#parts + 1] = "p = " .. module.p end
  return #parts > 0 and "(" .. table.concat(parts, ", ") .. ")" or ""
end

--- The tree of modules with the shapes of their tensors, and how many parameters there are.
function Module:__tostring()
  local lines = {}
  walk(self, "", function(prefix, module)
    local depth = select(2, prefix:gsub("%.", ""))
    local name = prefix:match("([^.]+)%.$")
    lines[#lines + 1] = string.rep("  ", depth) .. (name and "(" .. name .. ") " or "") .. module.class_name
      .. own_repr(module)
  end)
  local frozen = 0
  for _, p in self:named_parameters() do frozen = frozen + (p.requires_grad and 0 or p:numel()) end
  lines[#lines + 1] = string.format("%d parameters%s", self:num_parameters(),
    frozen > 0 and string.format(", of which %d are frozen", frozen) or "")
  return table.concat(lines, "\n")
end

-- Layers ------------------------------------------------------------------------------------------

--- y = x W^T + b. weight: [out, in]; bias: [out]. Both start uniform in +-1/sqrt(in), as in PyTorch.
---@class nn.Linear: nn.Module
---@field sections integer[]? the rows of each of several weights in one: see sharding.tensor_parallel
local Linear = Module:subclass("Linear")
---@type fun(input_features: integer, output_features: integer, opts: {bias: boolean?}?): nn.Linear
M.Linear = Linear

function Linear:init(input_features, output_features, opts)
  local o = options.read("nn.Linear", opts, { bias = true })
  local bound = 1 / math.sqrt(positive("Linear", "input_features", input_features))
  local uniform = function(t) t:uniform_(-bound, bound) end
  self.weight = parameter({ positive("Linear", "output_features", output_features), input_features }, uniform)
  if o.bias then self.bias = parameter({ output_features }, uniform) end
end

function Linear:forward(x) return fused.linear(x, self.weight, self.bias) end

--- Rows of a table. weight: [num_embeddings, dim], standard normal at first.
---@class nn.Embedding: nn.Module
local Embedding = Module:subclass("Embedding")
---@type fun(num_embeddings: integer, embedding_dim: integer): nn.Embedding
M.Embedding = Embedding

function Embedding:init(num_embeddings, embedding_dim, opts)
  options.read("nn.Embedding", opts, {})
  self.weight = parameter({ positive("Embedding", "num_embeddings", num_embeddings),
    positive("Embedding", "embedding_dim", embedding_dim) }, function(t) t:normal_() end)
end

function Embedding:forward(indices) return torch.embedding(self.weight, indices) end

--- Normalises the last dimension to mean 0 and variance 1, then scales and shifts it.
---@class nn.LayerNorm: nn.Module
local LayerNorm = Module:subclass("LayerNorm")
---@type fun(size: integer, opts: {eps: number?, bias: boolean?}?): nn.LayerNorm
M.LayerNorm = LayerNorm

function LayerNorm:init(size, opts)
  local o = options.read("nn.LayerNorm", opts, { eps = 1e-5, bias = true })
  self.size, self.eps = { positive("LayerNorm", "size", size) }, o.eps
  self.weight = parameter(self.size, function(t) t:fill_(1) end)
  if o.bias then self.bias = parameter(self.size, function(t) t:zero_() end) end
end

function LayerNorm:forward(x) return torch.layer_norm(x, self.size, self.weight, self.bias, self.eps) end

--- Divides the last dimension by its root mean square, rounds to x's dtype, then scales it (arXiv 1910.07467).
--- Called with a residual it normalises the sum, and returns the sum as well:
---
---     local y, sum = norm(x, residual)                       -- y = norm(x + residual), sum = x + residual
---@class nn.RMSNorm: nn.Module
local RMSNorm = Module:subclass("RMSNorm")
---@type fun(size: integer, opts: {eps: number?}?): nn.RMSNorm
M.RMSNorm = RMSNorm

function RMSNorm:init(size, opts)
  local o = options.read("nn.RMSNorm", opts, { eps = 1e-6 })
  self.size, self.eps = { positive("RMSNorm", "size", size) }, o.eps
  self.weight = parameter(self.size, function(t) t:fill_(1) end)
end

function RMSNorm:forward(x, residual)
  if residual then return fused.add_rms_norm(x, residual, self.weight, self.size, self.eps) end
  return fused.rms_norm(x, self.weight, self.size, self.eps)
end

--- Zeroes elements with probability p (default 0.5) while training, and scales the rest by 1 / (1 - p).
---@class nn.Dropout: nn.Module
local Dropout = Module:subclass("Dropout")
---@type fun(p: number?): nn.Dropout
M.Dropout = Dropout

function Dropout:init(p)
  if p == nil then p = 0.5 end
  if type(p) ~= "number" or p < 0 or p > 1 then
    core.raise("nn.Dropout: p must be a number from 0 to 1, not " .. tostring(p))
  end
  self.p = p
end

function Dropout:forward(x) return torch.dropout(x, self.p, self.training) end

--- Modules in a row, named "0", "1", ... as in PyTorch; list[1] is the first, #list their number.
---@class nn.ModuleList: nn.Module
local ModuleList = Module:subclass("ModuleList")
---@type fun(modules: nn.Module[]?): nn.ModuleList
M.ModuleList = ModuleList

function ModuleList:init(modules)
  if type(modules or {}) ~= "table" or is_module(modules) then
    core.raise(string.format("nn.%s: the modules must be in an array, {a, b}", self.class_name))
  end
  for key in pairs(modules or {}) do
    if type(key) ~= "number" then complain(self, key, "the modules of an array have no names; leave the name out") end
  end
  for _, module in ipairs(modules or {}) do self:append(module) end
end

function ModuleList:__newindex(key, value)
  if type(key) ~= "number" then return assign(self, key, value) end
  if not is_module(value) then complain(self, key, "only modules can be in the list, not a " .. type(value)) end
  if key ~= #self + 1 then complain(self, key, string.format("the next free place is %d", #self + 1)) end
  rawset(self, key, value)
end

---@param module nn.Module
function ModuleList:append(module) self[#self + 1] = module end

--- Modules called one after the other.
---@class nn.Sequential: nn.ModuleList
local Sequential = ModuleList:subclass("Sequential")
---@type fun(modules: nn.Module[]): nn.Sequential
M.Sequential = Sequential

function Sequential:forward(x)
  for _, module in ipairs(self) do x = module(x) end
  return x
end

-- Parts -------------------------------------------------------------------------------------------

M.attention = require("lockstep.nn.attention").attention
M.rotary = require("lockstep.nn.rotary").rotary
M.linear, M.rotate, M.swiglu, M.use_fused = fused.linear, fused.rotate, fused.swiglu, fused.use_fused
M.cross_entropy = require("lockstep.nn.cross_entropy").cross_entropy
package.loaded["lockstep.nn"] = M -- the parts that follow are modules, and require it
M.init = require "lockstep.nn.initializers"
M.neftune = require("lockstep.nn.neftune").neftune
for _, part in ipairs { "activation", "batch_norm", "convolution", "pooling", "copy", "sequences.recurrent",
  "sequences.multihead_attention", "sequences.transformer" } do
  for name, class in pairs(require("lockstep.nn." .. part)) do M[name] = class end
end

return M
