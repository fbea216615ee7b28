--- Regions under sharding.data_parallel: gradients are those without regions, and each weight's comes once.

local checkpoint = require "lockstep.checkpoint"
local dist = require "lockstep.distributed"
local nn = require "lockstep.nn"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1) -- small tensors

--- A frozen layer with a trained low-rank layer next to it.
local Adapted = nn.Module:subclass("Adapted")

function Adapted:init(size)
  self.frozen, self.down, self.up = nn.Linear(size, size), nn.Linear(size, 2), nn.Linear(2, size)
  self.frozen.weight:requires_grad_(false)
  self.frozen.bias:requires_grad_(false)
end

function Adapted:forward(x) return torch.tanh(self.frozen(x) + self.up(self.down(x))) end

local Net = nn.Module:subclass("Net")

function Net:init(call)
  self.first, self.second, self.extra = Adapted(8), Adapted(8), Adapted(8)
  self.call = call
end

function Net:forward(x, uses_extra)
  local call = self.call
  x = call(function(input) return call(self.second, call(self.first, input)) end, x) -- nested
  return uses_extra and call(self.extra, x) or x
end

local function plainly(fn, ...) return fn(...) end

local function net(call)
  torch.manual_seed(1)
  return Net(call)
end

local function rows(step)
  torch.manual_seed(100 * step + dist.rank())
  return torch.randn({ 5, 8 })
end

local function step_of(replicas, step, uses_extra)
  replicas:zero_grad()
  local y = replicas(rows(step), uses_extra)
  ;(y * y):sum():backward()
end

for _, case in ipairs {
  { name = "default", {}, extra = { true, true, true } },
  { name = "find_unused", { find_unused = true }, extra = { false, true, false } },
  { name = "static_graph", { static_graph = true }, extra = { true, true, true } },
} do
  for _, offload in ipairs { false, "host" } do
    t.test(string.format("GradientsAreThoseWithoutRegions(%s, offload %s)", case.name, tostring(offload)), function()
      local ckpt = checkpoint.new { offload = offload, min_bytes = 1 }
      local plain, ours = sharding.data_parallel(net(plainly), case[1]), sharding.data_parallel(net(ckpt), case[1])

      for step, uses_extra in ipairs(case.extra) do
        step_of(plain, step, uses_extra)
        step_of(ours, step, uses_extra)

        local expected = {}
        for parameter, p in plain:named_parameters() do expected[parameter] = p end
        for parameter, p in ours:named_parameters() do
          t.equal(p.requires_grad, expected[parameter].requires_grad)
          if expected[parameter].grad then t.equal(p.grad, expected[parameter].grad, parameter) end
        end
      end

      t.truthy(ckpt:stats().recomputes >= 9)
    end)
  end
end

t.test("GradientsAreTheSameOnEveryRank", function()
  local ours = sharding.data_parallel(net(checkpoint.new()))
  step_of(ours, 1, true)
  for parameter, p in ours:named_parameters() do
    if p.grad then
      local most, least = p.grad:clone(), p.grad:clone()
      dist.all_reduce(most, "max")
      dist.all_reduce(least, "min")
      t.equal(most, least, parameter)
    end
  end
end)

t.test("AnErrorNamesTheRank", function()
  local ckpt, now = checkpoint.new(), {}
  local x = torch.randn({ 4 }):requires_grad_(true)
  local y = ckpt(function(input) return torch.tanh(now.wide and torch.cat { input, input } or input) end, x)
  now.wide = true

  t.raises("on rank " .. dist.rank() .. ": 1 recomputed tensors differ", function() y:sum():backward() end)
end)

--- A region must not run its weights through its own graph. The textbook reentrant region does: data_parallel does not
--- see the weights in it.
t.test("WithoutThisLibraryAReentrantRegionIsMarkedReadyTwice", function()
  local module = net(plainly)
  local replicas = sharding.data_parallel(module, { find_unused = true })
  local message
  local x = rows(1):requires_grad_(true)
  -- Forward without a graph; backward, by way of a hook, runs it again with one.
  local function reentrant(fn, input)
    if not torch.is_grad_enabled() then return fn(input) end
    local y = torch.no_grad(fn, input)
    local out = (input * 0 + y)
    out:register_hook(function(gradient)
      local again = torch.enable_grad(fn, input:detach():requires_grad_(true))
      local ok, e = pcall(function() again:backward(gradient) end)
      if not ok then message = tostring(e) end
    end)
    return out
  end
  module.call = reentrant
  local _, outer = pcall(function()
    local y = replicas(x, true)
    ;(y * y):sum():backward()
  end)

  message = message or tostring(outer)
  t.truthy(message:find("mark a variable ready only once", 1, true), message)
end)
