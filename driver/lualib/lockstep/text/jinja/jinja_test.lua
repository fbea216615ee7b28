-- Templates render as jinja2 renders them. tests/chat_templates/make_cases.py asked jinja2.

local core = require "lockstep.core"
local data = require "lockstep.data"
local jinja = require "lockstep.text.jinja"
local limits = require "lockstep.text.jinja.limits"
local t = require "lockstep.testing"

local CASES = "driver/lualib/lockstep/text/jinja/jinja_cases.json"

local function render(source, variables)
  return (jinja.compile(source, "case"):render(variables or {}))
end

t.test("TextsAreThoseOfJinja2AndItsErrorsAreErrors", function()
  local cases = data.json(CASES)
  local variables = cases[1].variables
  local wrong, num_failures = {}, 0
  for i = 2, #cases do
    local case = cases[i]
    local ok, text = pcall(render, case.template, variables)
    text = tostring(text)
    local expected = case.text or case.failure
    if case.failure then
      num_failures = num_failures + 1
      if ok or not text:find("case, line %d") then wrong[#wrong + 1] = { case.template, expected, text } end
    elseif not ok or text ~= expected then
      wrong[#wrong + 1] = { case.template, expected, text }
    end
  end
  for i, what in ipairs(wrong) do wrong[i] = ("%q: expected\n%s\ngot\n%s"):format(unpack(what)) end
  if #wrong > 0 then error(table.concat(wrong, "\n")) end
  t.equal({ #cases > 140, num_failures > 50 }, { true, true })
end)

t.test("ErrorsNameTheTemplateAndTheLine", function()
  local cases = {
    { "a\n{{ x.y }}", "case, line 2: x is undefined" },
    { "a\n{% if 1 %}\n{{ {}.z.y }}{% endif %}", "case, line 3: a dict has no attribute or item 'z'" },
    { "{{ 'a' |\n trimm }}", "case, line 2: there is no filter named trimm in this interpreter; did you mean trim? "
      .. "(known: abs, attr, " },
    { "{{ 'a' is strin }}", "case, line 1: there is no test named strin in this interpreter; did you mean string?" },
    { "\n{% include 'x' %}", "case, line 2: {% include %} is not a statement that this interpreter knows (known: "
      .. "break, call, continue, filter, for, generation, if, macro, set, with, raw)" },
    { "{{ 'a'.format(1) }}", "case, line 1: the method format of a str is not supported by this interpreter" },
    { "{{ [].append(1) }}", "case, line 1: list.append() changes its object, which templates may not do" },
    { "{{ 'a'.strip(1, 2) }}", "case, line 1: str.strip() takes 1 arguments, got 2" },
    { "{{ 'a' | trim(1, 2) }}", "case, line 1: the filter trim takes 1 arguments, got 2" },
    { "{{ 'a' | trim(x=2) }}", "case, line 1: the filter trim has no parameter x" },
    { "{% for x in [] %}\n{% if x %}\n", "case, line 2: {% if %} of line 2 is not closed; expected {% elif %} or "
      .. "{% else %} or {% endif %}" },
    { "{{ (1, 2 }}", "case, line 1: unexpected }" },
    { "{{ 1 2 }}", "case, line 1: expected }}, got a number" },
    { "{{ f(*x) }}", "case, line 1: * before an argument is not supported" },
    { "{% macro f(a) %}{{ 1 + a }}{% endmacro %}\n{{ f() }}",
      "case, line 1: the parameter a of the macro f was not given" },
    { "\n{{ raise_exception('No tools!') }}", "case, line 2: the template refuses the conversation: No tools!" },
    { "{% set s = 1 %}{% set s.x = 1 %}", "case, line 1: s.x cannot be set: s is a int, not a namespace" },
    { "{% set s = namespace(_a=1) %}", "case, line 1: a namespace cannot hold _a" },
    { "\n{% set s._a = 1 %}\n\n{{ 1 }}", "case, line 2: a namespace cannot hold _a" },
    { "\n{% set\ns._a %}\n{{ 1 }}\n{% endset %}\n", "case, line 2: a namespace cannot hold _a" },
    { "{{ 2 ** 60 }}", "case, line 1: an integer is beyond 2^53 - 1" },
    { "\n{{ 9007199254740993 }}", "case, line 2: an integer is beyond 2^53 - 1" },
    { "{{ 0x20000000000000 }}", "case, line 1: an integer is beyond 2^53 - 1" },
    { "{{ 9007199254740991 + 1 }}", "case, line 1: an integer is beyond 2^53 - 1" },
    { "{{ -9007199254740991 - 1 }}", "case, line 1: an integer is beyond 2^53 - 1" },
    { "{{ '9007199254740993' | int }}", "case, line 1: an integer is beyond 2^53 - 1" },
    { "{{ none | tojson }}{{ x | tojson }}", "tojson: a Undefined has no form in JSON: x is undefined" },
    { "\n{{ 1.5 | round(x) }}", "case, line 2: round needs an int, got a Undefined" },
    { "\n{{ 1.5 | round('x', 'ceil') }}", "case, line 2: round needs an int, got a str" },
    { "\n{{ 1.5 | round(99) }}", "case, line 2: round with the precision 99 is not supported; from 0 to 98" },
    { "\n{{ [][::1e308] }}", "case, line 2: a slice needs integers, got a float" },
    { "\n{{ 'a' | indent(x) }}", "case, line 2: indent needs an int, got a Undefined" },
    { "\n{{ 'a'.center() }}", "case, line 2: padding needs an int, got a missing argument" },
    { "\n{{ 'a'.replace('a') }}", "case, line 2: replace() needs a str, got a missing argument" },
    { "\n{{ '1' | int(base=x) }}", "case, line 2: int needs an int, got a Undefined" },
    { "\n{{ '1' | int(base=99) }}", "case, line 2: int: base must be from 2 to 36, got 99" },
    { "\n{{ {(1e400 - 1e400): 1} }}", "case, line 2: nan cannot be the key of a dict in this interpreter" },
    { "\n{{ [1] | select('divisibleby') | list }}",
      "case, line 2: % cannot be applied to a int and a missing argument" },
  }
  for _, case in ipairs(cases) do t.raises(case[2], render, case[1]) end
end)

t.test("AnErrorOfLuaIsOneOfItsLine", function()
  local step = limits.step
  limits.step = function() error "a fault" end
  local ok, problem = pcall(render, "a\n{{ [1] | tojson }}")
  limits.step = step
  t.equal(ok, false)
  t.truthy(tostring(problem):find "case, line 2: this interpreter failed %(.*a fault%)")
end)

t.test("FloatsOfManyDigitsAreRead", function()
  t.equal(render "{{ 1e9007199254740991 }} {{ 1e-9007199254740991 }} {{ 2.5e+0003 }}", "inf 0.0 2500.0")
  t.equal(render "{{ '%.98f' % 0.5 }} {{ '%.99f' % 0.5 }}", ("0.5%s 0.5%s"):format(("0"):rep(97), ("0"):rep(98)))
end)

t.test("IntReadsDecimalDigitsWithoutABase", function()
  local cases = { ["'0x1f' | int"] = "0", ["'0b11' | int"] = "0", ["'nan' | int"] = "0", ["'inf' | int(7)"] = "7",
    ["'0x1f' | int(0, 16)"] = "31", ["'0b11' | int(0, 2)"] = "3", ["'0b11' | int(0, 16)"] = "2833",
    ["'1e3' | int"] = "1000", ["9007199254740991 - 1"] = "9007199254740990" }
  for source, expected in pairs(cases) do
    t.equal({ source, (render("{{ " .. source .. " }}")) }, { source, expected })
  end
end)

t.test("TemplatesThatNeverEndAreErrorsOfTheirLine", function()
  local steps = "takes more than 10000000 steps (iterations of loops and calls of macros); it may never end"
  -- Takes 9,900,099 steps in no time: a loop counts all its elements when it begins.
  local spend = "{% set r = range(100000) %}{% for i in range(99) %}{% for j in r %}{% break %}{% endfor %}{% endfor %}"
  local doubled = spend .. "{% set n = namespace(s=VALUE) %}\n{% for i in range(40) %}{% set n.s = DOUBLE %}"
    .. "{% endfor %}{{ n.s USE }}"
  local function doubles(value, double, use)
    return (doubled:gsub("VALUE", value):gsub("DOUBLE", double):gsub("USE", use or ""))
  end
  local cases = {
    { spend .. "\n{% for i in r %}{% endfor %}", "line 2: the template " .. steps },
    { spend .. "{% macro f(n) %}\n{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
      "line 2: the template " .. steps },
    { "{% macro f() %}\n{{ f() }}{% endmacro %}{{ f() }}",
      "line 2: macros call each other more than 256 deep, down to f; it may call itself for ever" },
    { doubles("[1]", "[n.s, n.s]", "| tojson"), "line 2: the template " .. steps },
    { doubles("[1]", "[n.s, n.s]"), "line 2: the template " .. steps },
    { doubles("[1]", "n.s + n.s"), "line 2: a list of 1048576 elements is too large; at most 1000000" },
    { doubles("'a'", "n.s + n.s"), "line 2: a text of 134217728 bytes is too large; at most 67108864" },
    { doubles("'a'", "n.s ~ n.s"), "line 2: a text of 134217728 bytes is too large; at most 67108864" },
    { doubles("'a' | safe", "n.s + n.s"), "line 2: a text of 134217728 bytes is too large; at most 67108864" },
    { "\n{{ ('a' * 3000000000) | length }}", "line 2: a text of 3000000000 bytes is too large; at most 67108864" },
    { "{{ [1] * 3000000000 }}", "line 1: a list of 3000000000 elements is too large; at most 1000000" },
    { "{{ 'a'.zfill(3000000000) }}", "line 1: a text of 3000000000 bytes is too large" },
    { "{{ 'a\n' | indent(3000000000) }}", "a text of 3000000000 bytes is too large" },
    { "{{ [1] | tojson(indent=3000000000) }}", "line 1: a text of 3000000000 bytes is too large" },
    { "{{ ('a' * 1000) | replace('a', 'b' * 1000000) }}", "line 1: a text of 1000000000 bytes is too large" },
    { "{{ ('a' * 1000) | join('b' * 1000000) }}", "line 1: a text of 1000001000 bytes is too large" },
    { "{% set s = 'a' * 60000000 %}\n{{ s }}{{ s }}", "line 2: a text of 120000000 bytes is too large" },
    { "{% set s = 'a' * 67108860 %}\n{{ ('bbbbb' + s) | length }}", "line 2: a text of 67108865 bytes is too large" },
    { "{% set s = 'a' * 67108860 %}\n{{ ('bbbbb' ~ s) | length }}", "line 2: a text of 67108865 bytes is too large" },
    { "{{ '%300d' % 1 }}", "line 1: the width of %300d is too large; at most 99" },
    { "\n{{ " .. ("("):rep(9000) .. "1" .. (")"):rep(9000) .. " }}",
      "line 2: the template is nested too deeply (stack overflow)" },
    { "{% set n = namespace(s=[]) %}{% for i in range(9000) %}{% set n.s = [n.s] %}{% endfor %}\n{{ n.s }}",
      "line 2: the template is nested too deeply (stack overflow)" },
  }
  for _, case in ipairs(cases) do t.raises(case[2], render, case[1]) end
  t.equal(render("{{ ('a' * 67108864) | length }}"), "67108864")
  t.equal(render("{% macro f(n) %}{% if n > 1 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(256) }}{{ f(256) }}"), "")
end)

--- Returns the most memory that this process has had, in MiB.
local function peak()
  return tonumber(t.read_file("/proc/self/status"):match "VmHWM:%s*(%d+)") / 1024
end

t.test("TemplatesThatFillTheMemoryAreErrorsOfTheirLine", function()
  t.raises("line 2: the template needs more than 268435456 bytes of memory", render,
    "\n{% set n = namespace(s=[]) %}{% for i in range(99) %}{% set n.s = n.s + ['a' * (60000000 + i)] %}{% endfor %}")
  t.equal(#render("{{ ('a' * 60000000) ~ 'b' }}"), 60000001)

  -- The rest with smaller limits, which take less time.
  local most_bytes, most_text = limits.MAX_BYTES, limits.MAX_TEXT
  limits.MAX_BYTES, limits.MAX_TEXT = 2 ^ 22, 2 ^ 20
  local memory, too_large = "needs more than 4194304 bytes of memory", "is too large; at most 1048576"
  -- Adds a value to a list again and again.
  local function collects(value)
    return "{% set a = 'a' * 1000000 %}{% set r = range(100000) %}{% set n = namespace(s=[]) %}{% for i in r %}\n"
      .. "{% set n.s = n.s + [" .. value .. "] %}{% endfor %}"
  end
  local cases = {
    { collects "'a' * (900000 + i)", memory }, { collects "a[i:]", memory }, { collects "a[i:].upper()", memory },
    { collects "i ~ a[9:]", memory }, { collects "r[i:]", memory }, { collects "r | list", memory },
    { collects "range(i, i + 100000)", memory },
    { "{% set n = namespace(s=1) %}{% set r = range(100000) %}{% for i in r %}{% for j in r %}\n"
      .. "{% set n.s = [n.s, 1, 2, 3, 4, 5, 6] %}{% endfor %}{% endfor %}", memory },
    { "{% set n = namespace(s=1) %}\n{% macro f(i) %}{% set n.s = [n.s, 'a' * (65536 + i)] %}{{ f(i + 1) }}"
      .. "{% endmacro %}{{ f(1) }}", memory },
    { "\n{{ ('a' * 1000000) | list }}", memory }, { "\n{{ ('a' * 1000000).split('a') }}", memory },
    { "\n{{ ('a ' * 500000).split() }}", memory }, { "\n{{ ('\\n' * 1000000).splitlines() }}", memory },
    { "\n{{ ('a' * 1000000) | replace('a', 'b') }}", memory }, { "\n{% for c in 'a' * 1000000 %}{% endfor %}", memory },
    { "{% set r = range(1000) | map('string') | list %}\n{{ r | map('center', 20000) | list | length }}", memory },
    { "\n{{ (['a' * 1000000] * 100) | tojson }}", too_large },
    { "\n{{ [[[1]]] | tojson(indent=1000000) }}", too_large },
    { "{% set s = 'a' * 1000000 %}\n{{ '%s%s' % (s, s) }}", too_large },
    { "{% set s = 'a\\n' * 1000 %}\n{{ s | indent(10000) }}", too_large },
    { "\n{{ ('&' * 1000000) | escape }}", too_large },
    { "\n{{ ('é' * 500000) | tojson(ensure_ascii=true) }}", too_large },
  }
  local before = peak()
  for _, case in ipairs(cases) do
    local ok, problem = pcall(render, case[1])
    t.equal(ok, false, case[1])
    t.truthy(problem:find("case, line 2: ", 1, true) and problem:find(case[2], 1, true), case[1] .. ": " .. problem)
  end
  t.truthy(peak() - before < 60, ("%.0f MiB"):format(peak() - before))
  -- Texts that are dropped again are not counted.
  t.equal(render("{% set n = namespace(s='') %}{% for i in range(100) %}{% set n.s = i ~ 'a' * 1000000 %}{% endfor %}"
    .. "{{ n.s | length }}"), "1000002")
  limits.MAX_BYTES, limits.MAX_TEXT = most_bytes, most_text
end)

-- Values of Lua -----------------------------------------------------------------------------------------

t.test("LuaValuesAreWhatJsonWouldMakeOfThem", function()
  local function json(value) return render("{{ v | tojson }}", { v = value }) end
  t.equal(json { b = 1, a = { 2, 0.5, true, data.null } }, '{"a": [2, 0.5, true, null], "b": 1}')
  t.equal(json(data.ordered({ b = 1, a = 2, c = 3 }, { "c", "b" })), '{"c": 3, "b": 1, "a": 2}')
  t.equal(json {}, "{}")
  t.equal(json(data.array {}), "[]")
  t.equal(json { image = io.stdout }, '{"image": "<userdata>"}')
  t.equal(json(2 ^ 60), "1.152921504606847e+18")
  t.equal(render("{{ v }} {{ v.f }} {{ w }}", { v = core.json_decode '{"f": 1.0, "i": 1}', w = 3 }),
    "{'f': 1.0, 'i': 1} 1.0 3")
end)

t.test("AValueThatTheTemplateReadIsWrittenAsOneThatItDidNotRead", function()
  local value = core.json_decode '{"z": [1, 1.0, {"b": "é", "a": null}], "a": {}, "l": []}'
  t.equal(render("{{ v.z[2].b }}{{ v | tojson }}", { v = value }), "é" .. render("{{ v | tojson }}", { v = value }))
  t.equal(render("{{ v | tojson }}", { v = value }), '{"z": [1, 1.0, {"b": "é", "a": null}], "a": {}, "l": []}')
end)

t.test("WhatCannotBeConvertedIsNamedByItsPath", function()
  local cases = {
    { { v = { { content = "a\255b" } } }, "{{ v[0].content }}", "case: v[1].content is not UTF-8 at byte 2" },
    { { v = { { content = "a\255b" } } }, "{{ v | tojson }}", "case: v[1].content is not UTF-8 at byte 2" },
    { { v = { ["k\255"] = 1 } }, "{{ v | tojson }}", "is not UTF-8 at byte 2" },
    { { v = { { [3] = 1 } } }, "{{ v[0].x }}", "v[1] has the key 3; expected strings, or 1 to n without holes" },
    { { v = { { [3] = 1 } } }, "{{ v | tojson }}", "v has the key 3; expected strings, or 1 to n without holes" },
    { { v = { a = { 1, nil, 3 } } }, "{{ v.a[0] }}",
      "v.a is an array with holes or with keys; put data.null where nothing is" },
    { { v = { a = { 1, x = 3 } } }, "{{ v.a | length }}", "v.a is an array with holes or with keys" },
    { { v = { a = { 1, x = 3 } } }, "{{ v | tojson }}", "v is an array with holes or with keys" },
  }
  for _, case in ipairs(cases) do t.raises(case[3], render, case[2], case[1]) end
  local loop = {}
  loop.loop = loop
  t.raises("nested more than 128 deep, or contains itself", render, "{{ v | tojson }}", { v = loop })
  t.raises("loop is nested more than 128 deep, or contains itself", render,
    "{% macro f(v) %}{{ f(v.loop) }}{% endmacro %}{{ f(v) }}", { v = loop })
end)

t.test("AFunctionWithinAValueIsRefused", function()
  local messages = { { role = "user", content = print } }
  for _, source in ipairs { "{{ v[0].content }}", "{{ v[0] | tojson }}", "{{ v | tojson }}", "{{ v[0].role }}",
    "{% for m in v %}{{ m }}{% endfor %}" } do
    t.raises("holds a function; expected a string, a number, a boolean, a table or a tensor", render, source,
      { v = messages })
  end
  t.raises("case, line 1: v[1] holds a function", render, "{{ v[0].content }}", { v = messages })
  t.raises("case, line 1: v holds a function", render, "{{ v[0] }}", { v = { print } })
  t.raises("f() holds a function", render, "{{ f() }}", { f = function() return print end })
end)

t.test("TextsThatAreNotUtf8AreRefused", function()
  local invalid = { "\128", "\191", "\192\128", "\193\191", "\194", "\194a", "\224\159\191", "\225\128", "\225\128a",
    "\237\160\128", "\240\143\191\191", "\241\128\128", "\241\128\128a", "\241\128a\128", "\244\144\128\128",
    "\245\128\128\128", "\255" }
  local valid = { "\0", "\127", "\194\128", "\223\191", "\224\160\128", "\237\159\191", "\238\128\128", "\239\191\191",
    "\240\144\128\128", "\244\143\191\191" }
  for _, text in ipairs(invalid) do
    t.raises("v is not UTF-8 at byte 4", render, "{{ v }}", { v = "é1" .. text })
    t.raises("v is not UTF-8 at byte 2", render, "{{ v }}", { v = "1" .. text .. "é1" })
  end
  for _, text in ipairs(valid) do t.equal(render("{{ v }}", { v = text .. "a" .. text }), text .. "a" .. text) end
end)

t.test("FunctionsAreCalledWithTheArgumentsByPlace", function()
  t.equal(render("{{ now('%Y') }}{{ f() is none }}", { now = function(format) return "<" .. format .. ">" end,
    f = function() end }), "<%Y>True")
  t.raises("case, line 2: f() failed: ", render, "\n{{ f() }}", { f = function() error "oops" end })
  t.equal(render("{{ strftime_now('%Y-%m') }}"), os.date "%Y-%m")
end)

t.test("SpansAreTheBytesOfGenerationBlocks", function()
  local template = jinja.compile("é{% for m in l %}{% generation %}{{ m }}{% endgeneration %};{% endfor %}", "case")

  local text, spans = template:render { l = { "ab", "", "ü" } }

  t.equal(text, "éab;;ü;")
  t.equal(spans, { { 3, 4 }, { 7, 8 } })
  t.equal(template.has_generation, true)
  t.equal(jinja.compile("{# {% generation %} #}x", "case").has_generation, false)
  local _, none, line = jinja.compile("\n{% set x %}{% generation %}a{% endgeneration %}{% endset %}", "case"):render {}
  t.equal({ none, line }, { {}, 2 })
end)
