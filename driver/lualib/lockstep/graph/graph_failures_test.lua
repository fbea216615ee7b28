--- Recordings that CUDA breaks. The CPU stands in for a GPU: streams that do nothing, and graphs that these tests make.

local core_graph = require "lockstep.core.graph"
local dist = require "lockstep.distributed"
local lockstep_graph = require "lockstep.graph"
local plain = require "lockstep.plain"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local REASON = "CUDA error: operation failed due to a previous error during capture"

--- Sets fields of tables while fn runs.
local function with_fields(fields, fn)
  local before = {}
  for i, field in ipairs(fields) do
    local object, name, value = unpack(field)
    before[i] = rawget(object, name)
    rawset(object, name, value)
  end
  return plain.finally(function()
    for i, field in ipairs(fields) do rawset(field[1], field[2], before[i]) end
  end, fn)
end

--- Calls fn on a rank whose device seems to be a GPU. `record` is what a graph does when it records. Returns what fn
--- wrote to stderr.
local function on_a_gpu(record, fn)
  local written, stderr = {}, io.stderr
  local stream = { wait_stream = function() end }
  local graph = { record = record, replay = function(self) self.replays = (self.replays or 0) + 1 end }
  with_fields({
    { dist, "device", function() return "cuda:0" end },
    { core_graph, "new", function() return setmetatable({}, { __index = graph }) end },
    { torch.cuda, "Stream", function() return stream end },
    { torch.cuda, "current_stream", function() return stream end },
    { torch.cuda, "stream", function(_, run, ...) return run(...) end },
    { torch.cuda, "empty_cache", function() end },
    { io, "stderr", { write = function(_, text) written[#written + 1] = text end } },
  }, fn)
  assert(io.stderr == stderr)
  return table.concat(written)
end

t.test("ARecordingThatWorksIsReplayed", function()
  local runs = 0
  local text = on_a_gpu(function(_, fn, ...) return nil, fn(...) end, function()
    local graph = lockstep_graph(function(x) runs = runs + 1 return x + 1 end, { warmup = 1 })
    for _ = 1, 4 do t.equal(graph(2), 3) end
    t.equal({ graph.recordings, graph.hits, graph.failures, graph.captured }, { 1, 2, 0, true })
  end)

  t.equal({ runs, text }, { 2, "" }) -- once as warm-up, once as it was recorded
end)

t.test("AfterABrokenRecordingStepsRunWithoutAGraphAndOneLineSaysWhy", function()
  local runs = 0
  local text = on_a_gpu(function(_, fn, ...) return REASON, fn(...) end, function()
    local graph = lockstep_graph(function(x) runs = runs + 1 return x + runs end, { warmup = 1 })
    -- The recording counted as run 2, and ran nothing.
    t.equal({ graph(0), graph(0), graph(0), graph(0) }, { 1, 3, 4, 5 })
    t.equal({ graph.recordings, graph.hits, graph.failures, graph.captured }, { 0, 0, 1, false })
  end)

  t.equal(runs, 5)
  t.equal(text, "lockstep: warning: lockstep.graph: the GPU could not record the step, which goes on without a graph, "
    .. "at the usual speed: " .. REASON .. "\n")
end)

t.test("AnErrorOfTheFunctionLeavesNoGraphBehind", function()
  local fails = true
  on_a_gpu(function(_, fn, ...) return nil, fn(...) end, function()
    local graph = lockstep_graph(function(x)
      if fails and x == 2 then error("not now", 0) end
      return x
    end, { warmup = 1 })
    fails = false
    graph(2)
    fails = true
    local ok, message = pcall(graph, 2)
    t.equal({ ok, message }, { false, "not now" })
    fails = false

    t.equal(graph(2), 2) -- recorded now, and not a replay of what broke off
    t.equal({ graph.recordings, graph.hits }, { 1, 0 })
  end)
end)
