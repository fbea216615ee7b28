--- Calls of a bridge on ranks that have no rows: their x may be of any dtype.

local dist = require "lockstep.distributed"
local mimo = require "lockstep.mimo"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local WIDTH, SAMPLES = 3, 4
local bfloat16 = torch.bfloat16

local GRIDS = {
  { "two_to_two", { { name = "vision", dp = 2 }, { name = "language", dp = 2, first_rank = 2 } } },
  { "three_to_one", { { name = "vision", ranks = { 3, 1, 0 }, dp = 3 }, { name = "language", ranks = { 2 } } } },
  { "one_to_three", { { name = "vision" }, { name = "language", dp = 3, first_rank = 1 } } },
  { "lanes", { { name = "vision", tp = 2 }, { name = "language", tp = 2, first_rank = 2 } } },
  { "colocated_fewer", { { name = "vision", dp = 4 }, { name = "language", dp = 2, tp = 2 } } },
  { "colocated_more", { { name = "vision", dp = 2, tp = 2 }, { name = "language", dp = 4 } } },
  { "colocated_otherwise", { { name = "vision", dp = 4 }, { name = "language", dp = 4, ranks = { 2, 3, 0, 1 } } } },
}

--- The rows of each sample in the calls of a bridge.
local CALLS = {
  { "first_replica_alone", { { 2, 0, 0, 0 }, { 1, 2, 0, 3 } } },
  { "last_replica_alone", { { 0, 0, 0, 1 }, { 0, 2, 0, 0 }, { 0, 0, 0, 0 } } },
  { "none_at_first", { { 0, 0, 0, 0 }, { 0, 0, 3, 0 }, { 1, 1, 1, 1 } } },
}

--- Returns the rows of a replica's samples, which may be divided unevenly.
local function rows_of(rows, topology, name)
  if not topology:peers(name, "dp") then return nil end
  local place, dp_size = topology:coordinates(nil, name).dp, #topology:peers(name, "dp")
  local mine = mimo.slice({ rows = rows }, place, dp_size, { batch_size = SAMPLES, uneven = true }).rows
  local sum = 0
  for _, count in ipairs(mine) do sum = sum + count end
  return sum
end

for _, grid in ipairs(GRIDS) do
  for _, case in ipairs(CALLS) do
    local modules, calls = grid[2], case[2]
    t.test(("ZerosOfAnotherDtypeAreNoRows_%s_%s"):format(grid[1], case[1]), function()
      local topology = mimo.topology { modules = modules }
      local bridge = mimo.bridge { topology = topology, from = "vision", to = "language" }
      local have_come = false
      for number, rows in ipairs(calls) do
        local sent, received = rows_of(rows, topology, "vision"), rows_of(rows, topology, "language")
        for _, count in ipairs(rows) do have_come = have_come or count > 0 end
        local x
        if sent == 0 then
          x = torch.zeros { 0, WIDTH } -- float32
        elseif sent then
          x = torch.full({ sent, WIDTH }, number, { dtype = bfloat16 }):requires_grad_(true)
        end

        local y = bridge(x, { rows_per_sample = rows })
        torch.sum(y * 2):backward()

        if received then
          t.equal(y:detach():to(torch.float32), torch.full({ received, WIDTH }, number))
          if have_come then t.equal(y.dtype, bfloat16) end
        end
        if x and x.requires_grad then
          t.equal(x.grad:to(torch.float32), torch.full({ sent, WIDTH }, 2))
        end
      end
    end)
  end
end

t.test("RowsOfAnotherDtypeAreAnError", function()
  local topology = mimo.topology { modules = GRIDS[1][2] }
  local bridge = mimo.bridge { topology = topology, from = "vision", to = "language" }
  local x = dist.rank() < 2 and torch.zeros({ 1, WIDTH }, { dtype = dist.rank() == 1 and bfloat16 or nil }) or nil
  if x then x:requires_grad_(true) end

  local ok, message = pcall(function() torch.sum(bridge(x, { rows_per_sample = { 1, 1 } })):backward() end)

  t.equal(ok, false)
  local text = tostring(message)
  t.truthy(text:find(" BFloat16 [rows, 3]", 1, true) and text:find(" Float [rows, 3]", 1, true), text)
end)

t.test("SizesOfZerosAreCompared", function()
  local topology = mimo.topology { modules = GRIDS[3][2] }
  local bridge = mimo.bridge { topology = topology, from = "vision", to = "language" }
  local function call(width)
    return pcall(bridge, dist.rank() == 0 and torch.zeros { 0, width } or nil, { rows_per_sample = { 0, 0, 0 } })
  end
  t.truthy(call(WIDTH))

  local ok, message = call(WIDTH + 1)

  t.equal(ok, false)
  t.truthy(tostring(message):find("x is Float [rows, 4], but was Float [rows, 3] in earlier calls", 1, true),
    tostring(message))
end)
