--- Links between the stages of a module in mimo.step.
---
--- A rank of a stage sends its hidden states to the rank of the next stage with the same place in dp, cp and tp, and
--- gets their gradient back. Both ranks have the same part of a micro-batch. So nothing is cut, and parts over cp or tp
--- go on as they are. A link is a bridge from one rank to one rank: it sends up to two calls ahead, and an error of one
--- rank is one of the other, too.

local dist = require "lockstep.distributed"
local core_mimo = require "lockstep.core.mimo"

local M = {}

---@class mimo.StageLink
---@field core lockstep.core.mimo.Bridge
---@field from string the stage that sends, such as "language stage 0"
---@field to string the stage that receives, such as "language stage 1"
---@operator call: torch.Tensor|torch.Tensor[]
local Link = {}
Link.__index = Link

--- Returns whether this is a link, and not a bridge.
---@param value any
---@return boolean
function M.is_one(value) return getmetatable(value) == Link end

--- Carries x, a tensor or an array of tensors with the same rows, to the next stage; x is nil there.
---@param x torch.Tensor|torch.Tensor[]|nil
---@return torch.Tensor|torch.Tensor[]
function Link:__call(x)
  local is_list = type(x) == "table"
  local results = self.core:start(is_list and x or { x }, nil, nil, "", nil):wait()
  if is_list or #results > 1 then return results end
  return results[1]
end

--- Connects two ranks. The topology has their stages, and the other ranks, which take no part. A topology has a module
--- "language". It is these other ranks, or the stage that receives where there are no others.
local function connect(topology, name, stage, sender, receiver)
  local sends, receives = ("%s stage %d"):format(name, stage), ("%s stage %d"):format(name, stage + 1)
  local modules = { { name = sends, ranks = { sender } }, { name = receives, ranks = { receiver } } }
  local others = {}
  for rank = 0, dist.world_size() - 1 do
    if rank ~= sender and rank ~= receiver then others[#others + 1] = rank end
  end
  if #others > 0 then
    modules[3] = { name = "language", ranks = others, dp = #others }
  else
    modules[2].name = "language"
  end
  local from, to = modules[1].name, modules[2].name
  local link_topology = core_mimo.topology { modules = modules, edges = { { from = from, to = to } } }
  local link = setmetatable({ from = sends, to = receives,
    core = link_topology:bridge(from, to, 0, false, "none", true) }, Link)
  topology.bridges[{}] = link.core -- mimo.reduce_gradients looks for failures and missing backwards
  return link
end

--- Makes the links of this rank's stage: from the stage before and to the stage after, or nil.
--- Collective over the module's ranks.
---@param topology mimo.Topology
---@param name string of the module
---@return mimo.StageLink? before
---@return mimo.StageLink? after
function M.make(topology, name)
  local line, own = topology:peers(name, "pp"), topology:coordinates(nil, name).pp
  local before, after
  for stage = math.max(own - 1, 0), math.min(own, #line - 2) do
    local link = connect(topology, name, stage, line[stage + 1], line[stage + 2])
    if stage < own then before = link else after = link end
  end
  return before, after
end

return M
