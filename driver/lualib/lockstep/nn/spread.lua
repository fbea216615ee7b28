--- Gradients whose elements lie on several ranks: over which groups, and their norm. Elements that several ranks hold
--- alike count once.

local dist = require "lockstep.distributed"
local splits = require "lockstep.nn.splits"
local torch = require "lockstep.torch"

local M = {}

--- Stands for the group of all ranks.
local ALL = {}

---@class nn.Spread
---@field groups (dist.Group|table)[] the ranks of each hold other elements. Every rank of a group names them in one
--- order
---@field copies integer how many ranks of these groups hold each element
---@field last dist.Group|table|nil holds other parameters on each of its ranks, as the stages of a pipeline do
---@field within nn.Spread? without `last`

---@type table<torch.Tensor, nn.Spread>
local spreads = setmetatable({}, { __mode = "k" })

--- Notes that the elements of a parameter and its gradient lie on the ranks of some groups. Parts that tensor_parallel
--- has made (nn.splits) are known without it.
---@param p torch.Tensor
---@param groups (dist.Group|false)[] false: all ranks
---@param copies integer? how many of these ranks hold each element: 1 unless given
function M.note(p, groups, copies)
  local own = {}
  for i, group in ipairs(groups) do own[i] = group or ALL end
  spreads[p] = { groups = own, copies = copies or 1 }
end

--- Returns the groups over which a parameter lies; nil where each rank has the whole of it.
---@param p torch.Tensor
---@return nn.Spread?
function M.of(p)
  if spreads[p] then return spreads[p] end
  local split = splits.of(p)
  return split and { groups = { split.owner.group or ALL }, copies = split.copies or 1 } or nil
end

--- Notes that the ranks of `group` hold other parameters, so that a norm is also over them. `copies`: how many of these
--- ranks hold this one, as tied weights of the first and the last stage.
---@param p torch.Tensor
---@param group dist.Group? nil: all ranks
---@param copies integer? 1 unless given
function M.note_stage(p, group, copies)
  local own = M.of(p) or { groups = {}, copies = 1 }
  own = own.within or own -- a second note replaces the first
  spreads[p] = { groups = own.groups, copies = own.copies * (copies or 1), last = group or ALL, within = own }
end

---@class nn.SpreadClass
---@field groups table<any, true>
---@field grads table<integer, torch.Tensor[]> by the number of copies
---@field value torch.Tensor?

--- Returns the gradients of the parameters by the groups that they lie on, whole ones first; these groups, in the order
--- in which the parameters name them; and the group of the stages.
local function sort(params)
  local whole = { groups = {}, grads = {} } ---@type nn.SpreadClass
  local classes, by_key, ids, order, last = { whole }, { [""] = whole }, {}, {}, nil
  for _, p in ipairs(params) do
    local spread, key = M.of(p) or { groups = {}, copies = 1 }, {}
    for i, group in ipairs(spread.groups) do
      if not ids[group] then
        order[#order + 1] = group
        ids[group] = #order
      end
      key[i] = ids[group]
    end
    key, last = table.concat(key, " "), last or spread.last
    local class = by_key[key]
    if not class then
      class = { groups = {}, grads = {} }
      for _, group in ipairs(spread.groups) do class.groups[group] = true end
      by_key[key], classes[#classes + 1] = class, class
    end
    if p.grad and p.grad:numel() > 0 then
      class.grads[spread.copies] = class.grads[spread.copies] or {}
      table.insert(class.grads[spread.copies], p.grad)
    end
  end
  return classes, order, last
end

--- Returns the norm of the gradients of some parameters over the ranks, in float64: each element of a weight counts
--- once. nil where every parameter is whole. Collective then: all ranks of a group give the same parameters, though one
--- may have no gradient of some.
---@param params torch.Tensor[]
---@param norm_of fun(grads: torch.Tensor[]): torch.Tensor of at least one gradient
---@param p_norm number which norm it is; math.huge: the largest magnitude
---@return torch.Tensor?
function M.gradient_norm(params, norm_of, p_norm)
  local classes, order, last = sort(params)
  if #order == 0 and not last then return nil end
  local is_max = p_norm == math.huge
  local function join(a, b) return is_max and torch.maximum(a, b) or a + b end
  local function over(group, value)
    return dist.all_reduce(value, is_max and "max" or "sum", { group = not rawequal(group, ALL) and group or nil })
  end
  for _, class in ipairs(classes) do
    class.value = torch.zeros({}, { device = dist.device(), dtype = torch.float64 })
    for copies, grads in pairs(class.grads) do
      local norm = norm_of(grads):to { device = dist.device(), dtype = torch.float64 }
      class.value = join(class.value, is_max and norm or norm ^ p_norm / copies)
    end
  end
  for _, group in ipairs(order) do
    local members, values = {}, {}
    for _, class in ipairs(classes) do
      if class.groups[group] then
        members[#members + 1], values[#values + 1] = class, class.value
      end
    end
    local sums = over(group, torch.stack(values))
    for i, class in ipairs(members) do class.value = sums[i - 1] end
  end
  local total = classes[1].value
  for i = 2, #classes do total = join(total, classes[i].value) end
  if last then total = over(last, total:clone()) end
  return is_max and total or total ^ (1 / p_norm)
end

return M
