--- Joins the parts of a model that ranks have loaded by themselves, for models.save.

local agreement = require "lockstep.state.agreement"
local dist = require "lockstep.distributed"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

local M = {}

local check, fail = plain.checks "models.save: "

--- Returns the first rank of each part by its name; nil if all ranks have a whole model. Raises the same error on every
--- rank if a part is missing. Collective.
local function find_holders(own)
  local names = {}
  for i, model in ipairs(own) do names[i] = model.part or "" end
  local holders, whole, some = {}, nil, nil
  for rank, said in ipairs(agreement.values(names)) do
    for _, name in ipairs(said) do
      if name == "" then whole = whole or rank - 1 else some = some or rank - 1 end
      holders[name] = holders[name] or rank - 1
    end
  end
  if not some then return nil end
  if whole then fail("rank %d gives a whole model, and rank %d a part of one", whole, some) end
  for _, part in ipairs(own[1].parts) do
    check(holders[part], 'no rank gives the part "%s", so the folder would not be whole; every rank gives its parts',
      part)
  end
  return holders
end

local function shape_of(tensor)
  local shape = {}
  for d = 1, tensor:dim() do shape[d] = tensor:size(d - 1) end
  return shape
end

--- Describes tensors of a state, so that another rank can receive them.
local function list(state, names)
  local listed = {}
  for i, name in ipairs(names) do
    listed[i] = { name = name, shape = shape_of(state[name]), dtype = tostring(state[name].dtype):match "[%w_]+$" }
  end
  return listed
end

--- Sends the listed tensors of `state` from one rank to another, which puts them into `into`.
local function carry(listed, state, from, to, into, options)
  for _, tensor in ipairs(listed) do
    if dist.rank() == from then
      dist.send(state[tensor.name]:detach():to(dist.device()):contiguous(), to, options)
    elseif dist.rank() == to then
      local received = torch.empty(tensor.shape, { dtype = torch[tensor.dtype], device = dist.device() })
      dist.recv(received, from, options)
      into[tensor.name] = received:cpu()
    end
  end
end

--- Moves the tensors of a part from the rank that holds it to rank 0. Collective.
local function move(state, holder)
  local listed, moved = list(state, dist.rank() == holder and plain.keys(state) or {}), {}
  carry(agreement.values(listed)[holder + 1], state, holder, 0, moved)
  return moved
end

--- Adds the tensors that other ranks hold to those of rank 0. Collective.
---@param state table<string, torch.Tensor> this rank's, by their names
---@param holders table<string, integer> the first rank of each part
---@return table<string, torch.Tensor>
function M.gather(state, holders)
  local joined = plain.copy(state)
  for _, part in ipairs(plain.keys(holders)) do
    if holders[part] ~= 0 then joined = plain.copy(joined, move(state, holders[part])) end
  end
  return joined
end

--- Returns the tensors of all stages of a pipeline on its first rank, and this rank's own elsewhere. Collective over
--- the stages.
---@param state table<string, torch.Tensor> this rank's, by their names in memory
---@param copies table<string, boolean> names of copies that another stage has
---@param group dist.Group of the stages
---@return table<string, torch.Tensor>
function M.of_stages(state, copies, group)
  local ranks, options = group:ranks(), { group = group }
  local names = group:rank() > 0 and plain.keys(state, function(name) return not copies[name] end) or {}
  for position, theirs in ipairs(dist.all_gather_object(list(state, names), options)) do
    carry(theirs, state, ranks[position], ranks[1], state, options)
  end
  return state
end

--- Returns the tensors to write by their names on disk: those of the model, or on rank 0 those of the parts that all
--- ranks have. Collective.
---@param own models.CausalLM[] this rank's model, or its parts
---@param disk_state fun(model: models.CausalLM, holder: integer): table<string, torch.Tensor> on rank `holder`
---@return table<string, torch.Tensor>
function M.join(own, disk_state)
  local holders = find_holders(own)
  if not holders then return disk_state(own[1], 0) end
  local states, joined = {}, {}
  for _, model in ipairs(own) do
    states[model.part] = disk_state(model, holders[model.part])
  end
  for _, part in ipairs(plain.keys(holders)) do
    local state = states[part]
    if holders[part] ~= 0 then state = move(state, holders[part]) end
    for name, tensor in pairs(dist.rank() == 0 and state or {}) do joined[name] = tensor end
  end
  return joined
end

return M
