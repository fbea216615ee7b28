--- The rank of another machine to which each rank sends its snapshots: the next machine's, in a circle.

local M = {}

---@class state.Route
---@field from integer a rank
---@field to integer

--- Returns the routes, in an order in which ranks that send and receive one after the other never wait in a circle, and
--- the receiver of each rank. Nothing is sent if all ranks are on one machine.
---@param ranks {keeper: integer}[] by rank: the keeper of its machine
---@return state.Route[]
---@return table<integer, integer>
function M.between(ranks)
  local machines, by_keeper = {}, {}
  for rank, one in ipairs(ranks) do
    local machine = by_keeper[one.keeper]
    if not machine then
      machine = {}
      by_keeper[one.keeper], machines[#machines + 1] = machine, machine
    end
    machine[#machine + 1] = rank - 1
  end
  local routes, to = {}, {}
  if #machines == 1 then return routes, to end
  -- All ranks go through one list. Machines of odd numbers send first, so that half of the ranks send at a time.
  for parity = 1, 0, -1 do
    for i, machine in ipairs(machines) do
      local partners = machines[i % #machines + 1]
      for k, rank in ipairs(i % 2 == parity and machine or {}) do
        to[rank] = partners[(k - 1) % #partners + 1]
        routes[#routes + 1] = { from = rank, to = to[rank] }
      end
    end
  end
  return routes, to
end

return M
