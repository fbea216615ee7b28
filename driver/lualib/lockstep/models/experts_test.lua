--- A mixture of experts against one that asks each token for its experts, and what it asks of a device.

local calls = require "calls_fixture"
local experts = require "lockstep.models.experts"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local NUM = 8

local function mixture(dtype, o)
  torch.manual_seed(1)
  local net = experts.Mixture { hidden = o.hidden, intermediate = o.intermediate, experts = NUM,
    per_token = o.per_token, normalize = true }
  return net:to(dtype)
end

--- Sends each token to its experts, one after another.
local function one_by_one(net, x, per_token)
  local dtype = x.dtype == torch.float64 and torch.float64 or torch.float32
  local shares, chosen = net.gate(x):softmax(-1, { dtype = dtype }):topk(per_token, -1)
  shares = (shares / shares:sum({ -1 }, true)):to(x.dtype)
  local rows, list = {}, chosen:totable()
  for token = 0, x:size(0) - 1 do
    local sum = torch.zeros({ x:size(1) }, { dtype = x.dtype })
    for k, expert in ipairs(list[token + 1]) do
      local gate, up = unpack(torch.linear(x[token], net.experts.gate_up_proj[expert]):chunk(2, -1))
      local y = torch.linear(torch.silu(gate) * up, net.experts.down_proj[expert])
      sum = sum + y * shares[token][k - 1]
    end
    rows[token + 1] = sum
  end
  return torch.stack(rows)
end

--- Returns the result of fn, and the gradients of x and of the net's parameters.
local function with_gradients(net, x, fn)
  x = x:detach():clone():requires_grad_()
  local y = fn(x)
  net:zero_grad()
  local weights = torch.arange(y:numel(), { dtype = y.dtype }):view(y.shape):sin()
  torch.sum(y * weights):backward()
  local found = { y:detach(), x.grad }
  for _, p in ipairs(net:parameters()) do found[#found + 1] = p.grad end
  return found
end

t.test("RandomMixturesAreThoseOfTheirExpertsOneByOne", function()
  for seed = 1, 6 do
    torch.manual_seed(seed)
    math.randomseed(seed)
    local o = { hidden = 2 * math.random(8), intermediate = 2 * math.random(8), per_token = math.random(4) }
    local net = mixture(torch.float64, o)
    local x = torch.randn({ math.random(20), o.hidden }, { dtype = torch.float64 })

    local got = with_gradients(net, x, function(given) return (net(given)) end)
    local expected = with_gradients(net, x, function(given) return one_by_one(net, given, o.per_token) end)

    for i, tensor in ipairs(got) do t.truthy(torch.allclose(tensor, expected[i], 1e-10, 1e-12), seed .. ", " .. i) end
  end
end)

--- Operators that add with atomics on a GPU.
local ATOMIC = { "aten::index_add", "aten::index_add_", "aten::scatter_add", "aten::scatter_add_" }
--- Operators that wait for a GPU. The CPU's own _grouped_mm reads its ends with _local_scalar_dense.
local WAITING = { "aten::bincount", "aten::nonzero", "aten::_unique2", "item", "totable" }

t.test("TheCountsSeeWhatIndexSelectAndBincountWouldDo", function()
  local x = torch.ones({ 4, 2 }):requires_grad_()
  local ids = torch.tensor({ 1, 1 }, { dtype = torch.int64 })
  local counted = calls.of(function()
    x:index_select(0, ids):sum():backward()
    return ids:bincount():totable()
  end)

  t.equal({ calls.sum(counted, ATOMIC), calls.sum(counted, WAITING) }, { 1, 2 })
end)

--- Counts a step of a mixture with a balance loss.
local function count_step(dtype)
  local net = mixture(dtype, { hidden = 16, intermediate = 16, per_token = 2 })
  local x = torch.randn({ 32, 16 }, { dtype = dtype }):requires_grad_()
  return calls.of(function()
    local y, logits = net(x)
    torch.add(y:sum(), experts.balance_loss({ logits }, 2)):backward()
  end)
end

t.test("AStepThatGroupsItsExpertsNeitherWaitsNorAddsWithAtomics", function()
  local counted = count_step(torch.float32)

  t.equal({ calls.sum(counted, ATOMIC), calls.sum(counted, WAITING) }, { 0, 0 })
end)

t.test("AStepWithoutGroupsWaitsOnceALayer", function()
  local counted = count_step(torch.float64)

  t.equal({ calls.sum(counted, ATOMIC), calls.sum(counted, WAITING) }, { 0, 1 })
  t.equal(counted["aten::_local_scalar_dense"], 0)
end)
