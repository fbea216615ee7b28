--- Recurrent layers, and sequences of several lengths for them. Parameters, their names and first values, options and
--- results are PyTorch's.
---
---     local lstm = nn.LSTM(8, 16, { num_layers = 2, batch_first = true })
---     local y, state = lstm(torch.randn { 4, 10, 8 })      -- y [4, 10, 16], state { h, c }, each [2, 4, 16]
---     y, state = lstm(torch.randn { 4, 1, 8 }, state)      -- goes on

local make = require "lockstep.nn.parameter"
local nn = require "lockstep.nn"
local options = require "lockstep.options"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

---@class nn.recurrent
local M = {}

---@class nn.RecurrentOptions
---@field num_layers integer? default 1
---@field bias boolean? default true
---@field batch_first boolean? default false; true: inputs and outputs are [batch, time, ...]. States keep their layout
---@field dropout number? default 0; probability of a zero in the output of each layer but the last, while training
---@field bidirectional boolean? default false; true: a second row of layers reads from the end
---@field proj_size integer? of nn.LSTM; default 0; greater: h and the outputs are projected to this size
---@field nonlinearity ("tanh"|"relu")? of nn.RNN; default "tanh"

-- Sequences of several lengths ----------------------------------------------------------------------------

--- Sequences without padding, as recurrent layers take them: the first tokens of all, then the second ones, and so on.
---@class nn.PackedSequence
---@field data torch.Tensor [tokens, ...]
---@field batch_sizes torch.Tensor int64; how many sequences have a first token, a second one, ...
---@field sorted_indices torch.Tensor? the place in the batch of each sequence, longest first
---@field unsorted_indices torch.Tensor? its inverse
local Packed = {}
Packed.__index = Packed

local function kind_of(x) return torch.is_tensor(x) and "tensor" or type(x) end

local function is_packed(x) return type(x) == "table" and getmetatable(x) == Packed end

local function packed_like(packed, data)
  return setmetatable({ data = data, batch_sizes = packed.batch_sizes, sorted_indices = packed.sorted_indices,
    unsorted_indices = packed.unsorted_indices }, Packed)
end

--- Packs padded sequences for a recurrent layer, which then computes nothing for the padding.
---
---     local packed = nn.pack_padded_sequence(x, { 7, 5, 2 }, { batch_first = true })
---     local y, lengths = nn.pad_packed_sequence((lstm(packed)), { batch_first = true })
---
--- `enforce_sorted`: an error unless the longest sequence comes first; default true. With false any order will do.
---@param x torch.Tensor [time, batch, ...], or [batch, time, ...] with batch_first
---@param lengths integer[]|torch.Tensor the tokens of each sequence
---@param opts {batch_first: boolean?, enforce_sorted: boolean?}?
---@return nn.PackedSequence
function M.pack_padded_sequence(x, lengths, opts)
  local o = options.read("nn.pack_padded_sequence", opts, { batch_first = false, enforce_sorted = true })
  plain.check(torch.is_tensor(x), "nn.pack_padded_sequence: x must be a tensor, not a %s", type(x))
  if type(lengths) == "table" then lengths = torch.tensor(lengths, { dtype = torch.int64 }) end
  plain.check(torch.is_tensor(lengths) and lengths:dim() == 1 and lengths.dtype == torch.int64,
    "nn.pack_padded_sequence: lengths must be an array of whole numbers, or a tensor of int64")
  local batch, time = x:size(o.batch_first and 0 or 1), x:size(o.batch_first and 1 or 0)
  plain.check(lengths:numel() == batch, "nn.pack_padded_sequence: %d lengths for %d sequences", lengths:numel(), batch)
  lengths = lengths:cpu()
  for i = 0, batch - 1 do
    local length, before = lengths[i]:item(), i > 0 and lengths[i - 1]:item() or math.huge
    plain.check(length >= 1 and length <= time,
      "nn.pack_padded_sequence: lengths must be from 1 to %d, the time of x, got %d", time, length)
    plain.check(not o.enforce_sorted or length <= before, "nn.pack_padded_sequence: a sequence of %d tokens follows "
      .. "one of %d; sort them, longest first, or use enforce_sorted = false", length, before)
  end
  local sorted, unsorted
  if not o.enforce_sorted then
    lengths, sorted = lengths:sort({ descending = true, stable = true, dim = 0 })
    unsorted = sorted:argsort():to(x.device)
    sorted = sorted:to(x.device)
    x = x:index_select(o.batch_first and 0 or 1, sorted)
  end
  local data, batch_sizes = torch._pack_padded_sequence(x, lengths, o.batch_first)
  return setmetatable({ data = data, batch_sizes = batch_sizes, sorted_indices = sorted, unsorted_indices = unsorted },
    Packed)
end

--- Returns packed sequences with padding, in the order that they had before packing, and their lengths.
---
--- `padding_value`: default 0. `total_length`: the time of the result; default: that of the longest sequence.
---@param packed nn.PackedSequence
---@param opts {batch_first: boolean?, padding_value: number?, total_length: integer?}?
---@return torch.Tensor # [time, batch, ...], or [batch, time, ...] with batch_first
---@return torch.Tensor # the lengths, int64
function M.pad_packed_sequence(packed, opts)
  local o = options.read("nn.pad_packed_sequence", opts, { batch_first = false, padding_value = 0,
    total_length = options.optional })
  plain.check(is_packed(packed), "nn.pad_packed_sequence: expected the result of nn.pack_padded_sequence, not a %s",
    kind_of(packed))
  local longest = packed.batch_sizes:size(0)
  plain.check(o.total_length == nil or o.total_length >= longest,
    "nn.pad_packed_sequence: total_length %s is less than the longest sequence, %d", tostring(o.total_length), longest)
  local x, lengths = torch._pad_packed_sequence(packed.data, packed.batch_sizes, o.batch_first, o.padding_value,
    o.total_length or longest)
  if packed.unsorted_indices then
    x = x:index_select(o.batch_first and 0 or 1, packed.unsorted_indices)
    lengths = lengths:index_select(0, packed.unsorted_indices:cpu())
  end
  return x, lengths
end

-- Layers --------------------------------------------------------------------------------------------------

local function read_options(class, hidden_size, opts, more)
  local known = { num_layers = 1, bias = true, batch_first = false, dropout = 0, bidirectional = false }
  local o = options.read("nn." .. class, opts, plain.copy(known, more))
  make.positive(class, "num_layers", o.num_layers)
  plain.check(o.dropout >= 0 and o.dropout <= 1,
    "nn.%s: dropout must be a number from 0 to 1, not %s", class, o.dropout)
  if o.dropout > 0 and o.num_layers == 1 then
    options.note_unused("nn." .. class, opts, { "dropout" }, "with num_layers = 1: it acts between layers")
  end
  o.proj_size = o.proj_size or 0
  plain.check(plain.is_whole(o.proj_size, 0) and o.proj_size < hidden_size,
    "nn.%s: proj_size must be a whole number below hidden_size, %d, not %s", class, hidden_size, o.proj_size)
  return o
end

--- Makes the class of a recurrent layer: `gates` times hidden_size rows in its weights, `num_states` tensors in its
--- state, and options of its own.
local function recurrent(class, gates, num_states, more, operator_of)
  local Layer = nn.Module:subclass(class)

  function Layer:init(input_size, hidden_size, opts)
    make.positive(class, "input_size", input_size)
    make.positive(class, "hidden_size", hidden_size)
    local o = read_options(class, hidden_size, opts, more)
    for key, value in pairs(o) do
      if key ~= "bias" then self[key] = value end
    end
    self.input_size, self.hidden_size, self.has_bias = input_size, hidden_size, o.bias
    self.operator = operator_of(o)
    self.weight_names = {}
    local bound = 1 / math.sqrt(hidden_size)
    local function weight(name, suffix, size)
      table.insert(self.weight_names, name .. suffix)
      self[name .. suffix] = make.new(size, function(t) t:uniform_(-bound, bound) end)
    end
    local out = o.proj_size > 0 and o.proj_size or hidden_size
    local rows = gates * hidden_size
    for layer = 0, o.num_layers - 1 do
      local columns = layer == 0 and input_size or out * (o.bidirectional and 2 or 1)
      for _, direction in ipairs(o.bidirectional and { "", "_reverse" } or { "" }) do
        local suffix = ("_l%d%s"):format(layer, direction)
        weight("weight_ih", suffix, { rows, columns })
        weight("weight_hh", suffix, { rows, out })
        if o.bias then
          weight("bias_ih", suffix, { rows })
          weight("bias_hh", suffix, { rows })
        end
        if o.proj_size > 0 then weight("weight_hr", suffix, { out, hidden_size }) end
      end
    end
  end

  --- Returns the sizes of the tensors in a state: h, and c of an LSTM.
  local function state_sizes(self, batch)
    local rows = self.num_layers * (self.bidirectional and 2 or 1)
    local out = self.proj_size > 0 and self.proj_size or self.hidden_size
    return { { rows, batch, out }, { rows, batch, self.hidden_size } }
  end

  local function check_state(self, state, batch, is_batched)
    local given = num_states == 1 and { state } or state
    plain.check(type(given) == "table" and #given == num_states, "nn.%s: the state must be %s, not a %s", class,
      num_states == 1 and "a tensor, h" or "{ h, c }", kind_of(state))
    for i, size in ipairs(state_sizes(self, batch)) do
      if i > num_states then break end
      local tensor = given[i]
      if not is_batched then table.remove(size, 2) end
      plain.check(torch.is_tensor(tensor), "nn.%s: the state must hold tensors, not a %s", class, type(tensor))
      local expected, shape = "{" .. table.concat(size, ", ") .. "}", tostring(tensor.shape)
      plain.check(shape == expected, "nn.%s: the state's %s must be %s, [layers * directions, batch, size], got %s",
        class, i == 1 and "h" or "c", expected, shape)
    end
    return given
  end

  --- Returns the first state: the one given, in the order of the packed sequences, or zeros.
  local function first_state(self, state, batch, x, order, is_batched)
    local tensors = {}
    if state == nil then
      for i, size in ipairs(state_sizes(self, batch)) do
        if i <= num_states then tensors[i] = torch.zeros(size, { dtype = x.dtype, device = x.device }) end
      end
      return tensors
    end
    for i, tensor in ipairs(check_state(self, state, batch, is_batched)) do
      if not is_batched then tensor = tensor:unsqueeze(1) end
      tensors[i] = order and tensor:index_select(1, order) or tensor
    end
    return tensors
  end

  local function check_input(self, x, dims)
    plain.check(torch.is_tensor(x),
      "nn.%s: the input must be a tensor, or a result of nn.pack_padded_sequence, not a %s", class, type(x))
    local expected = self.batch_first and "[batch, time, %d]" or "[time, batch, %d]"
    plain.check(dims[x:dim()] and x:size(-1) == self.input_size, "nn.%s: the input must be " .. expected
      .. " or [time, %d], got %s", class, self.input_size, self.input_size, tostring(x.shape))
  end

  function Layer:forward(x, state)
    local weights = {}
    for i, name in ipairs(self.weight_names) do weights[i] = self[name] end
    local settings = { self.has_bias, self.num_layers, self.dropout, self.training, self.bidirectional }
    local packed = is_packed(x) and x or nil
    local results, is_batched
    if packed then
      check_input(self, packed.data, { [2] = true })
      is_batched = true
      local batch = packed.batch_sizes[0]:item()
      local first = first_state(self, state, batch, packed.data, packed.sorted_indices, true)
      results = { self.operator(packed.data, packed.batch_sizes, num_states == 1 and first[1] or first, weights,
        unpack(settings)) }
      results[1] = packed_like(packed, results[1])
    else
      check_input(self, x, { [2] = true, [3] = true })
      is_batched = x:dim() == 3
      local batch_dim = self.batch_first and 0 or 1
      if not is_batched then x = x:unsqueeze(batch_dim) end
      local first = first_state(self, state, x:size(batch_dim), x, nil, is_batched)
      settings[6] = self.batch_first
      results = { self.operator(x, num_states == 1 and first[1] or first, weights, unpack(settings)) }
      if not is_batched then results[1] = results[1]:squeeze(batch_dim) end
    end
    for i = 2, 1 + num_states do
      if packed and packed.unsorted_indices then results[i] = results[i]:index_select(1, packed.unsorted_indices) end
      if not is_batched then results[i] = results[i]:squeeze(1) end
    end
    if num_states == 1 then return results[1], results[2] end
    return results[1], { results[2], results[3] }
  end

  return Layer
end

--- Long short-term memory. Called with x, [time, batch, input_size] or [time, input_size], and a state { h, c }, zeros
--- by default; returns y, [time, batch, hidden_size], and the state after the last token. h is [layers * directions,
--- batch, proj_size or hidden_size], c [layers * directions, batch, hidden_size]. x may be a result of
--- nn.pack_padded_sequence, and then y is packed too. weight_ih_l0, with the gates i, f, g, o: [4 * hidden_size,
--- input_size]; weight_hh_l0, bias_ih_l0, bias_hh_l0, weight_hr_l0; "_reverse" follows the layer's number backwards.
---@type fun(input_size: integer, hidden_size: integer, opts: nn.RecurrentOptions?): nn.Module
M.LSTM = recurrent("LSTM", 4, 2, { proj_size = 0 }, function() return torch.lstm end)

--- Gated recurrent unit, with the gates r, z, n. Like nn.LSTM, but its state is a tensor: y, h = gru(x, h).
---@type fun(input_size: integer, hidden_size: integer, opts: nn.RecurrentOptions?): nn.Module
M.GRU = recurrent("GRU", 3, 1, {}, function() return torch.gru end)

--- Recurrent layer without gates: h = tanh(W_ih x + b_ih + W_hh h + b_hh). y, h = rnn(x, h).
---@type fun(input_size: integer, hidden_size: integer, opts: nn.RecurrentOptions?): nn.Module
M.RNN = recurrent("RNN", 1, 1, { nonlinearity = "tanh" }, function(o)
  plain.check(o.nonlinearity == "tanh" or o.nonlinearity == "relu",
    'nn.RNN: nonlinearity must be "tanh" or "relu", not "%s"', o.nonlinearity)
  return o.nonlinearity == "tanh" and torch.rnn_tanh or torch.rnn_relu
end)

return M
