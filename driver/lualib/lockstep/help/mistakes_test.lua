-- Mistakes that the text of a script shows before it runs. tests/lint/mistakes_in_repository_test.lua holds that there
-- are no false alarms.

local core = require "lockstep.core"
local mistakes = require "lockstep.help.mistakes"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local function found(text)
  local lines = {}
  for i, one in ipairs(mistakes.find(text)) do lines[i] = one.line .. ": " .. one.code end
  return lines
end

--- Fails unless the only mistake of the text is in `line`, with this code and this advice.
local function finds(text, line, code, advice)
  local all = mistakes.find(text)
  t.equal(#all, 1, text)
  t.equal({ all[1].line, all[1].code }, { line, code }, text)
  t.truthy(all[1].message:find(code, 1, true) and all[1].message:find(advice, 1, true), all[1].message)
end

-- Conditions --------------------------------------------------------------------------------------------

t.test("AConditionThatIsATensorIsFound", function()
  for _, condition in ipairs {
    "x:gt(1):all()", "not x:isnan():any()", "(x:eq(y))", "done or x:lt(f(2, 3)) ", "x:any() and n > 1",
    "losses[1]:isfinite()", "not (a and x:all())",
  } do
    local trimmed = condition:match("^(.-)%s*$")
    local code = trimmed:match("^%b()$") or trimmed
    t.equal(found("local y = 1\nif " .. condition .. " then stop() end"), { "2: " .. code })
    t.equal(found("if a then b() elseif " .. condition .. " then stop() end"), { "1: " .. code })
    t.equal(found("\n\nwhile " .. condition .. " do stop() end"), { "3: " .. code })
    t.equal(found("repeat stop()\nuntil " .. condition), { "2: " .. code })
  end
end)

t.test("ConditionsWithoutTensorsGetNoWarning", function()
  for _, condition in ipairs {
    "x:gt(1):all():item()", "x:equal(y)", "x:isnan():any():item() ~= 0", "x:size(0) > 3", "x", "all(x)", "x.all",
    "n == x:any()", "x:gt(1):sum():item() > 2",
  } do
    t.equal(found("if " .. condition .. " then stop() end"), {}, condition)
  end
end)

t.test("CommentsAndStringsAreNoCode", function()
  t.equal(found([==[
#! if x:all() then
-- if x:all() then
--[[ if x:all() then
]] local s = "if x:all() then" .. 'if x:any() then \' if x:any() then' .. [[ if x:all() then ]]
local a = t[1] - 2
if x:ge(3) then -- line 6
  notify("if", x)
end]==]), { "6: x:ge(3)" })
end)

t.test("ConditionsOverSeveralLinesAreFoundWhereTheyBegin", function()
  t.equal(found("f()\nif a and\n    x:all()\nthen\n  g()\nend"), { "2: a and x:all()" })
end)

-- A dot for a colon -------------------------------------------------------------------------------------

local CLASS = 'local Net = nn.Module:subclass("Net")\n'

t.test("AForwardWithADotIsFound", function()
  finds(CLASS .. "function Net.forward(x) return x * 2 end", 2, "function Net.forward(x)",
    'write "function Net:forward(x)"')
  finds(CLASS .. "Net.forward = function(x, mask) return x:sum() end", 2, "Net.forward = function(x, mask)",
    'write "function Net:forward(x, mask)"')
  finds(CLASS .. "function Net.init(size) self.fc = nn.Linear(size, 1) end", 2, "function Net.init(size)",
    'write "function Net:init(size)"')
  finds(CLASS .. "function Net.loss() return self.fc.weight end", 2, "function Net.loss()", "Net:loss()")
  finds(CLASS .. "function Net.forward(x) return x.shape[1] end", 2, "function Net.forward(x)", "Net:forward(x)")
end)

t.test("FunctionsThatNeedNoColonGetNoWarning", function()
  for _, code in ipairs {
    CLASS .. "function Net:forward(x) return self.fc(x) end",
    CLASS .. "function Net.forward(self, x) return self.fc(x) end",
    CLASS .. "function Net.forward(net, x) return net.fc(x) end",
    CLASS .. "function Net.forward(_, x) return x end",
    CLASS .. "function Net.forward(self, x) return x end",
    CLASS .. "function Net.forward(...) return select(2, ...) end",
    CLASS .. "function Net.init() end",
    CLASS .. "function Net.of_size(size) return Net(size) end",
    CLASS .. "function Net:go() return function() return self.x end end",
    "local M = {}\nfunction M.forward(x) return x * 2 end",
    'local Net = require "net"\nfunction Net.forward(x) return x * 2 end',
  } do
    t.equal(found(code), {}, code)
  end
end)

-- A table in place of an iterator -----------------------------------------------------------------------

t.test("ALoopOverATableWithoutIpairsIsFound", function()
  finds("for _, p in model:parameters() do f(p) end", 1, "for _, p in model:parameters()",
    'write "for _, p in ipairs(model:parameters())"')
  finds("f()\nfor p in nets[1]:parameters() do f(p) end", 2, "for p in nets[1]:parameters()",
    'write "for _, p in ipairs(nets[1]:parameters())"')
  finds("for name, p in model:state_dict() do f(p) end", 1, "for name, p in model:state_dict()",
    'write "for name, p in pairs(model:state_dict())"')
end)

t.test("LoopsOverIteratorsGetNoWarning", function()
  for _, code in ipairs {
    "for _, p in ipairs(model:parameters()) do f(p) end",
    "for name, p in model:named_parameters() do f(name, p) end",
    "function Pool:parameters() return pairs(self.all) end\nfor _, p in pool:parameters() do f(p) end",
    "for _, p in next, model:parameters() do f(p) end",
    "for i = 1, 3 do f(i) end",
  } do
    t.equal(found(code), {}, code)
  end
end)

-- Strings and tensors -----------------------------------------------------------------------------------

t.test("ATensorBesideTwoDotsIsFound", function()
  finds('local x = torch.ones { 2 }\nprint("x is " .. x)', 2, "x", "write x:item() for its number, or tostring(x)")
  finds('local x = torch.ones { 2 }\nprint(x:sum() .. " in all")', 2, "x:sum()", "write x:sum():item()")
  finds('local loss = model_loss(batch)\nloss:backward()\nlog("loss " .. loss / 2 .. "!")', 3, "loss / 2",
    "write (loss / 2):item()")
  finds('return "sum: " .. torch.sum(x)', 1, "torch.sum(x)", "write torch.sum(x):item()")
  finds('local x = torch.randn { 2 }:abs()\nlocal y = x\nif a then y = x:mean() end\nreturn "y" .. y', 4, "y",
    "y:item()")
end)

t.test("WhatMayBeAStringOrANumberGetsNoWarning", function()
  for _, code in ipairs {
    'local x = torch.ones { 2 }\nreturn "x: " .. x:item() .. tostring(x) .. x:size(0) .. x.shape[1] .. #x',
    'local x = torch.ones { 2 }\nx = x:item()\nreturn "x: " .. x',
    'local x = 3\ndo\n  local x = torch.ones { 2 }\n  f(x)\nend\nreturn "x: " .. x',
    'local x = torch.ones { 2 }\nlocal function show() return "x: " .. x end\nx = 3\nreturn show()',
    'local x = torch.ones { 2 }\nlocal function show(x) return "x: " .. x end\nreturn show(x:item())',
    'local x = torch.ones { 2 }\nlocal x = f("x: " .. x:item()) .. "y"\nreturn "x: " .. x',
    'local loss = f()\nif type(loss) ~= "number" then loss:backward() end\nreturn "loss " .. loss',
    'local loss = f()\nloss:backward()\nloss = loss:item()\nreturn "loss " .. loss',
    'return "mean " .. meter:mean() .. torch.is_tensor(x) .. torch.initial_seed()',
    'local a, b = torch.ones(2), 3\nreturn "b " .. b',
    'local x = f() or torch.ones(2)\nreturn "x" .. x',
    'for x = 1, 2 do print("x" .. x) end',
    'local x = 3\nif a then x = torch.ones(2) end\nreturn "x" .. x',
    'local x = 3\nif a then\n  local x = torch.ones(2)\n  f(x)\nend\nreturn "x" .. x',
    'return "x" .. mine.sum(x)',
    'local x\nx = x and x:sum() or 3\nreturn "x" .. x',
  } do
    t.equal(found(code), {}, code)
  end
end)

-- Named arguments ---------------------------------------------------------------------------------------

t.test("ANamedArgumentInParenthesesIsExplained", function()
  finds("local y = x:sum(dim=1)", 1, "x:sum(dim=1)", 'write "x:sum({ dim = 1 })"')
  finds("f()\nlocal y = torch.cat(xs, dim = 1,\n  out=y)", 2, "torch.cat(xs, dim = 1, out=y)",
    'write "torch.cat(xs, { dim = 1, out = y })"')
  finds("nn.Linear(3, 4, bias=false):to(d)", 1, "nn.Linear(3, 4, bias=false)",
    'write "nn.Linear(3, 4, { bias = false })"')
end)

t.test("OtherEqualsSignsGetNoWarning", function()
  for _, code in ipairs {
    "f({ dim = 1 })", "f { dim = 1 }", "f(a == 1)", "f(function() a, b = 1, 2 end)", "f(function() a = 1 end, b)",
    "f((a))",
  } do
    t.truthy(loadstring(code), code)
    t.equal(found(code), {}, code)
  end
end)

-- The reader of syntax ----------------------------------------------------------------------------------

t.test("TextThatIsNoLuaEndsTheSearchWithoutAnError", function()
  for _, code in ipairs {
    "if", "x = ", "f(", "local function", "end", "return 1 2", "'abc", "[[abc", "x = }", "for", "1",
  } do
    t.equal(found("if x:all() then f() end " .. code), { "1: x:all()" }, code)
  end
end)

t.test("AScriptIsWarnedOfBeforeItRuns", function()
  local path = t.write_file("wrong.lua", "local x\nfor p in m:parameters() do f(x:sum(dim=1)) end")
  local script = core.script
  core.script = function() return path end
  local _, heard = t.listening(mistakes.warn)
  core.script = script
  t.truthy(heard:find(("lockstep: warning: %s:2: "):format(path), 1, true), heard)
  t.truthy(heard:find('write "x:sum({ dim = 1 })"', 1, true), heard)
end)

t.test("TheMistakesAreMistakes", function()
  t.raises("attempt to concatenate", loadstring('return "x is " .. ...'), torch.ones { 2 })
  t.equal(loadstring("return x:sum(dim=1)"), nil)
  local parameters = require("lockstep.nn").Linear(2, 2):parameters()
  t.raises("attempt to call", function()
    for _ in parameters do error("never") end
  end)
end)
