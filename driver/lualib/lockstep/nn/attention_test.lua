-- nn.attention against its formula written out with a mask, for values and gradients.

local checkpoint = require "lockstep.checkpoint"
local nn = require "lockstep.nn"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local function sequence_of(seq_lens)
  local owners = {}
  for i, length in ipairs(seq_lens) do
    for _ = 1, length do owners[#owners + 1] = i end
  end
  return owners
end

--- Whether token i sees token j.
local function sees(owners, i, j, o)
  if owners[i] ~= owners[j] then return false end
  if o.causal ~= false and j > i then return false end
  return not o.window or math.abs(i - j) < o.window
end

local function oracle(q, k, v, o)
  local tokens, group = q:size(0), q:size(1) / k:size(1)
  local owners, mask = sequence_of(o.seq_lens or { tokens }), {}
  for i = 1, tokens do
    mask[i] = {}
    for j = 1, tokens do mask[i][j] = sees(owners, i, j, o) and 0 or -math.huge end
  end
  k, v = k:repeat_interleave(group, 1):transpose(0, 1), v:repeat_interleave(group, 1):transpose(0, 1)
  local scores = torch.matmul(q:transpose(0, 1), k:transpose(1, 2)) * (o.scale or q:size(2) ^ -0.5)
  local shares = (scores + torch.tensor(mask, { dtype = q.dtype })):softmax(-1)
  return torch.matmul(shares, v):transpose(0, 1)
end

local function inputs(tokens, heads, kv_heads, dim)
  torch.manual_seed(tokens)
  local function random(n) return torch.randn({ tokens, n, dim }):requires_grad_(true) end
  return random(heads), random(kv_heads), random(kv_heads)
end

local CASES = {
  OneSequence = { 7, 4, 4, 6, {} },
  SequencesSeeThemselvesAlone = { 12, 4, 4, 6, { seq_lens = { 5, 1, 6 } } },
  QueryHeadsShareKeyHeads = { 12, 6, 2, 4, { seq_lens = { 5, 7 } } },
  AllQueryHeadsShareOneKeyHead = { 9, 5, 1, 8, { seq_lens = { 4, 5 } } },
  WithoutCausalMask = { 12, 6, 3, 4, { seq_lens = { 5, 7 }, causal = false } },
  AWindowEndsAtTheToken = { 14, 6, 3, 4, { seq_lens = { 3, 11 }, window = 4 } },
  AWindowOfOneIsTheTokenAlone = { 6, 2, 1, 4, { window = 1 } },
  AWindowWithoutCausalMask = { 14, 6, 3, 4, { seq_lens = { 3, 11 }, window = 3, causal = false } },
  AScale = { 9, 4, 2, 6, { seq_lens = { 4, 5 }, scale = 0.3 } },
  OneToken = { 1, 4, 2, 6, {} },
}

for name, case in pairs(CASES) do
  t.test(name, function()
    local q, k, v = inputs(case[1], case[2], case[3], case[4])
    local weights = torch.randn({ case[1], case[2], case[4] })

    local y, expected = nn.attention(q, k, v, case[5]), oracle(q, k, v, case[5])

    t.near(y, expected, 1e-5)
    local gradients = torch.grad({ (y * weights):sum() }, { q, k, v })
    for i, gradient in ipairs(torch.grad({ (expected * weights):sum() }, { q, k, v })) do
      t.near(gradients[i], gradient, 1e-5, "gradient " .. i)
    end
  end)
end

--- Returns the result of a case, and the gradients of q, k and v.
local function with_gradients(case, dtype, around)
  local q, k, v = inputs(case[1], case[2], case[3], case[4])
  local function attend(a, b, c) return nn.attention(a, b, c, case[5]) end
  if around then attend = around(attend) end
  local function call(a, b, c) return attend(a:to(dtype), b:to(dtype), c:to(dtype)) end
  local y = call(q, k, v)
  local results = torch.grad({ (y:float() * torch.arange(y:numel()):view(y.shape):sin()):sum() }, { q, k, v })
  table.insert(results, y:detach())
  return results
end

local ROUNDING = { -- of each dtype, and whether our kernel computes in it
  { torch.float32, 2 ^ -23, true }, { torch.float64, 2 ^ -23, true }, -- the inputs are float32
  { torch.bfloat16, 2 ^ -7, false }, { torch.float16, 2 ^ -10, false },
}

-- Without a mask, float32 and float64 are our kernel's on both sides, and have the same bits. Otherwise ATen's kernel
-- gets other strides, and the last bit of MKL's products may depend on them: on AMD's processors it does.
t.test("OneOperatorHasTheNumbersOfTheLoop", function()
  for name, case in pairs(CASES) do
    for _, row in ipairs(ROUNDING) do
      local dtype, rounding, is_ours = row[1], row[2], row[3]
      local ours = with_gradients(case, dtype)
      local before = nn.use_fused(false)
      torch.ops.lockstep.replace_flash_attention(true)  -- the loop calls the kernel of the operator
      local expected = with_gradients(case, dtype)
      nn.use_fused(before)

      for i, result in ipairs(ours) do
        local tolerance = 4 * rounding * expected[i]:abs():max():item()
        t.near(result, expected[i], is_ours and not case[5].window and 0 or tolerance, name)
      end
    end
  end
end)

t.test("ARegionComputesTheSameAgain", function()
  local case = CASES.QueryHeadsShareKeyHeads
  local plain = with_gradients(case, torch.float32)
  for _, opts in ipairs { {}, { policy = checkpoint.selective { save = { "lockstep::packed_attention" } } } } do
    local region = checkpoint.new(opts)
    local again = with_gradients(case, torch.float32, function(attend)
      return function(q, k, v) return region(attend, q, k, v) end
    end)

    for i, result in ipairs(again) do t.equal(result, plain[i]) end
  end
end)

t.test("AutocastComputesInBfloat16BothWays", function()
  local case = CASES.QueryHeadsShareKeyHeads
  local function cast() return torch.autocast({ dtype = torch.bfloat16 }, with_gradients, case, torch.float32) end

  local ours = cast()
  local before = nn.use_fused(false)
  local expected = cast()
  nn.use_fused(before)

  t.equal(ours[4].dtype, torch.bfloat16)
  for i, result in ipairs(ours) do t.equal(result, expected[i]) end
end)

t.test("ValuesMayBeSmallerThanKeys", function()
  local q, k, v = inputs(9, 4, 2, 6)
  local function smaller(x) return x:narrow(2, 0, 4) end
  for _, o in ipairs { { seq_lens = { 4, 5 } }, { seq_lens = { 4, 5 }, window = 3 } } do
    local y = nn.attention(q, k, smaller(v), o)

    t.near(y, oracle(q, k, smaller(v), o), 1e-6)
    t.equal(y.shape, { 9, 4, 4 })
  end
  local blocks = torch.full({ 9 }, -1, { dtype = torch.int64 })
  t.near(nn.attention(q, k, smaller(v), { blocks = blocks }), oracle(q, k, smaller(v), {}), 1e-6)
  local low = torch.full({ 4 }, -math.huge) -- sinks without a share
  t.near(nn.attention(q, k, smaller(v), { sinks = low }), oracle(q, k, smaller(v), {}), 1e-6)
end)

t.test("OnMetaItHasShapes", function()
  local q = torch.randn({ 5, 4, 8 }, { device = "meta" })
  local k = torch.randn({ 5, 2, 8 }, { device = "meta" })

  t.equal(nn.attention(q, k, k, { seq_lens = { 2, 3 } }).shape, { 5, 4, 8 })
end)

t.test("BadInputIsNamed", function()
  local q, k, v = inputs(6, 4, 2, 8)
  local function fails(message, ...) t.raises("nn.attention: " .. message, nn.attention, ...) end

  fails("k must be a tensor, got a nil", q, nil, v)
  fails("q must be [tokens, heads, head_dim], got shape {6, 8}", q:select(1, 0), k, v)
  fails("k and v must have the same tokens and heads, and v no larger heads, got {6, 2, 8} and {5, 2, 8}", q, k,
    v:narrow(0, 0, 5))
  fails("k and v must have the same tokens and heads, and v no larger heads, got {6, 2, 6} and {6, 2, 8}",
    q:narrow(2, 0, 6), k:narrow(2, 0, 6), v)
  fails("q and k must have the same tokens and head_dim, got {5, 4, 8} and {6, 2, 8}", q:narrow(0, 0, 5), k, v)
  fails("3 query heads are not a multiple of 2 key heads", q:narrow(1, 0, 3), k, v)
  fails("seq_lens add up to 5 tokens, but q has 6", q, k, v, { seq_lens = { 2, 3 } })
  fails("seq_lens[2] must be a whole number of at least 1, got 0", q, k, v, { seq_lens = { 6, 0 } })
  fails("seq_lens must be an array of lengths, got a number", q, k, v, { seq_lens = 6 })
  fails("window must be a whole number of at least 1, got 0", q, k, v, { window = 0 })
  fails("unknown option \"windows\"; did you mean \"window\"?", q, k, v, { windows = 2 })
end)

-- A GPU --------------------------------------------------------------------------------------------------

t.test("ATableChoosesTheKernelOfAGpu", function()
  local function backend(capability, dtype, dim, o)
    local x = torch.zeros({ 256, 2, dim }, { dtype = dtype })
    o = o or {}
    return torch.ops.lockstep.attention_backend(capability, x, x, x, o.seq_lens or { 256 },
      { causal = true, window = o.window, sinks = o.sinks })
  end

  t.equal(backend(90, torch.bfloat16, 128), "cudnn")
  t.equal(backend(90, torch.bfloat16, 128, { seq_lens = { 128, 128 } }), "cudnn")
  t.equal(backend(90, torch.bfloat16, 128, { seq_lens = { 100, 156 } }), "flash")
  t.equal(backend(90, torch.bfloat16, 256), "flash")
  t.equal(backend(90, torch.bfloat16, 64, { window = 128, sinks = true }), "flash")
  t.equal(backend(90, torch.bfloat16, 64, { window = 256 }), "cudnn", "it hides nothing")
  t.equal(backend(80, torch.float16, 128), "flash")
  t.equal(backend(75, torch.float16, 128), "efficient")
  t.equal(backend(75, torch.bfloat16, 128), "math")
  t.equal(backend(90, torch.float64, 128), "math")
end)

t.test("ACpuHasNoSuchKernel", function()
  local fused = require "lockstep.nn.fused"
  local x = torch.randn { 4, 2, 8 }

  t.equal(fused.capability_of(x.device), 0)
  t.equal(fused.attention_on_device(x, x, x, { seq_lens = { 4 }, causal = true }, nil, error), nil)
end)

-- libtorch has these kernels for CUDA alone. Its error names the one that was called.
t.test("OnAGpuTheTablesKernelIsCalled", function()
  local fused = require "lockstep.nn.fused"
  local capability_of = fused.capability_of
  local x, sinks = torch.randn({ 256, 2, 64 }):bfloat16(), torch.zeros { 2 }
  fused.capability_of = function() return 90 end

  local ok, message = pcall(function()
    t.raises("'aten::_scaled_dot_product_cudnn_attention'", nn.attention, x, x, x)
    t.raises("'aten::_flash_attention_forward'", nn.attention, x, x, x, { seq_lens = { 100, 156 } })
    t.raises("'aten::_flash_attention_forward'", nn.attention, x, x, x, { sinks = sinks, window = 4 })
    local keys, values = torch.randn({ 256, 2, 192 }):bfloat16(), torch.randn({ 256, 2, 128 }):bfloat16()
    t.raises("'aten::_scaled_dot_product_cudnn_attention'", nn.attention, keys, keys, values)
    -- Values that are filled up: FlashAttention takes one size, and is preferred to memory-efficient attention.
    t.raises("'aten::_flash_attention_forward'", nn.attention, keys, keys, values, { seq_lens = { 100, 156 } })
    t.equal(nn.attention(x:double(), x:double(), x:double()).dtype, torch.float64)
  end)
  fused.capability_of = capability_of

  t.truthy(ok, message)
end)
