--- --verify-every on three ranks: which replicas differ, and that a comparison changes nothing of the training.
--- tests/verification_test.cc has runs that end.

local core = require "lockstep.core"
local core_state = require "lockstep.core.state"
local dist = require "lockstep.distributed"
local files = require "lockstep.core.files"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"
local verification = require "lockstep.sharding.verification"

local rank, world = dist.rank(), dist.world_size()

t.test("TheMajorityNamesTheOthers", function()
  local names = { "output 1", 'the gradient of "a"', 'the gradient of "b"', 'the gradient of "c"' }
  local good, bad, other = ("0"):rep(32), ("0"):rep(8) .. ("1"):rep(24), ("0"):rep(24) .. ("2"):rep(8)
  local function verdict(...)
    local all = {}
    for i, bits in ipairs { ... } do all[i] = { bits = bits, host = "node" .. i } end
    return verification.verdict(all, names) or "none"
  end
  t.equal(verdict(good, good), "none")
  t.equal(verdict(good, good, good, good), "none")
  t.equal(verdict(good, good, other), 'rank 2 (node3) computed other bits than the 2 other replicas: '
    .. 'the gradient of "c"')
  t.equal(verdict(bad, good, good, good), 'rank 0 (node1) computed other bits than the 3 other replicas: '
    .. 'the gradient of "a", the gradient of "b", the gradient of "c"')
  t.equal(verdict(good, bad, good, other, good), 'rank 1 (node2), rank 3 (node4) computed other bits than the 3 other '
    .. 'replicas: the gradient of "a", the gradient of "b", the gradient of "c"')
  t.equal(verdict(good, other), 'rank 0 (node1) and rank 1 (node2) computed different bits, and no majority says which '
    .. 'are right: the gradient of "c"')
  t.equal(verdict(good, other, bad), 'rank 0 (node1) and rank 1 (node2) and rank 2 (node3) computed different bits, '
    .. 'and no majority says which are right: the gradient of "c"')
  t.equal(verdict(good, ("3"):rep(32), good), "rank 1 (node2) computed other bits than the 2 other replicas: output 1, "
    .. 'the gradient of "a" and 2 more')
end)

local Net = nn.Module:subclass("Net")
function Net:init()
  self.fc1, self.norm, self.dropout, self.fc2 = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 2)
  self.calls, self.fault = 0, function(x) return x end
end
function Net:forward(x)
  self.calls = self.calls + 1
  return { out = self.fc2(self.dropout(self.norm(self.fault(self.fc1(x.rows))))), rows = #x }
end

--- Trains for five steps. Returns the bits of what was trained, the number of forward passes and the verdict.
local function train(kind, every, fault, opts)
  torch.manual_seed(3)
  local net = Net()
  net.fault = fault or net.fault
  local model = sharding.parallel(net, kind, opts)
  torch.manual_seed(3 + rank) -- each rank drops its own
  math.randomseed(3 + rank)
  local optimizer = optim.AdamW(model:parameters(), { lr = 1e-2 })
  local ended = {}
  core.verify_every = function() return every end
  local end_together = core_state.end_together
  core_state.end_together = function(code, text)
    ended = { code, text }
    error("ended", 0)
  end
  local ok, message = pcall(function()
    for step in run:steps(function() return { rows = torch.randn({ 6, 4 }) } end, 5) do
      for micro = 1, 2 do
        local function backward()
          local result = model({ rows = torch.randn({ 6, 4 }) })
          return result.out:square():sum():backward()
        end
        if micro == 1 then model:no_sync(backward) else backward() end
      end
      optimizer:step()
      optimizer:zero_grad()
      if step == 2 then model:eval() end -- dropout and batch norm in both modes
    end
  end)
  core.verify_every, core_state.end_together = function() end, end_together
  if not ok and message ~= "ended" then error(message, 0) end
  local all = { torch.randn({ 2 }), tostring(math.random()) }
  for _, p in ipairs(model:parameters()) do all[#all + 1] = p:detach() end
  for _, b in model:named_buffers() do all[#all + 1] = b end
  return table.concat({ files.checksum_of(all) }, " "), net.calls, unpack(ended)
end

for _, case in ipairs { { "data_parallel", {} }, { "data_parallel", { data_parallel = { broadcast_buffers = false } } },
  { "fully_shard", {} }, { "fully_shard", { fully_shard = { skipped = "join", reshard_after_forward = false } } },
} do
  local name, opts = unpack(case)
  local kind = name .. " " .. core.json_encode(opts)
  t.test("AComparisonLeavesTheTrainingAsItIs " .. kind, function()
    local bits, calls = train(name, nil, nil, opts)
    local compared_bits, compared_calls, code = train(name, 2, nil, opts)
    t.equal({ calls, compared_calls, code or "none" }, { 10, 13, "none" })
    t.equal(compared_bits, bits)
  end)

  t.test("ARankThatComputesOtherValuesIsNamed " .. kind, function()
    local function in_forward(x) return rank == 1 and x + 1e-6 or x end
    local function in_backward(x)
      if rank == 1 and x.requires_grad then x:register_hook(function(g) return g * 1.000001 end) end
      return x
    end
    for _, one in ipairs { { "output 1", in_forward }, { 'of "fc1', in_backward } } do
      local what, fault = unpack(one)
      local _, _, code, text = train(name, 2, fault, opts)
      t.equal(code, 75)
      local expected = world > 2 and "^step 0: rank 1 %([^)]+%) computed other bits than the " .. world - 1
        .. " other replicas: " or "^step 0: rank 0 %([^)]+%) and rank 1 %([^)]+%) computed different bits, and no "
      t.truthy(text:find(expected) and text:find(what, 1, true), text)
    end
  end)
end

t.test("AFaultThatComesLaterIsFoundInTheNextComparedStep", function()
  local function later(x) return rank == 1 and run.progress.step >= 1 and x * 1.0001 or x end
  local _, _, code, text = train("data_parallel", 2, later)
  t.equal(code, 75)
  t.truthy(text:find "^step 2: .*; %-%-verify%-every 2: no state is saved; states that were saved after step 0, ", text)
end)

t.test("WithoutReplicasItIsAnError", function()
  local group = dist.group { ranks = { rank } }
  t.raises("--verify-every 2: this model has one replica, and nothing to compare it with", train, "data_parallel", 2,
    nil, { data_parallel = { group = group } })
end)

t.test("ArgumentsThatCannotBeSentAreAnError", function()
  local model = sharding.data_parallel(nn.Linear(2, 2))
  core.verify_every = function() return 1 end
  for _ in run:steps(function() return 1 end, 1) do
    t.raises("--verify-every: the arguments of this pass cannot be given to the other replicas: ",
      model.forward, model, print)
  end
  core.verify_every = function() end
end)
