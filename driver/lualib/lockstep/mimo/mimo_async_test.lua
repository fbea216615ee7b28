--- A started call of a bridge does not wait: sizes are planned, none is exchanged. Vision on rank 0,
--- language on rank 1. Where Start waited for the other side, both tests would hang until the run's timeout: the other
--- side starts only once it has been told that this one has.

local dist = require "lockstep.distributed"
local mimo = require "lockstep.mimo"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local IS_VISION = dist.rank() == 0
local topo = mimo.topology { modules = { { name = "vision" }, { name = "language", first_rank = 1 } } }

--- Rows that differ from call to call, and how many in all; the first call says dtype and sizes.
local function rows_of(call) return { call % 3, 2 * call % 5, call }, call % 3 + 2 * call % 5 + call end

local function x_of(call)
  if not IS_VISION then return nil end
  local _, total = rows_of(call)
  return torch.full({ total, 2 }, call):requires_grad_(true)
end

--- The call after `starts_first` says that it has started; the other side then starts its own.
local function start_in_turn(bridge, call, starts_first)
  local x, rows = x_of(call), rows_of(call)
  local told = torch.zeros {}
  local pending
  if IS_VISION == (starts_first == "vision") then
    pending = bridge:start(x, { rows_per_sample = rows })
    dist.send(told, IS_VISION and 1 or 0)
  else
    dist.recv(told, IS_VISION and 1 or 0)
    pending = bridge:start(x, { rows_per_sample = rows })
  end
  return pending, x
end

for _, starts_first in ipairs { "language", "vision" } do
  t.test(("StartDoesNotWait(%s starts first)"):format(starts_first), function()
    local bridge = mimo.bridge { topology = topo, from = "vision", to = "language" }
    -- Only what it receives in its first call tells a rank of language what kind of tensors come.
    local x = x_of(1)
    torch.sum(bridge(x, { rows_per_sample = rows_of(1) })):backward()

    for call = 2, 9 do
      local pending
      pending, x = start_in_turn(bridge, call, starts_first)
      local y, _, total = pending:wait(), rows_of(call)
      if not IS_VISION then t.equal(y:detach(), torch.full({ total, 2 }, call)) end
      torch.sum(y * (IS_VISION and 1 or call)):backward()
      if x then t.equal(x.grad, torch.full({ total, 2 }, call)) end
    end
  end)
end

t.test("ASenderStartsItsFirstCallsAloneAndTheReceiverTwoAhead", function()
  local bridge = mimo.bridge { topology = topo, from = "vision", to = "language" }
  local told, pending, xs = torch.zeros {}, {}, {}
  -- Two calls of vision are under way before language has made one: as many as a bridge lets it be ahead.
  if not IS_VISION then dist.recv(told, 0) end
  for call = 1, 2 do
    xs[call] = x_of(call)
    pending[call] = bridge:start(xs[call], { rows_per_sample = rows_of(call) })
  end
  if IS_VISION then dist.send(told, 1) end
  for call = 1, 2 do
    local y, _, total = pending[call]:wait(), rows_of(call)
    if not IS_VISION then t.equal(y:detach(), torch.full({ total, 2 }, call)) end
    pending[call] = y
  end
  for call = 1, 2 do
    torch.sum(pending[call]):backward()
    if IS_VISION then t.equal(xs[call].grad, torch.ones_like(xs[call]:detach())) end
  end
end)
