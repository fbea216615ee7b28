--- A graph on the CPU follows or refuses every change between its calls, and misses none.

local lockstep = require "lockstep"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

torch.set_num_threads(1)

--- Input of step `i`, the same in each program.
local function input(i) return torch.arange(8):view(2, 4):add(i):sin() end

--- A model, its optimizer and a step, from one seed.
local function training(make)
  torch.manual_seed(1)
  local model = nn.Linear(4, 3)
  local optimizer = make(model:parameters())
  return {
    model = model, optimizer = optimizer,
    step = function(x)
      local loss = model(x):pow(2):mean()
      loss:backward()
      optimizer:step()
      optimizer:zero_grad()
      return loss
    end,
  }
end

local function adam(params) return optim.AdamW(params, { lr = 1e-2 }) end
local function sgd(params) return optim.SGD(params, { lr = 1e-2 }) end

for name, case in pairs {
  lr = { adam, function(group) group.lr = 0.5 end },
  weight_decay = { adam, function(group) group.weight_decay = 0.7 end },
  betas = { adam, function(group) group.betas[1] = 0.3 end },
  momentum = { sgd, function(group) group.momentum = 0.9 end },
  ["fewer parameters"] = { sgd, function(group) table.remove(group.params) end },
} do
  t.test("AChangedOptionOfTheOptimizerIsFollowed, " .. name, function()
    local plain, recorded = training(case[1]), training(case[1])
    local graph = lockstep.graph(recorded.step, { warmup = 2 })

    for i = 1, 12 do
      if i == 6 then
        for _, one in ipairs { plain, recorded } do case[2](one.optimizer.groups[1]) end
      end
      t.equal(graph(input(i)), plain.step(input(i)):detach(), "step " .. i)
      t.equal(recorded.model:state_dict(), plain.model:state_dict(), "step " .. i)
    end

    t.equal({ graph.recordings, graph.hits }, { 2, 7 }, "2 warm-ups, and twice a recording with a warm-up before it")
  end)
end

t.test("AForgottenStateOfTheOptimizerIsFollowed", function()
  local plain, recorded = training(adam), training(adam)
  local graph = lockstep.graph(recorded.step, { warmup = 1 })

  for i = 1, 10 do
    if i == 5 then
      for _, one in ipairs { plain, recorded } do one.optimizer.state[one.model.bias] = nil end
    end
    t.equal(graph(input(i)), plain.step(input(i)):detach(), "step " .. i)
    t.equal(recorded.model:state_dict(), plain.model:state_dict(), "step " .. i)
  end

  t.equal({ graph.recordings, graph.hits }, { 2, 6 })
end)

t.test("AnOptionThatChangesInEachStepIsFollowed", function()
  local plain, recorded = training(adam), training(adam)
  local graph = lockstep.graph(recorded.step, { warmup = 1 })

  for i = 1, 40 do
    for _, one in ipairs { plain, recorded } do one.optimizer.groups[1].lr = 1 / i end
    t.equal(graph(input(i)), plain.step(input(i)):detach(), "step " .. i)
  end

  t.equal(recorded.model:state_dict(), plain.model:state_dict())
  t.equal(graph.hits, 0)
end)

t.test("ATableThatCouldChangeUnseenIsRefusedFromTheFirstCallOn", function()
  for name, value in pairs {
    ["tensors by name"] = { x = torch.ones { 2 } },
    ["an array of tensors"] = { torch.ones { 2 } },
    ["arrays in an array"] = { 1, { 2 } },
    ["numbers by name"] = { scale = 2 },
    ["a gap"] = { 1, nil, 3 },
    ["a module"] = nn.Linear(2, 2),
  } do
    local ran = false
    local graph = lockstep.graph(function() ran = true end, { warmup = 1 })

    t.raises("argument 2 is a table, and a graph would not see that it changes", function()
      graph(torch.ones { 2 }, value)
    end)

    t.equal(ran, false, name)
  end
end)

t.test("AnArrayOfPlainValuesMayBeAnArgument", function()
  local graph = lockstep.graph(function(x, list) return x * list[1] + (list[3] and #list[2] or 0) end,
    { warmup = 1, buckets = 2 })
  local list = { 2, "abc", true }

  for i = 1, 3 do t.equal(graph(torch.tensor { i }, list):totable(), { 2 * i + 3 }) end
  list[1] = 5 -- another bucket
  for i = 1, 3 do t.equal(graph(torch.tensor { i }, list):totable(), { 5 * i + 3 }) end
  t.equal(graph.recordings, 2)
end)

t.test("AShapeMayBeAnArgument", function()
  local graph = lockstep.graph(function(x, shape) return x:view(shape):sum(0) * #tostring(shape) end, { warmup = 1 })
  for i = 1, 3 do
    local shape = torch.ones({ 1, 2 }).shape
    t.equal(graph(torch.tensor { i, 2 }, shape):totable(), { i * #tostring(shape), 2 * #tostring(shape) })
  end
  t.equal(graph.hits, 1)
end)

t.test("MinusZeroIsAnotherNumberThanZero", function()
  local graph = lockstep.graph(function(x, zero, list) return x / zero + x / list[1] end, { warmup = 1, buckets = 3 })
  local function call(zero, in_list) return graph(torch.ones { 1 }, zero, { in_list }):item() end

  for _ = 1, 3 do t.equal(call(0, 0), math.huge) end
  for _ = 1, 3 do t.equal(call(-0.0, -0.0), -math.huge) end
  for _ = 1, 3 do t.equal(tostring(call(0, -0.0)):gsub("-", ""), "nan") end
  t.equal(graph.recordings, 3)
  local only = lockstep.graph(function(x, zero) return x / zero end)
  only(torch.ones { 1 }, 0)
  t.raises("argument 2 is -0, but was 0", function() only(torch.ones { 1 }, -0.0) end)
end)

t.test("NanIsOneNumber", function()
  local graph = lockstep.graph(function(x, nan, list) return x * nan * list[1] end, { warmup = 1 })
  for _ = 1, 4 do t.equal(tostring(graph(torch.ones { 1 }, 0 / 0, { -(0 / 0) }):item()):gsub("-", ""), "nan") end
  t.equal(graph.hits, 2)
end)

t.test("AnInputWhoseGradientWouldBeLostIsRefusedFromTheFirstCallOn", function()
  local x = torch.ones({ 2 }, { requires_grad = true })
  local graph = lockstep.graph(function(_, y) (y * 2):sum():backward() end)

  for _, input_with_history in ipairs { x, x * 2 } do
    t.raises("argument 2 requires a gradient, which would be lost", function() graph(1, input_with_history) end)
  end

  local total = lockstep.graph(function(y) return (y * 2):sum() end)
  for _ = 1, 5 do t.equal(total(x:detach()):item(), 4) end
end)

t.test("AGradientOfATensorThatTheFunctionItselfUsesIsComputed", function()
  local x = torch.ones({ 2 }, { requires_grad = true })
  local graph = lockstep.graph(function(factor)
    x.grad = nil
    (x * factor):sum():backward()
  end)

  for i = 1, 6 do
    graph(torch.tensor(i))
    t.equal(x.grad:totable(), { i, i })
  end
end)

t.test("AModeAroundTheCallIsPartOfTheGraph", function()
  local w = torch.ones({ 2 }, { requires_grad = true })
  local function step(x)
    local y = w * x
    return torch.is_grad_enabled() and y * 1 or y * 2, torch.zeros { 1 }
  end
  local graph = lockstep.graph(step, { warmup = 1, buckets = 4 })
  local default = torch.get_default_dtype()
  local modes = {
    { "gradients", function(fn, ...) return fn(...) end },
    { "no_grad", torch.no_grad },
    { "float64", function(fn, ...)
      torch.set_default_dtype(torch.float64)
      local y, zero = fn(...)
      torch.set_default_dtype(default)
      return y, zero
    end },
  }

  for i = 1, 4 do
    for _, mode in ipairs(modes) do
      local y, zero = mode[2](graph, torch.full({ 2 }, i, { dtype = torch.float32 }))
      local expected, expected_zero = mode[2](step, torch.full({ 2 }, i, { dtype = torch.float32 }))
      t.equal(y, expected:detach(), mode[1])
      t.equal(zero.dtype, expected_zero.dtype, mode[1])
    end
  end

  t.equal({ graph.recordings, graph.hits }, { 3, 6 })
  local only = lockstep.graph(step, { warmup = 1 })
  only(torch.ones { 2 })
  t.raises("called with no gradients, Float, but with gradients, Float when the graph was made", function()
    torch.no_grad(only, torch.ones { 2 })
  end)
end)

t.test("AutocastAroundTheCallIsRefusedAndInsideItIsFine", function()
  local graph = lockstep.graph(function(x) return x:matmul(x) end, { warmup = 1 })
  t.raises("call torch.autocast inside of the graph's function", function()
    torch.autocast({ dtype = torch.bfloat16, device = "cpu" }, graph, torch.ones { 2, 2 })
  end)

  local inside = lockstep.graph(function(x)
    return torch.autocast({ dtype = torch.bfloat16, device = "cpu" }, torch.matmul, x, x)
  end, { warmup = 1 })
  for _ = 1, 3 do t.equal(inside(torch.ones { 2, 2 }).dtype, torch.bfloat16) end
end)

t.test("AnotherShapeOfACapturedTensorIsRecordedAnew", function()
  for name, change in pairs {
    transposed = function(buffer) buffer:t_() end,
    smaller = function(buffer) buffer:resize_({ 1, 3 }) end,
  } do
    local function make()
      local buffer = torch.arange(9):float():view(3, 3)
      return buffer, function(x) return (x * buffer):sum(0) end
    end
    local plain_buffer, plain = make()
    local buffer, fn = make()
    local graph = lockstep.graph(fn, { warmup = 1 })

    for i = 1, 8 do
      if i == 5 then
        change(plain_buffer)
        change(buffer)
      end
      t.equal(graph(torch.tensor { i, 2, 3 }), plain(torch.tensor { i, 2, 3 }), name .. ", step " .. i)
    end

    t.equal({ graph.recordings, graph.hits }, { 2, 4 }, name)
  end
end)

t.test("AnErrorThatTheFunctionCatchesIsRefusedAllTheSame", function()
  local w = torch.ones({ 2 }, { requires_grad = true })
  local sgd_of_w = optim.SGD({ w }, { lr = 0.1 })
  w.grad = torch.ones { 2 }
  sgd_of_w:step()
  for name, case in pairs {
    item = { function(x) return x:sum():item() end, "graph_changes_test.lua:" },
    ["an operator"] = { function(x) return x:index_select(0, torch.full({ 1 }, 7, { dtype = torch.int64 })) end,
      "the function caught an operator's error" },
    equal = { function(x) return x:equal(x) end, "equal at driver/lualib/lockstep/graph/graph_changes_test.lua:" },
    factor = { function() sgd_of_w:step(0.5) end, "the factor is a number" },
    graph = { lockstep.graph(function(x) return x end), "a graph cannot be called while another is recorded" },
  } do
    local graph = lockstep.graph(function(x) return pcall(case[1], x) and x * 2 or x * 3 end, { warmup = 1 })
    graph(torch.ones { 2 })

    for _ = 1, 2 do
      t.raises(case[2], function() graph(torch.ones { 2 }) end)
    end
    t.equal(graph.recordings, 0, name)
  end
  t.equal(torch.ones({}):item(), 1) -- the rule ends with the recording
end)

t.test("AnOperatorWhoseValuesWouldBeConstantsIsRefused", function()
  local function integers(...) return torch.tensor({ ... }, { dtype = torch.int64 }) end
  local function cell(gates)
    return { torch.ones { gates, 3 }, torch.ones { gates, 4 }, torch.ones { gates }, torch.ones { gates } }
  end
  local h = torch.zeros { 1, 3, 4 }
  local sequence, probabilities, one = torch.ones { 6, 3 }, torch.ones { 4, 1, 3 }, integers(1)
  for name, case in pairs {
    tensor_split = { function(n) return torch.tensor_split(sequence, n, 0)[1] end, integers(2) },
    _pad_packed_sequence = { function(n) return (torch._pad_packed_sequence(sequence, n, true, 0, 3)) end,
      integers(3, 2, 1) },
    _pack_padded_sequence = { function(n) return (torch._pack_padded_sequence(torch.ones { 2, 3, 2 }, n, true)) end,
      integers(3, 2) },
    gru = { function(n) return (torch.gru(sequence, n, h, cell(12), true, 1, 0, false, false)) end,
      integers(3, 2, 1) },
    lstm = { function(n) return (torch.lstm(sequence, n, { h, h }, cell(16), true, 1, 0, false, false)) end,
      integers(3, 2, 1) },
    rnn_tanh = { function(n) return (torch.rnn_tanh(sequence, n, h, cell(4), true, 1, 0, false, false)) end,
      integers(3, 2, 1) },
    rnn_relu = { function(n) return (torch.rnn_relu(sequence, n, h, cell(4), true, 1, 0, false, false)) end,
      integers(3, 2, 1) },
    ctc_loss = { function(n) return torch.ctc_loss(probabilities, one, n, one) end, integers(4) },
    repeat_interleave = { function(n) return torch.repeat_interleave(n) end, integers(1, 2) },
  } do
    local graph = lockstep.graph(case[1], { warmup = 1 })
    graph(case[2])

    local ok, err = pcall(graph, case[2])

    t.equal(ok, false, name)
    t.truthy(tostring(err):find(name, 1, true) and tostring(err):find("graph_changes_test.lua:", 1, true),
      name .. ": " .. tostring(err))
  end
end)

t.test("AnOverloadThatReadsNoValuesIsRecorded", function()
  local graph = lockstep.graph(function(x) return torch.tensor_split(x, 2, 0)[2] * 1 end, { warmup = 1 })
  for i = 1, 4 do t.equal(graph(torch.tensor { 1, 2, i, 4 }):totable(), { i, 4 }) end
  t.equal(graph.hits, 2)
end)

t.test("AGradientThatAScriptKeepsIsOverwrittenAndACopyIsNot", function()
  local model = nn.Linear(4, 3)
  local graph = lockstep.graph(function(x)
    model:zero_grad()
    local loss = model(x):pow(2):mean()
    loss:backward()
    return loss
  end, { warmup = 1 })
  for i = 1, 3 do graph(input(i)) end
  local kept, copy = model.weight.grad, model.weight.grad:clone()

  graph(input(4))

  t.equal(graph.hits, 2)
  t.equal(kept, model.weight.grad)
  t.truthy(torch.sub(copy, kept):abs():max():item() > 1e-3)
end)
