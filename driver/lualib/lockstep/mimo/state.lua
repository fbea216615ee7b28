--- mimo.state: what a run saves where modules have ranks of their own.

local options = require "lockstep.options"
local own_modules = require "lockstep.mimo.own_modules"
local parts = require "lockstep.mimo.parts"
local topologies = require "lockstep.mimo.topology"

local M = {}

--- The modules of a rank as one module of run:state, whose names begin with the module's.
---@class mimo.State
---@field private named {prefix: string, module: any}[]
local State = {}
State.__index = State

--- Returns an iterator over what `method` of each module gives, each tensor once.
local function each(self, method)
  local found, seen, position = {}, {}, 0
  for _, one in ipairs(self.named) do
    for name, value in one.module[method](one.module) do
      if not seen[value] then
        seen[value], found[#found + 1] = true, { one.prefix .. name, value }
      end
    end
  end
  return function()
    position = position + 1
    if found[position] then return unpack(found[position]) end
  end
end

--- Iterates over the parameters of all modules of this rank, as "vision.fc1.weight".
---@return fun(): string?, torch.Tensor
function State:named_parameters() return each(self, "named_parameters") end

--- Iterates over their buffers.
---@return fun(): string?, torch.Tensor
function State:named_buffers() return each(self, "named_buffers") end

--- Iterates over the modules inside.
---@return fun(): string?, nn.Module
function State:named_modules() return each(self, "named_modules") end

--- Returns their parameters, each once.
---@return torch.Tensor[]
function State:parameters()
  local parameters = {}
  for _, p in self:named_parameters() do parameters[#parameters + 1] = p end
  return parameters
end

--- Returns the modules of this rank as one for run:state, next to their optimizer:
---
---     local parts = mimo.state { topology = topo, modules = { vision = tower } }
---     run:state({ model = parts, optimizer = optimizer, samples = loader }, { every = 100 })
---
--- A module is saved once, by the first rank that has it, whole if it is sharded. So the run goes on on any number of
--- ranks of each module, also of none: on ranks that all modules share. A module with stages (pp) goes on with equally
--- many: its names begin with the stage, as "language.stage1.".
---
--- After this call optim.clip_grad_norm(parts:parameters(), 1) clips by the norm over all modules, too.
---@param opts {topology: mimo.Topology, modules: table<string, any>} modules of this rank by name, plain ones, or what
---sharding.data_parallel or sharding.fully_shard returned
---@return mimo.State
function M.state(opts)
  local o = options.read("mimo.state", opts, { topology = options.required, modules = options.required })
  topologies.check("mimo.state", o.topology)
  own_modules("mimo.state", o.topology, o.modules) -- which are those of this rank
  local named = {}
  for _, sizes in ipairs(o.topology:modules()) do
    local module = o.modules[sizes.name]
    if module then
      local stage = o.topology:coordinates(nil, sizes.name).pp
      named[#named + 1] = { module = module,
        prefix = sizes.pp > 1 and ("%s.stage%d."):format(sizes.name, stage) or sizes.name .. "." }
      parts.note(module, sizes.dp * sizes.cp * sizes.tp)
    end
  end
  return setmetatable({ named = named }, State)
end

return M
