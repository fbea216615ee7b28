--- Tests memory by line: how much each line of a script holds, at the peak and at the end.

local nn = require "lockstep.nn"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local MB = 2 ^ 20

local function here()
  return "driver/lualib/lockstep/watching/memory_lines_test.lua:" .. debug.getinfo(2, "l").currentline
end

--- Returns the bytes of the lines of a list, by place.
local function by_place(lines)
  local held = {}
  for _, line in ipairs(lines) do held[line.place] = line end
  return held
end

t.test("EachLineHasWhatItsTensorsHold", function()
  local big, small
  local report, x, y = lockstep.memory_by_line(function()
    local x = torch.zeros { 2, MB / 4 }
    big = here():gsub("%d+$", function(n) return n - 1 end)
    local y = torch.zeros { MB / 4 }
    small = here():gsub("%d+$", function(n) return n - 1 end)
    return x, y
  end)

  t.equal({ x:numel(), y:numel() }, { MB / 2, MB / 4 })
  t.equal(report.peak_bytes, 3 * MB)
  t.equal({ report.peak[1].place, report.peak[1].bytes, report.peak[1].count }, { big, 2 * MB, 1 })
  t.equal({ report.peak[2].place, report.peak[2].bytes }, { small, MB })
  t.equal({ report.held_bytes, report.held[1].place }, { 3 * MB, big })
end)

t.test("AllocationsOfALineInALoopAreCountedTogether", function()
  local kept = {}
  local report = lockstep.memory_by_line(function()
    for i = 1, 5 do kept[i] = torch.zeros { MB / 4 } end
  end)

  t.equal({ #kept, #report.held }, { 5, 1 })
  t.equal({ report.held[1].bytes, report.held[1].count }, { 5 * MB, 5 })
end)

t.test("FreedMemoryCountsOnlyAtThePeak", function()
  local report = lockstep.memory_by_line(function()
    lockstep.scope(function() return torch.zeros({ 4, MB / 4 }):sum():item() end)
    torch.zeros { MB / 4 }
    collectgarbage()
    collectgarbage()
  end)

  t.truthy(report.peak_bytes >= 4 * MB and report.peak_bytes < 4 * MB + 4096, report.peak_bytes)
  t.equal(report.held_bytes, 0)
  t.equal(#report.held, 0)
end)

t.test("ActivationsBelongToTheLineThatMadeThem", function()
  local w = torch.ones({ MB / 4 }, { requires_grad = true })
  local line
  local loss
  local report = lockstep.memory_by_line(function()
    loss = torch.exp(w:sin()):sum() line = here()
    collectgarbage()
    collectgarbage()
  end)

  -- Nothing needs sin(w). Backward needs exp's result, and no value of Lua holds it.
  t.equal(loss:dim(), 0)
  local held = by_place(report.held)[line]
  t.truthy(held.bytes >= MB and held.bytes < 1.01 * MB, held.bytes)
end)

t.test("GradientsBelongToTheLineOfBackward", function()
  local model, x = nn.Linear(512, 512), torch.ones { 1, 512 }
  local loss, line = model(x):sum(), nil
  local report = lockstep.memory_by_line(function()
    loss:backward() line = here()
  end)

  t.truthy(by_place(report.held)[line].bytes >= MB)
end)

t.test("ALibrarysLineIsTheScriptsThatCallsIt", function()
  local line, model
  local report = lockstep.memory_by_line(function()
    model = nn.Linear(512, 512) line = here()
  end)

  t.equal(model.weight:numel(), 512 * 512)
  t.equal(report.held[1].place, line)
end)

t.test("TheReportPrintsTenLinesAndTheRest", function()
  local chunk = { "local torch, kept = ..." }
  for i = 1, 12 do chunk[#chunk + 1] = string.format("kept[%d] = torch.zeros { %d, 262144 }", i, i) end
  local make, kept = assert(loadstring(table.concat(chunk, "\n"), "@many.lua")), {}

  local text = tostring((lockstep.memory_by_line(make, torch, kept)))

  local total = 12 * 13 / 2
  t.truthy(text:find("at the peak%s+MiB  share  tensors\nmany.lua:13 +12%.00    15%%        1\n"), text)
  t.truthy(text:find("2 more lines +3%.00     4%%        2\n"), text)
  t.truthy(text:find("total +" .. total .. "%.00"), text)
  t.truthy(text:find("\n\nin the end "), text)
end)

t.test("AnErrorPassesAndEndsTheWatch", function()
  local ok, message = pcall(lockstep.memory_by_line, function() error("inside", 0) end)

  t.equal({ ok, message }, { false, "inside" })
  t.raises("lockstep.memory_by_line: the argument must be a function, not a nil", lockstep.memory_by_line)
end)
