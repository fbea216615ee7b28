--- lockstep.check on several ranks. A faulty device is played by a product with one wrong number.

local check = require "lockstep.check"
local dist = require "lockstep.distributed"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local world, rank = dist.world_size(), dist.rank()
local QUICK = { seconds = 0, slower = 1e9, megabytes = 1 }

t.test("EveryRankGetsTheRowsOfAllAndTheGeneratorsStay", function()
  torch.manual_seed(5)
  local expected = torch.rand(3)
  torch.manual_seed(5)
  local rows = check.ranks(QUICK)
  t.equal(torch.rand(3), expected)
  t.equal(#rows, world)
  for i, row in ipairs(rows) do
    t.equal(row.rank, i - 1)
    t.equal(row.wrong, {})
    t.truthy(row.rates.float32 > 0 and row.rates.memory > 0)
    -- Of two ranks the link is one.
    t.equal(row.rates["to next"] ~= nil, world > 2 or i == 1)
  end
end)

t.test("ARankWhoseProductsAreWrongOnceIsNamedOnAllRanks", function()
  local matmul, calls = torch.matmul, 0
  if rank == 1 then
    torch.matmul = function(a, b) -- luacheck: ignore 122
      local c = matmul(a, b)
      calls = calls + 1
      if calls == 2 then c[7][9]:add_(1e-3) end
      return c
    end
  end
  local ok, message = pcall(check.ranks, QUICK)
  torch.matmul = matmul -- luacheck: ignore 122
  t.equal(ok, false)
  t.truthy(tostring(message):find("check.ranks: rank 1 %([^,]+, cpu%): float32 products of the same matrices differ"),
    message)
  t.equal(tostring(message):find("rank 0 (", 1, true), nil)
end)

t.test("ARankThatIsSlowIsNamedOnAllRanks", function()
  local matmul = torch.matmul
  if rank == world - 1 then
    torch.matmul = function(a, b) -- luacheck: ignore 122
      for _ = 1, 20 do matmul(a, b) end
      return matmul(a, b)
    end
  end
  local ok, message = pcall(check.ranks, { seconds = 0, slower = 4, megabytes = 1 })
  torch.matmul = matmul -- luacheck: ignore 122
  t.equal(ok, false)
  local named = ("rank %d %%([^,]+, cpu%%): float32 [%%d.]+ times slower than the median"):format(world - 1)
  t.truthy(tostring(message):find(named), message)
end)
