--- nn.attention at three lengths, forward and backward, in milliseconds, and each kernel that it may call. Prints the
--- lines that belong to the top of kTable in kernels/attention/backends.cc. peers.attention has PyTorch's times.

local nn = require "lockstep.nn"
local timing = require "timing"
local torch = require "lockstep.torch"

local kernels = torch.ops.lockstep
local MOST_ERROR = 0.02
local capability = 0
if timing.device ~= "cpu" then
  local major, minor = torch.cuda.get_device_capability(0)
  capability = 10 * major + minor
end
local BACKENDS = capability > 0 and { "cudnn", "flash", "efficient" } or { "math" }
local FOR_A_CACHE = capability > 0 and { "flash", "efficient", "math" } or { "math" }

--- Heads of `dim` numbers, in a row of equal or unequal sequences.
local function inputs(tokens, dim, packed)
  torch.manual_seed(1)
  local heads = timing.size(4096, 128) / dim
  local function random(n)
    return torch.randn({ tokens, n, dim }, { device = timing.device, dtype = timing.dtype }):requires_grad_(true)
  end
  local short = math.floor(tokens / 5)
  local x = { q = random(heads), k = random(heads / 4), v = random(heads / 4),
    lengths = packed and { short, tokens - 2 * short, short } or { tokens } }
  x.upstream = x.q:detach()
  local ends = { 0 }
  for i, length in ipairs(x.lengths) do ends[i + 1] = ends[i] + length end
  x.ends = torch.tensor(ends, { dtype = torch.int32 }):to(timing.device)
  return x
end

local function by(backend, x)
  return function() return kernels.attention_on_device(x.q, x.k, x.v, x.ends, x.lengths, backend) end
end

local function results_of(forward, x)
  local y = forward()
  return { y:detach(), unpack(torch.grad({ (y * x.upstream):sum() }, { x.q, x.k, x.v })) }
end

--- Returns the largest error of results and gradients, in parts of the largest number.
local function error_of(results, expected)
  local worst = 0
  for i, x in ipairs(expected) do
    local part = ((results[i]:float() - x):abs():max() / x:abs():max()):item()
    worst = part <= worst and worst or part -- NaN counts
  end
  return worst
end

--- Returns results in float32 by one call for each sequence.
local function expected_of(x)
  local wide = { q = x.q:detach():float(), k = x.k:detach():float(), v = x.v:detach():float(),
    upstream = x.upstream:float() }
  for _, name in ipairs { "q", "k", "v" } do wide[name]:requires_grad_(true) end
  return results_of(function() return kernels.attention_by_sequence(wide.q, wide.k, wide.v, x.lengths) end, wide)
end

--- Times each backend, and prints a line of the table for the fastest whose results are right.
local function line_of(what, pass, rows, dim, from, to, programs, check)
  local best, told = nil, {}
  for _, backend in ipairs(pass == "kDecoding" and FOR_A_CACHE or BACKENDS) do
    local ok, result = pcall(function()
      local wrong = check and check(backend)
      if wrong then error(wrong, 0) end
      return 1e3 * timing.seconds(timing.size(5, 1), 2, programs(backend))
    end)
    if ok then
      told[#told + 1] = ("%s %.4g ms"):format(backend, result)
      -- For rows of changing lengths cuDNN would build a plan in each step.
      local fits = rows == "kBatch" or backend ~= "cudnn"
      if fits and not (best and best.ms <= result) then best = { ms = result, name = backend } end
    else
      print(("# %s by %s: %s"):format(what, backend, tostring(result):match("[^\n]*"):sub(1, 100)))
    end
  end
  if not best then return end
  local name = best.name:gsub("^%l", string.upper)
  print(('# for kTable: {%d, %d, Pass::%s, %d, %d, %s, Rows::%s, Backend::k%s, "gpu_check: %s"},'):format(capability,
    capability, pass, dim, from, to, rows, name, table.concat(told, ", ")))
  io.stdout:flush()
end

local function training(full, dim, from, to)
  local tokens = timing.size(full, full / 256)
  for _, rows in ipairs { "kBatch", "kAll" } do
    local x = inputs(tokens, dim, rows == "kAll")
    local expected = full == 2048 and expected_of(x)
    if dim == timing.size(128, 16) and rows == "kBatch" then
      timing.report("ms at " .. full, 1e3 * timing.seconds(timing.size(5, 1), 2, function()
        nn.attention(x.q, x.k, x.v):backward(x.upstream)
      end))
    end
    if expected then
      local own = results_of(function() return nn.attention(x.q, x.k, x.v, { seq_lens = x.lengths }) end, x)
      timing.report(rows == "kBatch" and "error" or "error, packed", error_of(own, expected))
    end
    line_of(("heads of %d, %s at %d"):format(dim, rows, full), "kTraining", rows, dim, from, to, function(backend)
      local forward = by(backend, x)
      return function() forward():backward(x.upstream) end
    end, function(backend)
      local wrong = expected and error_of(results_of(by(backend, x), x), expected) or 0
      return not (wrong <= MOST_ERROR) and ("wrong by %.2g"):format(wrong)
    end)
    for _, name in ipairs { "q", "k", "v" } do x[name].grad = nil end
  end
end

--- 20 times one new token of 4 sequences.
local function decoding(full, dim, from, to)
  local columns, kv_heads = timing.size(full, full / 256), timing.size(8, 2)
  local function random(rows)
    return torch.randn({ 4, kv_heads, rows, dim }, { device = timing.device, dtype = timing.dtype })
  end
  local q, keys, values = random(4), random(columns), random(columns)
  line_of(("decoding, heads of %d at %d"):format(dim, full), "kDecoding", "kAll", dim, from, to, function(backend)
    return function()
      for _ = 1, timing.size(20, 1) do
        kernels.cached_attention_on_device(q, keys, values, capability, nil, { backend = backend })
      end
    end
  end)
end

local usual = timing.size(128, 16)
for _, range in ipairs { { 2048, 1, "4096" }, { 8192, 4096, "16384" }, { 32768, 16384, "kAny" } } do
  training(range[1], usual, range[2], range[3])
  torch.no_grad(decoding, range[1], usual, range[2], range[3])
end
for _, dim in ipairs { timing.size(64, 8), timing.size(256, 32) } do training(8192, dim, 1, "kAny") end
