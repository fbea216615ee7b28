--- Bridges that the script has dropped end, with their threads and connections.

local dist = require "lockstep.distributed"
local mimo = require "lockstep.mimo"
local run = require "lockstep.run"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local rank = dist.rank()

--- Set in the flags of a thread that has begun to end. The kernel lists it for a while after it has been joined.
local PF_EXITING = 4

--- Returns how many threads and open files this process has. io.popen would add its pipe: one end or both, as the
--- shell's speed decides.
local function held()
  local pid = t.read_file("/proc/self/status"):match "Pid:%s*(%d+)"
  local list = ("%s/held.%d"):format(run.dir, rank)
  assert(os.execute(("ls /proc/%s/fd >'%s'"):format(pid, list)) == 0)
  local _, files = t.read_file(list):gsub("\n", "")
  os.execute(("cat /proc/%s/task/*/stat >'%s' 2>/dev/null"):format(pid, list)) -- fails where a thread ends meanwhile

  local threads = 0
  for flags in t.read_file(list):gmatch "%) %a %-?%d+ %-?%d+ %-?%d+ %-?%d+ %-?%d+ (%d+)" do
    if bit.band(tonumber(flags), PF_EXITING) == 0 then threads = threads + 1 end
  end
  t.truthy(threads > 0)
  return { threads = threads, files = files }
end

--- Two ranks of vision and one of language, or one rank of each of three modules.
local function all_ranks()
  return mimo.topology { modules = { { name = "vision", dp = 2 }, { name = "language", first_rank = 2 } } }
end
local function own_ranks()
  return mimo.topology { modules = { { name = "vision" }, { name = "audio", first_rank = 1 },
    { name = "language", first_rank = 2 } } }
end

local function new_bridge(topology, from)
  return mimo.bridge { topology = topology, from = from or "vision", to = "language" }
end

--- Carries a row of each sample there and back.
local function carry(bridge)
  local x = rank < 2 and torch.ones({ 1, 2 }):requires_grad_(true) or nil
  torch.sum(bridge(x) * 3):backward()
  if x then t.equal(x.grad, torch.full({ 1, 2 }, 3)) end
end

t.test("TwentyBridgesHoldAsMuchAsAFew", function()
  local topology, before = all_ranks(), nil
  for i = 1, 20 do
    carry(new_bridge(topology))
    if i == 3 then before = held() end
  end

  local after = held()

  t.truthy(after.threads <= before.threads, ("%d threads, then %d"):format(before.threads, after.threads))
  t.truthy(after.files <= before.files, ("%d files, then %d"):format(before.files, after.files))
end)

--- Makes a bridge and drops it: so that those before it end.
local function meet() new_bridge(all_ranks()) end

t.test("ABridgeLivesAsLongAsAGraphThroughIt", function()
  local x = rank < 2 and torch.ones({ 1, 2 }):requires_grad_(true) or nil
  local y = new_bridge(all_ranks())(x)

  meet()
  meet()
  torch.sum(y * 3):backward()

  if x then t.equal(x.grad, torch.full({ 1, 2 }, 3)) end
end)

t.test("ABridgeLivesAsLongAsOneOfItsRanksHoldsIt", function()
  meet()
  meet()
  local empty = held()
  local kept = {}
  local function make() kept[1] = new_bridge(all_ranks()) end
  make() -- a register of this function would hold it, too
  if rank < 2 then kept[1] = nil end

  meet()
  meet()
  t.truthy(held().threads > empty.threads)

  t.equal(kept[1] ~= nil, rank == 2)
  kept[1] = nil
  meet()
  meet()
  t.truthy(held().threads <= empty.threads)
end)

-- A bridge of two ranks ends when all three make one, and not the other way round.
t.test("BridgesOfFewerRanksEndToo", function()
  meet()
  meet()
  local empty = held()
  for _, from in ipairs { "vision", "audio" } do
    if rank == 2 or own_ranks():module() == from then new_bridge(own_ranks(), from) end
  end
  t.truthy(held().threads > empty.threads)

  meet()
  meet()
  t.truthy(held().threads <= empty.threads)
end)

t.test("ABridgeThatFailedEnds", function()
  meet()
  meet()
  local empty = held()
  local ok = pcall(new_bridge(all_ranks()), ({ [0] = torch.ones { 1, 2 }, torch.ones {} })[rank])
  t.equal(ok, rank == 0) -- which does not wait

  meet()
  meet()

  t.truthy(held().threads <= empty.threads)
end)

t.test("AGradientThatNobodyTookIsNamed", function()
  local function forget()
    local x = rank < 2 and torch.ones({ 1, 2 }):requires_grad_(true) or nil
    local y = new_bridge(all_ranks())(x)
    if rank == 2 then torch.sum(y):backward() end
  end
  forget()

  local bridge
  local ok, message = pcall(function() bridge = new_bridge(all_ranks()) end)

  t.equal(ok, rank < 2)
  if ok then t.raises("rank 2 (language) failed", carry, bridge) end
  if rank == 2 then
    t.truthy(tostring(message):find("sent 1 gradients to rank 0 (vision), which took 0 of them and left", 1, true),
      tostring(message))
  end
end)
