--- Random models whose modules and parameters overlap: one module under two names, one parameter in two modules. Each
--- comes with the same model unfolded, in which each place has a parameter of its own. The gradient of a parameter is
--- the sum over its places, so the unfolded model tells what every way to train the model must compute.

local nn = require "lockstep.nn"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local M = {}

local WIDTH = 16

--- up and down, each perhaps in other modules too.
local Mlp = nn.Module:subclass "Mlp"

function Mlp:init(up, down) self.up, self.down = up, down end

function Mlp:forward(x) return self.down(torch.tanh(self.up(x))) end

--- Blocks, and modules of theirs under names of their own.
local Net = nn.Module:subclass "Net"
M.Net = Net

function Net:init(blocks, again)
  self.blocks = nn.ModuleList(blocks)
  self.again = again
  if again then self.scale = again.weight end
end

function Net:forward(x, call)
  for _, block in ipairs(self.blocks) do
    local y = call and call(block, x) or block(x)
    x = x + torch.tanh(y)
  end
  if self.again then x = self.again(x) * self.scale[0] end
  return x
end

--- Returns a function that draws whole numbers from 1 to `most`, and depends on the seed alone.
local function draws(seed)
  local state = seed * 7919 + 17
  return function(most)
    state = (state * 16807) % 2147483647
    return math.floor(state / 65536) % most + 1
  end
end

--- Builds the model of a seed from linear layers of new_linear().
local function build(seed, new_linear)
  local draw = draws(seed)
  local linears, mlps = {}, {}
  for i = 1, ({ 3, 5, 15 })[draw(3)] do linears[i] = new_linear() end
  local function linear() return linears[draw(#linears)] end
  if draw(2) == 1 then linears[2].weight = linears[1].weight end
  if draw(3) == 1 then linears[3].bias = linears[1].bias end
  for i = 1, 2 do mlps[i] = Mlp(linear(), linear()) end
  local blocks = {}
  for i = 1, 1 + draw(3) do
    local kind = draw(4)
    if kind == 1 then
      blocks[i] = linear()
    elseif kind == 2 then
      blocks[i] = mlps[draw(2)]
    elseif kind == 3 then
      local one = linear()
      blocks[i] = nn.Sequential { one, nn.GELU(), draw(2) == 1 and one or linear() }
    else
      blocks[i] = nn.Sequential { mlps[draw(2)], mlps[draw(2)], linear() }
    end
  end
  return Net(blocks, draw(2) == 1 and linear() or nil)
end

--- Returns the model of a seed, its parameters of float64 unless a dtype is given. Some are frozen.
---@param seed integer
---@param opts {dtype: torch.dtype?, frozen: boolean?}?
function M.net(seed, opts)
  local o = opts or {}
  torch.manual_seed(seed)
  local net = build(seed, function()
    return nn.Linear(WIDTH, WIDTH):to { dtype = o.dtype or torch.float64 }
  end)
  if o.frozen then net.blocks[1]:requires_grad_(false) end
  return net
end

--- Copies a module with everything below it. Nothing in the copy is shared.
local function unfold(module)
  local copy = setmetatable({}, getmetatable(module))
  for key, value in pairs(module) do rawset(copy, key, value) end
  local fields = {}
  for name, value in pairs(nn.fields(module)) do
    if torch.is_tensor(value) then
      fields[name] = value:detach():clone():requires_grad_(value.requires_grad)
    else
      fields[name] = nn.is_module(value) and unfold(value) or value
    end
  end
  rawset(copy, "_fields", fields)
  for i, below in ipairs(module) do rawset(copy, i, unfold(below)) end
  return copy
end

--- Calls visit(name, tensor) for the parameters of a model in each of their places.
local function each_place(net, visit)
  for prefix, module in net:named_modules() do
    for name, value in pairs(nn.fields(module)) do
      if torch.is_tensor(value) then visit(prefix == "" and name or prefix .. "." .. name, value) end
    end
  end
end

--- Returns the gradients that loss_of(net) has for each parameter of a model, by name: the sum over its places, each a
--- parameter of its own.
---@param net nn.Module
---@param loss_of fun(net: nn.Module): torch.Tensor
---@return table<string, torch.Tensor>
function M.expected(net, loss_of)
  local first, sums = {}, {}
  for name, p in net:named_parameters() do first[p] = name end
  local owner = {}
  each_place(net, function(name, tensor) owner[name] = first[tensor] end)
  local copy = unfold(net)
  local loss = loss_of(copy)
  if not loss.requires_grad then return {} end
  loss:backward()
  each_place(copy, function(name, tensor)
    local gradient, of = tensor.grad, owner[name]
    if gradient then sums[of] = sums[of] and sums[of] + gradient or gradient end
  end)
  return sums
end

--- Returns the gradients of a model's parameters by name.
function M.gradients(net)
  local found = {}
  for name, p in net:named_parameters() do found[name] = p.grad end
  return found
end

--- Compares gradients by name. One of zeros may be missing.
function M.check(actual, expected, tolerance, what)
  for name, gradient in pairs(expected) do
    t.near(actual[name] or gradient * 0, gradient, tolerance, what .. ": " .. name)
  end
  for name, gradient in pairs(actual) do
    t.near(gradient, expected[name] or gradient * 0, tolerance, what .. ": " .. name)
  end
end

--- Returns the tensor and requires_grad of each place. Equal before and after what may not change the model.
function M.places(net)
  local found = {}
  each_place(net, function(name, tensor) found[name] = { tensor, tensor.requires_grad } end)
  return found
end

--- Fails unless the model's places hold the same tensors as before, frozen or not as before.
function M.check_places(net, before, what)
  for name, one in pairs(M.places(net)) do
    t.truthy(rawequal(one[1], before[name][1]), what .. ": " .. name .. " is another tensor")
    t.equal(one[2], before[name][2], what .. ": requires_grad of " .. name)
  end
end

function M.input(seed, dtype)
  torch.manual_seed(100 + seed)
  return torch.randn({ 6, WIDTH }):to(dtype or torch.float64)
end

function M.loss(y) return (y * torch.sin(torch.arange(y:numel()):view(y.shape):to(y.dtype))):sum() end

return M
