-- Modules: fields, names, state and moves. The layers are in nn_layers_test.lua.

local nn = require "lockstep.nn"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local function parameter(...) return torch.zeros({ ... }):requires_grad_(true) end

--- The names that an iterator of names and values yields, in order.
local function names_of(iterator)
  local names = {}
  for name in iterator do names[#names + 1] = name end
  return names
end

local Block = nn.Module:subclass("Block")

function Block:init(size)
  self.up = nn.Linear(size, 2 * size)
  self.down = nn.Linear(2 * size, size, { bias = false })
end

function Block:forward(x) return x + self.down(torch.relu(self.up(x))) end

local Net = nn.Module:subclass("Net")

function Net:init(size, depth)
  self.size = size
  self.scale = parameter(size)
  self.steps = torch.zeros({}, { dtype = torch.int64 })
  self.layers = nn.ModuleList()
  for _ = 1, depth do self.layers:append(Block(size)) end
end

function Net:forward(x)
  for _, layer in ipairs(self.layers) do x = layer(x) end
  return x * (1 + self.scale)
end

local BLOCK_NAMES = { "up.weight", "up.bias", "down.weight" }

-- Classes -----------------------------------------------------------------------------------------------

t.test("CallingAClassPassesItsArgumentsToInit", function()
  local net = Net(3, 2)

  t.equal(net.size, 3)
  t.equal(#net.layers, 2)
  t.equal(net.class_name, "Net")
end)

t.test("CallingAModuleCallsForwardWithEveryArgumentAndResult", function()
  local Swap = nn.Module:subclass("Swap")
  function Swap:forward(a, b) return b, a, self.class_name end

  t.equal({ Swap()(1, 2) }, { 2, 1, "Swap" })
end)

t.test("ASubclassOfASubclassInheritsAndOverrides", function()
  local Twice = Block:subclass("Twice")
  function Twice:init(size)
    Block.init(self, size)
    self.again = Block(size)
  end
  function Twice:forward(x) return self.again(Block.forward(self, x)) end

  local twice = Twice(2)

  t.equal(names_of(twice:named_parameters()),
    { "up.weight", "up.bias", "down.weight", "again.up.weight", "again.up.bias", "again.down.weight" })
  t.equal(twice(torch.ones({ 1, 2 })).shape, { 1, 2 })
end)

t.test("AClassNeedsAName", function()
  t.raises('needs a name, as in nn.Module:subclass("Net")', function() nn.Module:subclass() end)
end)

t.test("AModuleWithoutForwardSaysWhatToDefine", function()
  local Empty = nn.Module:subclass("Empty")

  t.raises("Empty has no forward: define function Empty:forward(...)", function() Empty()(1) end)
end)

t.test("AnErrorInsideForwardNamesTheLineOfTheScript", function()
  local Broken = nn.Module:subclass("Broken")
  local line
  function Broken:init() self.linear = nn.Linear(3, 3) end
  function Broken:forward(x)
    line = debug.getinfo(1, "l").currentline + 1
    local y = self.linear(x) -- a tail call would leave no line to name
    return y
  end

  local message = t.raises("nn_test.lua:", function() Broken()(torch.ones({ 1, 4 })) end)

  t.truthy(message:find(string.format("nn_test.lua:%d: ", line), 1, true), message)
  t.truthy(message:find("linear", 1, true), message)
end)

t.test("PrintingAModuleShowsItsTree", function()
  t.equal(tostring(Net(2, 1)), table.concat({
    "Net(scale {2}, steps {})", "  (layers) ModuleList", "    (0) Block", "      (up) Linear(weight {4, 2}, bias {4})",
    "      (down) Linear(weight {2, 4})", "22 parameters",
  }, "\n"))
end)

t.test("PrintingAModuleSaysWhatIsFrozen", function()
  local frozen = nn.Linear(2, 3):requires_grad_(false)
  local net = nn.Sequential { frozen, nn.Dropout(0.1), nn.Linear(3, 1, { bias = false }) }
  t.equal(tostring(net), table.concat({
    "Sequential",
    "  (0) Linear(weight {3, 2}, frozen, bias {3}, frozen)",
    "  (1) Dropout(p = 0.1)",
    "  (2) Linear(weight {1, 3})",
    "12 parameters, of which 9 are frozen",
  }, "\n"))
end)

-- Fields ------------------------------------------------------------------------------------------------

t.test("ATensorThatRequiresGradIsAParameterAndAnyOtherABuffer", function()
  local net = Net(3, 0)

  t.equal(names_of(net:named_parameters()), { "scale" })
  t.equal(names_of(net:named_buffers()), { "steps" })
end)

t.test("NamesFollowTheOrderOfAssignmentAndModuleListsCountFromZero", function()
  local expected = { "scale" }
  for layer = 0, 10 do
    for _, name in ipairs(BLOCK_NAMES) do expected[#expected + 1] = string.format("layers.%d.%s", layer, name) end
  end

  t.equal(names_of(Net(2, 11):named_parameters()), expected)
end)

t.test("ParametersComeInTheOrderOfTheirNames", function()
  local net, i = Net(2, 2), 0
  local parameters = net:parameters()

  for _, p in net:named_parameters() do
    i = i + 1
    t.truthy(parameters[i] == p, "parameter " .. i)
  end
  t.equal(#parameters, i)
end)

t.test("NamedModulesStartsWithTheModuleItself", function()
  local net = Net(2, 1)

  t.equal(names_of(net:named_modules()), { "", "layers", "layers.0", "layers.0.up", "layers.0.down" })
  t.truthy(select(2, net:named_modules()()) == net)
end)

t.test("AReplacedFieldKeepsItsPlaceAndIsWhatItsNewValueIs", function()
  local block = Block(2)

  block.up = nn.Linear(2, 4, { bias = false })
  t.equal(names_of(block:named_parameters()), { "up.weight", "down.weight" })

  block.up = parameter(4)
  t.equal(names_of(block:named_parameters()), { "up", "down.weight" })

  block.up = torch.zeros({ 4 })
  t.equal(names_of(block:named_parameters()), { "down.weight" })
  t.equal(names_of(block:named_buffers()), { "up" })
end)

t.test("APlainFieldThatBecomesAParameterIsRegistered", function()
  local net = Net(2, 0)
  net.shift = false

  net.shift = parameter(2)

  t.equal(names_of(net:named_parameters()), { "scale", "shift" })
end)

t.test("AFieldSetToNilIsGone", function()
  local block = Block(2)

  block.up = nil
  t.equal(block.up, nil)
  t.equal(names_of(block:named_parameters()), { "down.weight" })
  t.equal(block:num_parameters(), 8)

  block.up = nn.Linear(2, 4, { bias = false })
  t.equal(names_of(block:named_parameters()), { "down.weight", "up.weight" })
end)

t.test("APlainValueInPlaceOfAParameterUnregistersIt", function()
  local net = Net(2, 0)

  net.scale = 1.5

  t.equal(#net:parameters(), 0)
  t.near(net(torch.ones({ 2 })), torch.full({ 2 }, 2.5), 1e-6)
end)

t.test("AFrozenParameterStaysAParameter", function()
  local block = Block(2)

  t.truthy(block:requires_grad_(false) == block)

  t.equal(names_of(block:named_parameters()), BLOCK_NAMES)
  t.equal(names_of(block:named_buffers()), {})
  t.equal(block.up.weight.requires_grad, false)
  t.equal(block:requires_grad_(true).up.weight.requires_grad, true)
end)

t.test("ReplacingAModuleOfAListReplacesItsParameters", function()
  local list = nn.ModuleList { nn.Linear(2, 2), nn.Linear(2, 2) }
  local new = nn.Linear(2, 5)

  list[2] = new

  t.truthy(list:parameters()[3] == new.weight)
  t.equal(list:state_dict()["1.weight"].shape, { 5, 2 })
end)

t.test("ModulesInAPlainTableAreRefusedAlsoWhenPutThereLater", function()
  local net = Net(2, 0)
  t.raises("Net.heads: modules in a plain table are not registered", function() net.heads = { nn.Linear(2, 2) } end)

  net.heads = {}
  table.insert(net.heads, nn.Linear(2, 2))

  t.raises("use nn.ModuleList", function() net:parameters() end)
end)

t.test("AValueThatCannotBeRegisteredIsNamed", function()
  local net = Net(2, 0)
  local cases = {
    { 1, nn.Linear(1, 1), "Net.1: modules and tensors are registered under a name" },
    { "a.b", nn.Linear(1, 1), "Net.a.b: the name must not be empty or hold a dot" },
    { "", parameter(1), "must not be empty" },
    { "train", nn.Linear(1, 1), "Net.train: this is a method of modules" },
    { "hidden", net.scale * 2, "Net.hidden: the tensor is the result of a computation" },
  }
  for _, case in ipairs(cases) do
    t.raises(case[3], function() net[case[1]] = case[2] end)
  end
  t.equal(names_of(net:named_parameters()), { "scale" })
end)

t.test("AModuleInsideItselfIsAnErrorAndOneUsedTwiceIsNot", function()
  local net = Net(2, 2)
  net.layers[2] = net.layers[1]
  t.equal(#net:parameters(), 4)

  net.layers[1].net = net

  t.raises('Net is registered inside itself, as "layers.0.net"', function() net:parameters() end)
end)

t.test("AConfigurationCanBeAField", function()
  local config = setmetatable({ hidden = 4 }, { __index = function(_, key) error("no key " .. key) end })
  local net = Net(2, 0)

  net.config = config

  t.equal(net.config.hidden, 4)
  t.equal(#net:parameters(), 1)
end)

-- Modes, moves, gradients -------------------------------------------------------------------------------

t.test("TrainAndEvalReachEveryModuleAndReturnTheirModule", function()
  local net = Net(2, 1)
  t.equal(net.training, true)

  t.truthy(net:eval() == net)
  for name, module in net:named_modules() do t.equal(module.training, false, name) end

  t.truthy(net:train() == net)
  for name, module in net:named_modules() do t.equal(module.training, true, name) end
end)

t.test("ToConvertsFloatingPointTensorsInPlaceWithTheirGradients", function()
  local net = Net(2, 1)
  net(torch.ones({ 1, 2 })):sum():backward()
  local weight = net.layers[1].up.weight

  t.truthy(net:to { dtype = torch.float64 } == net)

  t.truthy(net.layers[1].up.weight == weight, "a parameter is another tensor after to")
  t.equal(weight.dtype, torch.float64)
  t.equal(weight.grad.dtype, torch.float64)
  t.truthy(weight.is_leaf and weight.requires_grad)
  t.equal(net.steps.dtype, torch.int64)
  t.equal(net(torch.ones({ 1, 2 }, { dtype = torch.float64 })).dtype, torch.float64)
end)

t.test("ToKnowsItsOptions", function()
  local net = Net(2, 0)

  t.equal(net:to { device = "cpu" }.scale.device, "cpu")
  t.raises('Net:to: unknown option "dtpye"; did you mean "dtype"?', function() net:to { dtpye = torch.float64 } end)
  t.raises("Net:to: options must be a table", function() net:to(torch.ones { 1 }) end)
end)

t.test("ZeroGradForgetsEveryGradient", function()
  local block = Block(2)
  block(torch.ones({ 1, 2 })):sum():backward()
  t.truthy(block.up.weight.grad)

  block:zero_grad()

  for name, p in block:named_parameters() do t.equal(p.grad, nil, name) end
end)

t.test("TiedParametersAreCountedOnceAndStoredUnderBothNames", function()
  local Tied = nn.Module:subclass("Tied")
  function Tied:init()
    self.embed_tokens = nn.Embedding(5, 3)
    self.lm_head = nn.Linear(3, 5, { bias = false })
    self.lm_head.weight = self.embed_tokens.weight
  end
  local tied = Tied()

  t.equal(names_of(tied:named_parameters()), { "embed_tokens.weight" })
  t.equal(tied:num_parameters(), 15)
  local state = tied:state_dict()
  t.equal(state["lm_head.weight"], state["embed_tokens.weight"])
  t.truthy(tied:to { dtype = torch.float64 }.lm_head.weight == tied.embed_tokens.weight)
end)

t.test("ADeviceOrADtypeAloneIsEnoughToMove", function()
  local net = nn.Linear(2, 3)

  t.equal(net:to(torch.float64).weight.dtype, torch.float64)
  t.equal(net:to("cpu").weight.device, "cpu")
  t.equal(net:to({ dtype = torch.float32 }).weight.dtype, torch.float32)
  t.raises("options must be a table", net.to, net, 3)
end)
