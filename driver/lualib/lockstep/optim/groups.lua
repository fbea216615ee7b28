--- optim.groups: which parameters of a model decay.

local core = require "lockstep.core"
local nn = require "lockstep.nn"
local options = require "lockstep.options"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

local M = {}

--- The dimensions of each parameter in its module, by full name. The parameters of a sharded model are parts of these,
--- of one dimension each.
local function dimensions_of(model)
  local dims = {}
  for name, module in model:named_modules() do
    for field, value in pairs(nn.fields(module)) do
      if torch.is_tensor(value) then dims[name == "" and field or name .. "." .. field] = value:dim() end
    end
  end
  return dims
end

--- Returns the trained parameters of a model as two groups for an optimizer. Matrices and tensors of more dimensions
--- decay: projections, embeddings, kernels of convolutions. Vectors and scalars do not: norms and biases. Frozen
--- parameters are in none of the two. One of the groups may be empty.
---
---     local optimizer = optim.AdamW(optim.groups(model, { weight_decay = 0.1 }), { lr = 3e-4 })
---@param model nn.Module|sharding.DataParallel
---@param opts {weight_decay: number?}? default 0.1
---@return {params: torch.Tensor[], weight_decay: number}[]
function M.groups(model, opts)
  local o = options.read("optim.groups", opts, { weight_decay = 0.1 })
  if o.weight_decay < 0 or o.weight_decay ~= o.weight_decay then
    core.raise("optim.groups: weight_decay must be a number of at least 0, not " .. tostring(o.weight_decay))
  end
  local iterator = type(model) == "table" and (nn.is_module(model) or getmetatable(model)) and model.named_parameters
  plain.check(type(iterator) == "function", "optim.groups: expected a module, not a %s", type(model))
  local decaying, others, dims = {}, {}, dimensions_of(model)
  for name, p in model:named_parameters() do
    if p.requires_grad then table.insert((dims[name] or p:dim()) >= 2 and decaying or others, p) end
  end
  if #decaying + #others == 0 then core.raise("optim.groups: no parameter of the model requires a gradient") end
  return { { params = decaying, weight_decay = o.weight_decay }, { params = others, weight_decay = 0 } }
end

return M
