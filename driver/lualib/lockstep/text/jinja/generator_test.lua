-- Templates become Lua source: what Lua limits and what its source could confuse makes no difference.

local jinja = require "lockstep.text.jinja"
local t = require "lockstep.testing"

local function render(source, variables) return (jinja.compile(source, "case"):render(variables or {})) end

--- Returns the texts that `make` gives for 1 to n, joined.
local function each(n, make, separator)
  local parts = {}
  for i = 1, n do parts[i] = make(i) end
  return table.concat(parts, separator or "")
end

local function numbered(format)
  return function(i) return (format:gsub("@", tostring(i))) end
end

local function repeated(text) return function() return text end end

-- Statements that need most functions of lockstep.text.jinja.runtime.
local USES_ALL = "{% if no %}{{ x.y[z] == x[1:] }}{{ y() ~ y.z() + [x] }}{% for a, b in (x, y) %}"
  .. "{% set z %}{% endset %}{% endfor %}{% endif %}"

t.test("NamesBeyondTheLocalVariablesOfLuaRender", function()
  local set, read = each(300, numbered "{% set v@ = @ %}"), each(300, numbered "{{ v@ }};")
  local expected = each(300, numbered "@;")

  t.equal(render(set .. read), expected)
  t.equal(render("{% macro m() %}" .. read .. "{% endmacro %}" .. set .. "{{ m() }}"), expected)
  t.equal(render("{% macro m() %}" .. set .. read .. "{% endmacro %}{{ m() }}{{ m() }}"), expected .. expected)
  t.equal(render("{% for x in [1, 2] %}" .. read:sub(1, 9) .. set .. read .. "{% endfor %}"), (";" .. expected):rep(2))
  t.equal(render(each(300, numbered "{{ free@ }};"), { free300 = "x" }), (";"):rep(299) .. "x;")
  t.equal(render("{% with " .. each(300, numbered "w@ = @", ", ") .. " %}{{ w1 }}{{ w300 }}{% endwith %}"), "1300")
end)

t.test("ManyMacrosAndManyParametersRender", function()
  local macros = "{% macro m0() %}.{% endmacro %}"
    .. each(100, function(i) return ("{%% macro m%d() %%}%d{{ m%d() }}{%% endmacro %%}"):format(i, i, i - 1) end)
  local params, names = each(250, numbered "p@", ", "), each(250, numbered "p@ = @", ", ")
  local body = each(250, numbered "{{ p@ }};")
  local expected = each(250, numbered "@;")

  t.equal(render(macros .. "{{ m100() }}"), each(100, function(i) return tostring(101 - i) end) .. ".")
  t.equal(render(("{%% macro m(%s) %%}%s{%% endmacro %%}{{ m(%s) }}{{ m(%s) }}"):format(params, body,
    each(250, numbered "@", ", "), names)), expected .. expected)
  t.equal(render(("{%% macro m(%s) %%}%s{%% endmacro %%}{{ m(p250 = 7) }}{{ m(8) }}"):format(names, body)),
    expected:gsub("250;$", "7;") .. expected:gsub("^1;", "8;"))
  -- The variables that a function of Lua may share with those around it are limited, too.
  t.equal(render(each(250, numbered "{% set v@ = @ %}") .. ("{%% macro m(%s) %%}%s%s{%% endmacro %%}{{ m() }}"):format(
    each(250, numbered "p@ = v@", ", "), body, USES_ALL)), expected)
  t.equal(render("{% macro m() %}{{ varargs | length }}{% endmacro %}{{ m(" .. each(100, numbered "@", ", ") .. ") }}"),
    "100")
  t.raises("case, line 1: the macro m takes 250 arguments, got 251", render,
    ("{%% macro m(%s) %%}{%% endmacro %%}{{ m(%s) }}"):format(params, each(251, numbered "@", ", ")))
end)

--- Returns `inner` within `n` pairs of `before` and `behind`, where @ is the number of the pair.
local function nested(n, before, inner, behind)
  for i = n, 1, -1 do inner = before:gsub("@", i) .. inner .. behind:gsub("@", i) end
  return inner
end

t.test("DeepNestingRenders", function()
  local read = each(20, numbered "{{ x@ }}")

  t.equal(render(nested(20, "{% for x@ in [@] %}", read .. "{{ loop.index }}", "{% endfor %}")),
    each(20, tostring) .. "1")
  t.equal(render(nested(20, "{% macro m@(x@) %}", read, "{% endmacro %}{{ m@(@) }}")), each(20, tostring))
  t.equal(render(nested(60, "{% if a@ is not defined %}", "x", "{% endif %}")), "x")
  t.equal(render(nested(60, "{% set s@ %}", "x", "{% endset %}{{ s@ }}")), "x")
  t.equal(render(nested(60, "{% filter upper %}{% with y@ = @ %}", "x{{ y1 }}{{ y60 }}",
    "{% endwith %}{% endfilter %}")), "X160")
  t.equal(render("{{ " .. nested(60, "(a@ or ", "'x'", ")") .. " }}"), "x")
  t.equal(render("{{ " .. nested(60, "[", "1", "][0]") .. " }}"), "1")
  t.equal(render("{{ " .. nested(60, "(1 if a@ else ", "2", ")") .. " }}"), "2")
  t.raises("case: the template is too large or nested too deeply (", render,
    nested(300, "{% if true %}", "x", "{% endif %}"))
end)

t.test("LongChainsRender", function()
  local branches = each(300, numbered "{% elif x == @ %}{{ x }}!")

  t.equal(render("{% if x == 0 %}0" .. branches .. "{% else %}none{% endif %}", { x = 300 }), "300!")
  t.equal(render("{% if x == 0 %}0" .. branches .. "{% else %}none{% endif %}", { x = 301 }), "none")
  t.equal(render("{% if " .. each(300, numbered "a@", " or ") .. " %}yes{% else %}no{% endif %}", { a300 = 1 }), "yes")
  t.equal(render("{{ " .. each(300, numbered "a@.b == 1", " or ") .. " }}",
    { a1 = { b = 1 } }), "True")
  t.equal(render("{{ " .. each(300, repeated "x", " + ") .. " }}", { x = "ab" }), ("ab"):rep(300))
  t.equal(render("{{ (" .. each(300, repeated "x", " + ") .. ") | string }}", { x = 2 }), "600")
  t.equal(render("{{ " .. each(300, repeated "x", " ~ ") .. " }}", { x = 2 }), ("2"):rep(300))
  t.equal(render("{{ [" .. each(300, numbered "x + @", ", ") .. "] | sum }}", { x = 1 }), "45450")
  t.equal(render("{{ {" .. each(300, numbered "@: x + @", ", ") .. "}[299] }}", { x = 1 }), "300")
  t.equal(render("{{ [" .. each(300, repeated "x.y", ", ") .. "] | length }}", { x = { y = 1 } }), "300")
  t.equal(render("{% for m in l %}" .. each(500, numbered "@{{ m.a }}{% if m.b == '@' %}{{ m.b }}{% endif %};")
    .. "{% endfor %}", { l = { { a = "x", b = "499" } } }), each(500, function(i)
    return i .. "x" .. (i == 499 and "499" or "") .. ";"
  end))
end)

t.test("BodiesThatLuaCannotJumpOverRender", function()
  local v = { l = { { a = "x" }, { a = "y" }, { a = "z" } } }
  local long = each(2500, repeated "{{ x.a }}{% if x.a != 'x' and 1 %}{% set s = x.a %}{{ s }}{% else %}-{% endif %}")
  local x, y, z = ("x-"):rep(2500), ("yy"):rep(2500), ("zz"):rep(2500)
  local function loop(at) return "{% for x in l %}{% set s = 1 %}" .. at .. "{{ loop.index }}{{ s }}{% endfor %}" end

  t.equal(render(loop(long), v), x .. "11" .. y .. "2y" .. z .. "3z")
  t.equal(render(loop(long .. "{% if x.a == 'y' %}{% break %}{% endif %}"), v), x .. "11" .. y)
  t.equal(render(loop("{% if x.a == 'y' %}" .. long .. "{% continue %}{% endif %}" .. long), v),
    x .. "11" .. y .. z .. "3z")
  t.equal(render("{% macro m(x) %}{% if true %}" .. long .. "{% endif %}{{ s }}{% endmacro %}"
    .. "{{ m(l[0]) }}{{ m(l[1]) }}", v), x .. y .. "y")
  t.equal(render("{% set p = l[0] %}{{ p.a }}{% if l %}{% set x = l[2] %}" .. long
    .. "{% set p = l[1] %}{% endif %}{{ p.a }}", v), "x" .. z .. "y")
  t.equal(render("{% for x in l %}" .. each(5000, repeated "{{ x.a }}") .. "{% endfor %}", v),
    ("x"):rep(5000) .. ("y"):rep(5000) .. ("z"):rep(5000))
  t.equal(render("{% for k in [1] %}" .. each(45, numbered "{% set v@ = @ %}") .. long:gsub("x.a", "k")
    .. "{{ " .. each(45, numbered "v@", " ~ ") .. " }}" .. USES_ALL .. "{% endfor %}"),
    ("11"):rep(2500) .. each(45, tostring))
  local _, spans = jinja.compile("{% for x in l %}{% generation %}ab{% endgeneration %}" .. long .. "{% endfor %}",
    "case"):render(v)
  t.equal(spans, { { 1, 2 }, { 5003, 5004 }, { 10005, 10006 } })
  t.raises("case, line 3: ", render, "{% for x in l %}" .. long .. "\n\n{{ x.b.c }}{% endfor %}", v)
end)

t.test("TextOfTheTemplateIsNeverSource", function()
  local all = {}
  for code = 0, 255 do all[code + 1] = string.char(code) end
  local bytes = table.concat(all, "", 1, 128) .. "é東🤔"
  local texts = { "]]", "]=]", "%d%s", '"', "'", "\\n", "\0", "--", '") os.exit() --', "]] os.exit() --[[",
    "\226\128\168" }
  local function quoted(text) return "'" .. text:gsub("[\\']", "\\%0") .. "'" end

  for _, text in ipairs(texts) do
    t.equal(render("{% raw %}" .. text .. "{% endraw %}"), text)
    t.equal(render("{{ " .. quoted(text) .. " }}"), text)
    t.equal(render("{{ {" .. quoted(text) .. ": 1}[" .. quoted(text) .. "] }}"), "1")
    t.equal(render("{{ v[" .. quoted(text) .. "] }}", { v = { [text] = 2 } }), "2")
    t.equal(render("{{ v == " .. quoted(text) .. " }}{{ v in [" .. quoted(text) .. "] }}", { v = text }), "TrueTrue")
  end
  t.equal(render("{{ v == " .. quoted(bytes:gsub("[\r\n]", "")) .. " }}", { v = bytes:gsub("[\r\n]", "") }), "True")
  t.equal(render("{{ v == 'a\\nb\\r\\x00' }}", { v = "a\nb\r\0" }), "True")
end)

t.test("NamesOfTheTemplateAreNotThoseOfTheSource", function()
  local words = { "end", "local", "nil", "function", "goto", "repeat", "out", "n", "V", "K", "R0", "t1", "position",
    "type", "none_", "spans", "variables", "NOTHING", "é", "_", "os", "_G", "string" }

  for i, word in ipairs(words) do
    t.equal(render(("{{ %s is defined }}"):format(word)), "False")
    t.equal(render(("{%% set %s = %d %%}{{ %s }}"):format(word, i, word)), tostring(i))
    t.equal(render(("{%% macro %s(%s) %%}{{ %s }}{%% endmacro %%}{{ %s(%d) }}"):format(word, word, word, word, i)),
      tostring(i))
    t.equal(render(("{%% for %s in [3] %%}{{ %s }}{%% endfor %%}{{ x.%s }}{{ %s }}"):format(word, word, word, word),
      { x = { [word] = "m" }, [word] = "v" }), "3mv")
  end
end)

t.test("ParametersMayHaveTheNamesThatAMacroIsGiven", function()
  t.equal(render "{% macro m(kwargs) %}{{ kwargs }}{% endmacro %}{{ m(1) }}", "1")
  t.equal(render "{% macro m(varargs) %}{{ varargs }}{% endmacro %}{{ m(1) }}", "1")
  local macro = "{% macro m(caller=none) %}{% if caller %}{{ caller() }}{% else %}no{% endif %}{% endmacro %}"
  t.equal(render(macro .. "{% call m() %}hi{% endcall %}{{ m() }}"), "hino")
end)

t.test("ALoopsElseFollowsUnlessATurnReachesItsEnd", function()
  local source = "{% for x in [1, 2] %}@{{ x }}{% else %}E{% endfor %}"
  for statement, expected in pairs {
    ["{% break %}"] = "E", ["{% continue %}"] = "E", [""] = "12", ["{% if x == 2 %}{% break %}{% endif %}"] = "1",
    ["{% if x == 1 %}{% continue %}{% endif %}"] = "2",
  } do
    t.equal(render((source:gsub("@", (statement:gsub("%%", "%%%%"))))), expected)
  end
  t.equal(render "{% for x in [] %}{{ x }}{% else %}E{% endfor %}", "E")
end)

t.test("WhatIsNotThereHasNoKeyInADict", function()
  t.equal(render "{{ {'a': 1}.get(x, 7) }}{{ {'a': 1}.get(x) }}", "7None")
  t.equal(render "{{ {'a': false}.get('a', 7) }}{{ {1: 2}.get(1) }}", "False2")
end)

t.test("KeysThatAreNotThereAreNotKept", function()
  local template = jinja.compile("{{ d[k] }}.", "case")
  local function heap_after(count)
    for i = 1, count do t.equal(template:render { d = {}, k = "k" .. count .. "/" .. i }, ".") end
    collectgarbage()
    collectgarbage()
    return lockstep.memory().lua
  end
  local before = heap_after(2000)
  t.truthy(heap_after(20000) - before < 1e6)
end)

t.test("ANamespaceThatIsCalledWithABodyIsAnError", function()
  t.raises("case, line 1: a Namespace has no text", render, "{% call namespace() %}x{% endcall %}")
end)

t.test("ATextBeyondTheLimitIsNotBuilt", function()
  local before = lockstep.memory().lua
  t.raises("is too large", render, "{% set s = 'x' * 60000000 %}{% for i in range(30) %}{{ s }}{% endfor %}")
  t.truthy(lockstep.memory().lua - before < 5e8)
end)

t.test("EachStatementSetsTheLineOfItsErrors", function()
  local cases = {
    { "{% for x in [1, 0] %}\n{{ 1 // x }}\n{{ x }}{% endfor %}", 2 },
    { "{% for x in [1, 0] %}{% if x %}\n{{ x }}{% else %}\n{{ 1 // x }}{% endif %}{% endfor %}", 3 },
    { "{{ l }}{% if l %}\n{{ l }}\n{% endif %}{{ a.b }}", 3 },
    { "{% if l %}\n{{ l }}{% elif a.b\n %}{% endif %}", 1 },
    { "{% if l %}\n{{ l }}{% endif %}{{ a.b }}", 2 },
    { "{% for x in l %}\n{{ x }}{% endfor %}{{ a.b }}", 2 },
    { "{% for x in [1, 0] %}{{ 1 // x }}\n{{ x }}{% endfor %}", 1 },
    { "{% macro f() %}\n{{ l }}\n{% endmacro %}{{ f() }}{{ a.b }}", 3 },
    { "{% macro f(x) %}\n{{ x.y.z }}\n{% endmacro %}\n{{ f(1) }}", 2 },
    { "{{ l }}\n{% set x %}\n{{ l }}\n{% endset %}{% set y = a.b %}", 4 },
    { "{{ l }}\n{% set x | round %}\n{{ l }}\n{% endset %}", 2 },
    { "{{ l }}\n{% with x = 1 %}\n{{ x }}{% endwith %}\n\n{{ a.b }}", 5 },
    { "{% for x in [1] %}\n{{ x }}{% endfor %}{% for x in a.b %}{% endfor %}", 2 },
    { "{% macro f() %}{{ caller() }}{% endmacro %}\n{% call f() %}\n{{ a.b }}\n{% endcall %}", 3 },
    { "{% macro f() %}{{ caller() }}{{ a.b }}{% endmacro %}\n{% call f() %}\n{{ l }}\n{% endcall %}", 1 },
    { "{% generation %}\n{{ l }}\n{% endgeneration %}{{ a.b }}", 3 },
    { "{% set n = namespace() %}\n{% set n.x = 1 %}\n{% set n.x.y = 1 %}", 3 },
  }
  for _, case in ipairs(cases) do t.raises(("case, line %d: "):format(case[2]), render, case[1]) end
end)
