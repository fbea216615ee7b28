--- Finds ranks whose values differ, for errors about values that must be equal.

local dist = require "lockstep.distributed"

local M = {}

--- Returns nothing if all ranks gave the same text, else the texts with their ranks: "3 micro-batches: ranks 0, 2;
--- 2 micro-batches: rank 1".
---@param texts string[]
---@param ranks integer[]? that gave them; nil: all ranks
---@return string?
function M.find(texts, ranks)
  local order, of = {}, {}
  for i, text in ipairs(texts) do
    if not of[text] then
      of[text] = {}
      order[#order + 1] = text
    end
    table.insert(of[text], ranks and ranks[i] or i - 1)
  end
  if #order < 2 then return nil end
  for i, text in ipairs(order) do
    order[i] = ("%s: %s %s"):format(text, #of[text] == 1 and "rank" or "ranks", table.concat(of[text], ", "))
  end
  return table.concat(order, "; ")
end

--- The same for texts that the ranks have yet to exchange. Collective.
---@param text string of this rank
---@param group dist.Group? nil: all ranks
---@return string?
function M.gather(text, group)
  if dist.world_size() == 1 then return nil end
  return M.find(dist.all_gather_object(text, { group = group }), group and group:ranks())
end

return M
