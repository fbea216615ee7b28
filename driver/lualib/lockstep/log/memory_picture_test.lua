--- Tests log.memory: a line for each function, and the most that each held.

local checkpoint = require "lockstep.checkpoint"
local log = require "lockstep.log"
local memory = require "lockstep.log.memory"
local run = require "lockstep.run"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local MB = 2 ^ 20

t.test("EachFunctionHasALineAndItsPeak", function()
  local called = {}

  local peaks = log.memory("memory.svg", {
    { "one", function()
      called[#called + 1] = "one"
      torch.zeros { MB / 4 }
    end },
    { "four & more", function()
      called[#called + 1] = "four"
      torch.zeros { MB }
    end },
  }, { title = "a < b" })

  t.equal(called, { "one", "four" })
  t.equal(peaks, { one = MB, ["four & more"] = 4 * MB })
  local text = t.read_file(run.dir .. "/memory.svg")
  for _, part in ipairs { "one", "four &amp; more", "a &lt; b (MiB)", "seconds" } do
    t.truthy(text:find(">" .. part .. "</text>", 1, true), part)
  end
end)

t.test("RegionsKeepLessOfEachLayer", function()
  local weights, x = {}, torch.randn({ 64, 64 }):requires_grad_(true)
  for i = 1, 6 do weights[i] = torch.randn({ 64, 64 }):requires_grad_(true) end
  local function step(call)
    local y = x
    for _, w in ipairs(weights) do
      y = call(function(input)
        collectgarbage() -- tensors that only Lua holds
        return torch.tanh(torch.tanh(torch.tanh(input:matmul(w))))
      end, y)
    end
    y:sum():backward()
  end

  local peaks = log.memory("regions.svg", {
    { "plain", function() step(function(fn, ...) return fn(...) end) end },
    { "regions", function() step(checkpoint.new()) end },
  })

  t.truthy(peaks.regions < 0.7 * peaks.plain, peaks.regions .. " of " .. peaks.plain)
end)

t.test("ALongLineKeepsItsHighestPoints", function()
  local points = {}
  for i = 1, 10000 do points[i] = { i / 1000, i == 7777 and 64 * MB or i % 3 * MB } end

  local line = memory.line(points)

  t.truthy(#line <= 601 and #line > 500, #line)
  local most, before = 0, -1
  for _, point in ipairs(line) do
    t.truthy(point.step > before)
    most, before = math.max(most, point.value), point.step
  end
  t.equal(most, 64)
  t.equal(memory.line {}, {})
end)

t.test("WrongArgumentsAreRefused", function()
  local function nothing() end
  t.raises('log.memory: the file must be a name, as "memory.svg", not a table', log.memory, { { "a", nothing } })
  t.raises('the parts must be an array such as { { "plain", train_step } }, not a function', log.memory, "a.svg",
    nothing)
  t.raises("not an empty table", log.memory, "a.svg", {})
  t.raises('part 2 must be a name and a function, as in { "plain", train_step }', log.memory, "a.svg",
    { { "a", nothing }, { nothing } })
  t.raises('log.memory: parts 1 and 3 are both named "a"; give each a name of its own', log.memory, "a.svg",
    { { "a", nothing }, { "b", nothing }, { "a", nothing } })
  t.raises('log.memory: unknown option "titel"; did you mean "title"?', log.memory, "a.svg", { { "a", nothing } },
    { titel = "x" })
end)
