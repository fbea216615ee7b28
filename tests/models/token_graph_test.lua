-- models.generate with a graph for new tokens, recorded on the CPU: the ids are those without one. Each rank records on
-- its own.

local dist = require "lockstep.distributed"
local lora = require "lockstep.lora"
local models = require "lockstep.models"
local t = require "lockstep.testing"
local token_graph = require "lockstep.models.token_graph"
local torch = require "lockstep.torch"

local PROMPTS = { { 3, 1, 4, 1, 5, 9, 2, 6 }, { 2, 7 }, { 1, 8, 2, 8, 1 }, { 5 }, { 6, 2, 8 } }
local NEW = { 40, 18, 33, 25, 30 }

--- Returns the new ids, and the graph that was made for them, or nil.
local function generate(model, opts, graph)
  local made
  local new = token_graph.new
  token_graph.new = function(...)
    made = new(...)
    return made
  end
  opts.graph, opts.stop, opts.max_new_tokens = graph, opts.stop or {}, opts.max_new_tokens or NEW
  local ids = models.generate(model, PROMPTS, opts)
  token_graph.new = new
  return ids, made
end

for _, family in ipairs { "qwen2", "qwen3", "gemma3", "phi3_longrope", "qwen3_vl" } do
  t.test("AGraphDrawsWhatALoopDraws_" .. family, function()
    local model = models.load("tests/models/" .. family, { dtype = torch.float64 })
    if family == "qwen3" then lora.apply(model, { r = 4, alpha = 8, targets = "all-linear" }) end
    for _, opts in ipairs { {}, { max_batch_size = 3, temperature = 1, seed = 3 } } do
      local expected = generate(model, opts, false)
      local ids, made = generate(model, opts, true)
      t.equal(ids, expected)
      t.truthy(made.call.hits > 20, made.call.hits)
      t.equal(made.call.failures, 0)
    end
  end)
end

-- 40 columns, and buckets of 8: the cache moves its tokens, and prompts take the rows of others.
t.test("ACacheThatMovesItsTokensAndBucketsOfColumns", function()
  local model = models.load("tests/models/qwen3", { dtype = torch.float64 })
  local columns_for = token_graph.columns_for
  token_graph.columns_for = function(cache) return math.min(math.ceil((cache.used + 1) / 8) * 8, cache.columns) end
  local stop = { generate(model, {}, false)[1][7] }

  for _, size in ipairs { 1, 2, 4 } do
    local expected = generate(model, { max_batch_size = size, stop = stop }, false)
    local ids, made = generate(model, { max_batch_size = size, stop = stop }, true)
    t.equal(ids, expected)
    t.truthy(made.call.recordings > 2, made.call.recordings)
  end
  token_graph.columns_for = columns_for
end)

t.test("WhatAGraphCannotHoldRunsWithoutOne", function()
  for _, family in ipairs { "qwen3_moe", "gpt_oss", "llama_dynamic", "qwen3_int8" } do
    local model = models.load("tests/models/" .. family)
    local _, made = generate(model, {}, true)
    t.equal(made, nil, family)
  end
  local model = models.load "tests/models/qwen3"
  local _, made = generate(model, { max_new_tokens = token_graph.LEAST_NEW_TOKENS - 1 }, true)
  t.equal(made, nil, "few tokens")
  _, made = generate(model, {}, nil)
  t.equal(made, nil, "the default of a CPU")
  local device = dist.device
  dist.device = function() return "cuda:0" end
  _, made = generate(model, {}, nil)
  dist.device = device
  t.equal(made, nil, "a model on a CPU in a run on GPUs")
end)

-- A head that reads a value cannot be recorded.
t.test("ARefusedRecordingIsToldAndTheLoopGoesOn", function()
  local model = models.load("tests/models/qwen3", { dtype = torch.float64 })
  local expected = generate(model, {}, false)
  local head, written = model.head, {}
  model.head = function(self, x)
    x:sum():item()
    return head(self, x)
  end
  local stderr = io.stderr
  io.stderr = { write = function(_, text) written[#written + 1] = text end } -- luacheck: ignore 122
  local ids, made = generate(model, {}, true)
  io.stderr = stderr -- luacheck: ignore 122

  t.equal(ids, expected)
  t.equal(made.call, nil)
  t.equal(#written, 1)
  t.truthy(written[1]:find("new tokens run without a graph", 1, true) and written[1]:find("item", 1, true), written[1])
end)

t.test("AnotherErrorEndsTheGeneration", function()
  local model = models.load("tests/models/qwen3", { dtype = torch.float64 })
  local head, calls = model.head, 0
  model.head = function(self, x)
    calls = calls + 1
    if calls == 3 then error("interrupted", 0) end
    return head(self, x)
  end
  t.raises("interrupted", generate, model, {}, true)
end)

t.test("TheOptionIsChecked", function()
  local model = models.load "tests/models/qwen3"
  t.raises("graph must be true or false, got 1", models.generate, model, PROMPTS, { graph = 1 })
end)
