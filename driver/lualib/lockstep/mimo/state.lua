--- mimo.state: what a rank saves where modules have ranks of their own.

local options = require "lockstep.options"
local plain = require "lockstep.plain"

local M = {}

--- Returns an object for run:state that saves this rank's modules and their optimizer. Ranks hold different modules, so
--- a run resumes on as many ranks as saved it.
---
---     run:state { own = mimo.state { modules = { vision = tower }, optimizer = optimizer }, samples = loader }
---@param opts {modules: table<string, nn.Module>, optimizer: optim.Optimizer} modules of this rank by name
---@return table # with state_dict and load_state_dict
function M.state(opts)
  local o = options.read("mimo.state", opts, { modules = options.required, optimizer = options.required })
  plain.check(o.modules.optimizer == nil, 'mimo.state: a module cannot have the name "optimizer"')
  local own = {}
  function own.state_dict()
    local states = { optimizer = o.optimizer:state_dict() }
    for name, module in pairs(o.modules) do states[name] = module:state_dict() end
    return states
  end
  function own.load_state_dict(_, states)
    for name, module in pairs(o.modules) do
      plain.check(states[name], 'mimo.state: the state has no module "%s"; each rank must have the modules that it had',
        name)
      module:load_state_dict(states[name])
    end
    o.optimizer:load_state_dict(states.optimizer)
  end
  return own
end

return M
