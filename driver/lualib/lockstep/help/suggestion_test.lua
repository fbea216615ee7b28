-- Tests the suggestions of errors about a nil.

local nn = require "lockstep.nn"
local suggestion = require "lockstep.help.suggestion"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

--- The message of `code`, a chunk whose arguments are nn, torch and a table, as a script's error shows it.
local function message_of(code)
  local name = "=chunk"
  suggestion.typed[name] = "local nn, torch, config = ...\n" .. code
  local chunk = assert(loadstring(suggestion.typed[name], name))
  local config = { optimizer = { learning_rate = 1e-3 } }
  local _, message = xpcall(function()
    chunk(nn, torch, config)
  end, function(e)
    local explained = suggestion.explain(e, 3) -- no tail call: it would have no level of its own
    return explained
  end)
  return message
end

local function means(expected, code)
  local message = message_of(code)
  t.equal(message:match('%(a nil value%); did you mean "(.*)"%?$'), expected, code .. "\n" .. message)
end

t.test("AMethodThatReplicasLackBecauseItsGradientsWouldNotBeAveraged", function()
  local message = message_of('local Net = nn.Module:subclass "Net"\n function Net:loss() end\n'
    .. 'local replicas = require "lockstep.sharding".data_parallel(Net())\n replicas:loss(3)')
  t.truthy(message:find("attempt to call method 'loss' (a nil value); gradients are averaged only after a forward pass "
    .. 'of the replicas: a model of lockstep.models is called as replicas(batch, "loss")', 1, true), message)
end)

t.test("AFieldOfAModule", function()
  means("nn.Linear", "nn.Liner(2, 3)")
  means("torch.cuda.synchronize", "torch.cuda.synchronise()")
end)

t.test("AMethodAndAFieldOfAnObject", function()
  means("m:forward", "local m = nn.Linear(2, 3)\nm:forwrd(1)")
  means("self.projection", [[
local Net = nn.Module:subclass("Net")
function Net:init() self.projection = nn.Linear(2, 2) end
function Net:forward(x) return self.projecton(x) end
Net()(torch.ones({ 1, 2 }))]])
end)

t.test("AFieldOfATableOfTheScript", function()
  means("config.optimizer", "print(config.optimiser.learning_rate)")
  means("config.optimizer", "local function f() return config.optimiser.learning_rate end\nprint((f()))")
end)

t.test("AGlobalAndAFieldOfOne", function()
  means("print", "prnt(1)")
  means("math.floor", "local x = math.flor(1.5)\nreturn x")
end)

t.test("ACallOverSeveralLines", function()
  means("nn.Sequential", "local net = nn.Sequental {\n  nn.Linear(2, 2),\n  nn.Linear(2, 2),\n}\nreturn net")
end)

t.test("ATailCallOverSeveralLinesWhichEndsBelowItsName", function()
  means("nn.Sequential", "local net = (function()\nreturn nn.Sequental {\n  nn.Linear(2, 2),\n}\nend)()\nreturn net")
end)

t.test("TheVariableThatIsSeenThereAndNotAnotherOfItsName", function()
  means("nn.parallel", "do local nn = { parallel = 1 }\nnn.paralel() end")
  means("nn.Linear", "do local nn = { Line = 1 }; nn.Line = 2 end\nnn.Liner(2)")
end)

t.test("NothingWhereNothingIsNear", function()
  means(nil, "nn.functional.relu(1)")
  means(nil, "local x\nx.y = 1")
  means(nil, "config.optimizer.momentum()")
  means(nil, "local y = {}\nprint(xy.z)")
  means(nil, "(function() return {} end)().Liner()")
end)

t.test("NothingThatAnotherObjectOfTheLineHas", function()
  means(nil, "local other = {}\nprint(config.optimizer.learning_rate + other.learning_rate.x)")
  means(nil, "local function pick() return {} end\nlocal a = { forward = 1 }\npick('first').forwardd(a.forwardd)")
  means(nil, "local models = { {} }\nlocal model = { encode = 1 }\nmodels[1].encode(model.encode)")
  means("nn.Linear", "local lin = { Liner = 1 }\nreturn lin.Liner + nn.Liner(2)")
end)

t.test("CommentsAndStringsAreNoCode", function()
  means(nil, "local x = {}\nprint('nn.Liner', x.y.Liner) -- nn.y")
  means(nil, "local f = function() return {} end\nf().Liner('nn.Liner \\' nn.Liner') -- nn.Liner")
end)

t.test("NothingIsCalledInTheSearch", function()
  local chunk = [[
local strict = setmetatable({}, { __index = function(_, key) if key ~= "absent" then error("called") end end })
strict.absent()]]
  t.truthy(message_of(chunk):find("attempt to call field 'absent' (a nil value)", 1, true))
end)

t.test("TiesGoToTheNameThatBeginsAlikeAndNeverToAnInternalOne", function()
  local x = torch.ones { 2 }
  t.raises('did you mean "sum"?', function() return x.summ end)
  local _, message = pcall(function() return torch.unique(x) end)
  t.equal(message:find('"_unique', 1, true), nil, message)
end)

t.test("OtherErrorsStayAsTheyAre", function()
  local value = {}
  t.truthy(suggestion.explain(value, 2) == value)
  t.equal(suggestion.explain(nil, 2), nil)
  t.equal(suggestion.explain("attempt to call field 'Liner' (a number value)", 2),
    "attempt to call field 'Liner' (a number value)")
end)

-- Other mistakes ----------------------------------------------------------------------------------------

local function says(part, code)
  local message = message_of(code)
  t.truthy(message:find(part, 1, true), ("%q is not in: %s"):format(part, message))
end

local function does_not_say(part, code)
  local message = message_of(code)
  t.equal(message:find(part, 1, true), nil, message)
end

t.test("AMethodThatIsCalledWithADotSaysToUseAColon", function()
  says('"forward" was called with a dot, so that its self is a tensor: use a colon, as in object:forward(...)',
    "local m = nn.Linear(2, 3)\nlocal y = m.forward(torch.ones({ 1, 2 }))\nreturn y")
  says('"parameters" was called with a dot, so that its self is nil: use a colon, as in object:parameters(...)',
    "local m = nn.Linear(2, 3)\nlocal all = m.parameters()\nreturn all")
  for _, call in ipairs { "m.parameters()", "m.train()", "m.state_dict()", "m.requires_grad_(false)", 'm.to("cpu")',
    'm.to { device = "cpu" }', "m.load_state_dict {}" } do
    local message = message_of("local m = nn.Linear(2, 3)\nlocal x = " .. call .. "\nreturn x")
    t.truthy(message:find("^chunk:3: "), message) -- the script's line
    t.truthy(message:find(("use a colon, as in object:%s(...)"):format(call:match "m%.([%w_]+)"), 1, true), message)
  end
  does_not_say("colon", "local o = {}\nfunction o.go(self, x)\n  local y = x.weights\n  return y, self\nend\n"
    .. "local y = o.go(o, torch.ones({ 1 }))\nreturn y")
  does_not_say("colon", 'return require("lockstep.optim").SGD({}, { lr = "much" })')
  says("a method was called with a dot", "local m = nn.Linear(2, 3)\nreturn m.forward(torch.ones({ 1, 2 }))")
  does_not_say("colon", "local x = torch.ones({ 1 })\nreturn x.weights")
end)

t.test("AMethodOfATensorThatIsCalledWithADotSaysToUseAColon", function()
  says('; "backward" was called with a dot: use a colon, as in loss:backward(...)',
    "local loss = torch.ones({ 1 })\nloss.backward()")
  says('\n  "sum" was called with a dot: use a colon, as in state.x:sum(...)',
    "local state = { x = torch.ones({ 1 }) }\nlocal y = state.x.sum(0)\nreturn y")
  does_not_say("colon", "local x = torch.ones({ 1 })\nlocal y = torch.sum(1)\nreturn x, y")
  does_not_say("colon", "local f = function() return torch.ones({ 1 }) end\nlocal y = f().sum()\nreturn y")
end)

t.test("ATensorThatIsComparedWithANumberSaysHowToCompare", function()
  says("x:gt(1)", "return torch.ones({ 1 }) > 1")
  says("x:le(1)", "return 2 <= torch.ones({ 1 })")
  does_not_say("tensors", "return {} < 1")
end)

t.test("ATensorThatIsJoinedToAStringSaysHow", function()
  says("(a userdata value); a tensor is joined to a string as its number, x:item(), or as text, tostring(x)",
    "local x = config.x or torch.ones({ 1 })\nreturn 'x is ' .. x")
  does_not_say("tensor", "return 'x is ' .. {}")
end)

t.test("ANamedArgumentInAModuleOfTheScriptSaysToUseBraces", function()
  local path = t.write_file("named.lua", "return function(x) return x:sum(dim=1) end")
  says("')' expected near '='; named arguments are a table in braces: x:sum({ dim = 1 })",
    ("assert(loadfile(%q))"):format(path))
end)

t.test("ANameThatAModuleOfTheLibraryLacksListsThoseThatItHas", function()
  says("(a nil value); nn has ", "nn.LocalAttention(2)")
  says(", Linear, ", "nn.LocalAttention(2)")
  does_not_say("has", "local mine = { Linear = 1 }\nmine.LocalAttention(2)")
end)
