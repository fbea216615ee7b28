-- state_dict and load_state_dict.

local nn = require "lockstep.nn"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local Net = nn.Module:subclass("Net")

function Net:init()
  self.proj = nn.Linear(2, 3)
  self.norm = nn.LayerNorm(3)
  self.steps = torch.tensor(7, { dtype = torch.int64 })
end

local function sorted_names(state)
  local names = {}
  for name in pairs(state) do names[#names + 1] = name end
  table.sort(names)
  return names
end

t.test("StateDictHoldsParametersAndBuffersByFullName", function()
  local state = Net():state_dict()

  t.equal(sorted_names(state), { "norm.bias", "norm.weight", "proj.bias", "proj.weight", "steps" })
  t.equal(state.steps:item(), 7)
end)

t.test("StateDictSharesMemoryButNotGradients", function()
  local net = Net()
  local state = net:state_dict()

  t.equal(state["proj.weight"].requires_grad, false)
  state["proj.weight"]:fill_(2)

  t.equal(net.proj.weight:detach(), torch.full({ 3, 2 }, 2))
end)

t.test("LoadingCopiesEveryValueIntoTheSameTensors", function()
  local from, to = Net(), Net()
  local weight = to.proj.weight
  from.steps:fill_(9)

  to:load_state_dict(from:state_dict())

  for name, value in pairs(from:state_dict()) do t.equal(to:state_dict()[name], value, name) end
  t.truthy(to.proj.weight == weight and weight.requires_grad)
  from.proj.weight:detach():fill_(5)
  t.truthy(to.proj.weight:detach():ne(5):all():item(), "the loaded module shares memory with the one it came from")
end)

t.test("LoadingConvertsToTheModulesDtype", function()
  local net, state = Net(), {}
  for name, value in pairs(Net():state_dict()) do
    state[name] = value:is_floating_point() and value:double() or value
  end

  net:load_state_dict(state)

  t.equal(net.proj.weight.dtype, torch.float32)
  t.near(net.proj.weight:double(), state["proj.weight"], 1e-7)
end)

t.test("EveryMissingUnexpectedAndMisshapedNameIsNamedAtOnce", function()
  local net = Net()
  local before = net.proj.bias:detach():clone()
  local state = Net():state_dict()
  state["proj.weight"] = torch.zeros({ 2, 3 })
  state["norm.weight"] = nil
  state["norm.bias"] = "zero"
  state.extra, state.other = torch.zeros({ 1 }), torch.zeros({ 1 })

  local message = t.raises("Net:load_state_dict: ", function() net:load_state_dict(state) end)

  for _, problem in ipairs {
    "proj.weight has shape {2, 3}, not {3, 2}", "norm.weight is missing", "norm.bias is a string, not a tensor",
    "extra is not a name of this module", "other is not a name of this module",
  } do
    t.truthy(message:find(problem, 1, true), message .. " lacks: " .. problem)
  end
  t.equal(net.proj.bias:detach(), before, "nothing is loaded where something is wrong")
end)

t.test("ASmallerTensorIsNotSpreadOverALargerOne", function()
  local state = Net():state_dict()
  state["proj.bias"] = torch.zeros({ 1 })

  t.raises("proj.bias has shape {1}, not {3}", function() Net():load_state_dict(state) end)
end)

t.test("AStateMustBeATable", function()
  local of_numbers = Net():state_dict()
  of_numbers["proj.bias"] = 3
  t.raises("proj.bias is a number, not a tensor", function() Net():load_state_dict(of_numbers) end)
  t.raises("Net:load_state_dict: the state must be a table of tensors by name, not a string",
    function() Net():load_state_dict("model.safetensors") end)
end)
