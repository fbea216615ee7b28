-- Recurrent layers against PyTorch's, in random cases: tests/torch/make_sequence_numbers.py writes the numbers.

local core = require "lockstep.core"
local data = require "lockstep.data"
local nn = require "lockstep.nn"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local numbers, metadata = data.safetensors("tests/torch/sequence_numbers.safetensors")
local cases = core.json_decode(metadata.cases).recurrent

local function weighted(x)
  return (x * torch.arange(x:numel(), { dtype = x.dtype }):reshape(x.shape):cos()):sum()
end

--- Runs a case. Returns the layer, its inputs and its outputs.
local function run(case)
  torch.manual_seed(case.seed)
  local layer = nn[case.kind](case.input_size, case.hidden_size, case.options):train(case.train)
  local inputs = { torch.randn(case.x):requires_grad_(true) }
  torch.manual_seed(1000 + case.seed)
  for i, size in ipairs(case.state and case.states or {}) do inputs[i + 1] = torch.randn(size):requires_grad_(true) end
  local state = case.state and (case.kind == "LSTM" and { inputs[2], inputs[3] } or inputs[2]) or nil
  torch.manual_seed(2000 + case.seed)
  local y, last
  if case.lengths then
    local batch_first = case.options.batch_first
    local packed = nn.pack_padded_sequence(inputs[1], case.lengths,
      { batch_first = batch_first, enforce_sorted = case.enforce_sorted })
    local lengths
    y, last = layer(packed, state)
    y, lengths = nn.pad_packed_sequence(y, { batch_first = batch_first, padding_value = 0.5 })
    t.equal(lengths:totable(), case.lengths)
  else
    y, last = layer(inputs[1], state)
  end
  return layer, inputs, { y, unpack(case.kind == "LSTM" and last or { last }) }
end

t.test("FirstValuesResultsAndGradientsAreThoseOfPyTorch", function()
  t.equal(#cases, 40)
  for _, case in ipairs(cases) do
    local text = core.json_encode(case)
    local function number(key) return numbers[("recurrent.%d.%s"):format(case.seed, key)] end
    local layer, inputs, outputs = run(case)
    local sum = 0
    for _, y in ipairs(outputs) do sum = sum + weighted(y) end
    sum:backward()

    for i, y in ipairs(outputs) do t.near(y:detach(), number("y" .. i - 1), 1e-5, text) end
    for i, x in ipairs(inputs) do t.near(x.grad, number(("x%d_grad"):format(i - 1)), 1e-4, text) end
    local names = 0
    for key, p in layer:named_parameters() do
      t.near(torch.stack { weighted(p:detach()), weighted(p.grad) }, number(key), 2e-4, text .. key)
      names = names + 1
    end
    for key in pairs(numbers) do
      if key:find(("^recurrent%%.%d%%.%%a+_%%a+_l"):format(case.seed)) then names = names - 1 end
    end
    t.equal(names, 0, text)
  end
end)

t.test("AStateGoesOnWhereItEnded", function()
  for _, kind in ipairs { "LSTM", "GRU", "RNN" } do
    torch.manual_seed(1)
    local layer = nn[kind](3, 4, { num_layers = 2 })
    local x = torch.randn { 6, 2, 3 }
    local whole, last = layer(x)
    local first, state = layer(x:narrow(0, 0, 2))
    local rest, end_state = layer(x:narrow(0, 2, 4), state)

    t.near(torch.cat { first, rest }, whole, 1e-6, kind)
    local at_end, expected = kind == "LSTM" and end_state[2] or end_state, kind == "LSTM" and last[2] or last
    t.near(at_end, expected, 1e-6, kind)
  end
end)

t.test("PackedSequencesDoNotSeeTheirPadding", function()
  torch.manual_seed(2)
  local layer = nn.GRU(3, 4, { bidirectional = true, batch_first = true })
  local x, lengths = torch.randn { 3, 5, 3 }, { 2, 5, 3 }
  local packed = nn.pack_padded_sequence(x, torch.tensor(lengths, { dtype = torch.int64 }),
    { batch_first = true, enforce_sorted = false })
  local y, h = layer(packed)
  local padded = nn.pad_packed_sequence(y, { batch_first = true, total_length = 7 })

  t.equal(padded.shape, { 3, 7, 8 })
  for i, length in ipairs(lengths) do
    local alone, h_alone = layer(x[i - 1]:narrow(0, 0, length))
    t.near(padded[i - 1]:narrow(0, 0, length), alone, 1e-6)
    t.near(h:select(1, i - 1), h_alone, 1e-6)
  end
  -- Without packing the backward direction begins in the padding.
  t.truthy((layer(x)[0]:narrow(0, 0, 2) - padded[0]:narrow(0, 0, 2)):abs():max():item() > 1e-3)
end)

t.test("AStateOfPyTorchLoads", function()
  local names = {}
  local lstm = nn.LSTM(2, 4, { num_layers = 2, bidirectional = true, proj_size = 3 })
  for name, p in lstm:named_parameters() do names[#names + 1] = name .. " " .. tostring(p.shape) end
  t.equal(table.concat(names, "; ", 1, 10), "weight_ih_l0 {16, 2}; weight_hh_l0 {16, 3}; bias_ih_l0 {16}; "
    .. "bias_hh_l0 {16}; weight_hr_l0 {3, 4}; weight_ih_l0_reverse {16, 2}; weight_hh_l0_reverse {16, 3}; "
    .. "bias_ih_l0_reverse {16}; bias_hh_l0_reverse {16}; weight_hr_l0_reverse {3, 4}")
  t.equal(lstm.weight_ih_l1.shape, { 16, 6 })
  local other = nn.LSTM(2, 4, { num_layers = 2, bidirectional = true, proj_size = 3 })
  other:load_state_dict(lstm:state_dict())
  local x = torch.randn { 3, 1, 2 }
  t.equal((other(x)), (lstm(x)))
end)

t.test("MistakesAreErrors", function()
  local lstm, gru = nn.LSTM(3, 4), nn.GRU(3, 4, { batch_first = true })
  local x = torch.zeros { 5, 2, 3 }
  local h = torch.zeros { 1, 2, 4 }
  for _, case in ipairs {
    { "nn.LSTM: input_size must be a whole number of at least 1, not 0", function() nn.LSTM(0, 4) end },
    { "nn.GRU: num_layers must be a whole number of at least 1, not 0",
      function() nn.GRU(3, 4, { num_layers = 0 }) end },
    { "nn.GRU: dropout must be a number from 0 to 1, not 2", function() nn.GRU(3, 4, { dropout = 2 }) end },
    { 'nn.GRU: unknown option "proj_size"', function() nn.GRU(3, 4, { proj_size = 2 }) end },
    { "nn.LSTM: proj_size must be a whole number below hidden_size, 4, not 4",
      function() nn.LSTM(3, 4, { proj_size = 4 }) end },
    { 'nn.RNN: nonlinearity must be "tanh" or "relu", not "gelu"',
      function() nn.RNN(3, 4, { nonlinearity = "gelu" }) end },
    { "nn.LSTM: the input must be [time, batch, 3] or [time, 3], got {5, 2, 4}",
      function() lstm(torch.zeros { 5, 2, 4 }) end },
    { "nn.GRU: the input must be [batch, time, 3] or [time, 3], got {3}", function() gru(torch.zeros { 3 }) end },
    { "nn.LSTM: the input must be a tensor, or a result of nn.pack_padded_sequence, not a table",
      function() lstm { x } end },
    { "nn.LSTM: the state must be { h, c }, not a tensor", function() lstm(x, h) end },
    { "nn.LSTM: the state's c must be {1, 2, 4}, [layers * directions, batch, size], got {1, 2, 3}",
      function() lstm(x, { h, torch.zeros { 1, 2, 3 } }) end },
    { "nn.GRU: the state's h must be {1, 5, 4}", function() gru(x, h) end },
    { "nn.GRU: the state must hold tensors, not a table", function() gru(x, { h }) end },
    { "nn.pack_padded_sequence: 3 lengths for 2 sequences", function() nn.pack_padded_sequence(x, { 1, 1, 1 }) end },
    { "nn.pack_padded_sequence: lengths must be from 1 to 5, the time of x, got 6",
      function() nn.pack_padded_sequence(x, { 6, 1 }) end },
    { "nn.pack_padded_sequence: lengths must be from 1 to 5, the time of x, got 0",
      function() nn.pack_padded_sequence(x, { 1, 0 }) end },
    { "a sequence of 4 tokens follows one of 3; sort them, longest first, or use enforce_sorted = false",
      function() nn.pack_padded_sequence(x, { 3, 4 }) end },
    { "nn.pad_packed_sequence: total_length 2 is less than the longest sequence, 5",
      function() nn.pad_packed_sequence(nn.pack_padded_sequence(x, { 5, 4 }), { total_length = 2 }) end },
    { "nn.pad_packed_sequence: expected the result of nn.pack_padded_sequence, not a tensor",
      function() nn.pad_packed_sequence(x) end },
  } do
    t.raises(case[1], case[2])
  end
end)

t.test("DropoutOfASingleLayerIsALineNotAnError", function()
  local _, heard = t.listening(nn.LSTM, 3, 4, { dropout = 0.1 })
  t.equal(heard, "lockstep: nn.LSTM: dropout has no effect with num_layers = 1: it acts between layers\n")
end)
