--- Regions whose functions have captured variables: what has changed since forward is an error, and what the region
--- itself changes is not. Numbers of math.random come again.

local checkpoint = require "lockstep.checkpoint"
local nn = require "lockstep.nn"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1) -- small tensors

local function input(size)
  torch.manual_seed(3)
  return torch.randn({ size or 4 }):requires_grad_(true)
end

local function plainly(fn, ...) return fn(...) end

local function line_of(fn) return "checkpoint_captured_test.lua:" .. debug.getinfo(fn, "S").linedefined end

-- What has changed ------------------------------------------------------------------------------------

t.test("AVariableThatTheLoopAssignsAgainIsAnErrorThatNamesItAndItsLine", function()
  local f, h, fn = nn.Linear(4, 4), input(), nil
  local ckpt = checkpoint.new()
  for _ = 1, 3 do
    fn = function(x) return f(x) * h end
    h = ckpt(fn, h)
  end

  local message = t.raises('"h" was assigned again (it was float64 {4}, and is float64 {4}) since forward', function()
    h:sum():backward()
  end)

  t.truthy(message:find("region [^\n]*" .. line_of(fn):gsub(":%d+$", "") .. ":%d+: "), message)
  t.truthy(message:find("The function at [^\n]*" .. line_of(fn) .. " captures this variable"), message)
end)

t.test("AsAnArgumentTheSameVariableIsRight", function()
  local function gradient(call)
    torch.manual_seed(1)
    local f, x = nn.Linear(4, 4), input()
    local h = x
    for _ = 1, 3 do h = call(function(v, factor) return f(v) * factor end, h, h) end
    return torch.grad(h:sum(), { x, f.weight, f.bias })
  end

  t.equal(gradient(checkpoint.new()), gradient(plainly))
end)

--- Runs make(x), which returns a region's function and one that changes something; returns the error of backward.
local function change(make, opts)
  local x = input()
  local fn, changes = make(x)
  local y = checkpoint.new(opts)(fn, x)
  changes()
  return select(2, pcall(function() y:sum():backward() end)), fn
end

local CHANGES = {
  { "n", "was assigned again (it was the number 2, and is the number 3)", function()
    local n = 2
    return function(x) return torch.tanh(x * n) end, function() n = 3 end
  end },
  { "flag", "was assigned again (it was false, and is true)", function()
    local flag = false
    return function(x) return flag and torch.sin(x) or torch.tanh(x) end, function() flag = true end
  end },
  { "name", 'was assigned again (it was the string "tanh", and is the string "sin")', function()
    local name = "tanh"
    return function(x) return torch[name](x) end, function() name = "sin" end
  end },
  { "layer", "was assigned again (it was a table, and is a table)", function()
    local layer = nn.Linear(4, 4)
    return function(x) return layer(x) end, function() layer = nn.Linear(4, 4) end
  end },
  { "f", "was assigned again (it was a function, and is a function)", function()
    local f = torch.tanh
    return function(x) return f(x) end, function() f = torch.sin end
  end },
  { "mask", "was assigned again (it was nil, and is float64 {4})", function()
    local mask
    return function(x) return mask and x * mask or torch.tanh(x) end, function() mask = torch.ones { 4 } end
  end },
  { "mask", "was changed in place", function()
    local mask = torch.ones { 4 }
    return function(x) return torch.tanh(x * mask) end, function() mask:zero_() end
  end },
  { "scale", "was assigned again", function() -- in a function that the function calls
    local scale = 2
    local function scaled(x) return torch.tanh(x * scale) end
    local function twice(x) return scaled(scaled(x)) end
    return function(x) return twice(x) end, function() scale = 3 end, scaled
  end },
  { "state", "was assigned again", function(x) -- by the region itself, with a gradient
    local state = x * 2
    return function(v)
      state = torch.tanh(state * v)
      return state
    end, function() end
  end },
  { "sum", "was assigned again", function(x) -- a loss that several regions add to
    local sum = x:sum()
    return function(v)
      local y = torch.tanh(v)
      sum = sum + y:square():mean()
      return y
    end, function() end
  end },
}

for i, case in ipairs(CHANGES) do
  local name, text, make = unpack(case)
  t.test(("AChangeIsAnErrorThatNamesTheVariable(%d, %s)"):format(i, name), function()
    local message, fn = change(make)
    t.truthy(type(message) == "string" and message:find(('"%s" %s'):format(name, text), 1, true), message)
    if name ~= "scale" then t.truthy(message:find(line_of(fn), 1, true), message) end

    t.equal(change(make, { determinism = "none" }), nil)
  end)
end

t.test("TheFunctionIsFoundBehindTablesAndChunks", function()
  local scale, x = 2, input()
  local ckpt = checkpoint.new()
  local function fn(v) return torch.tanh((torch.is_tensor(v) and v or v.x) * scale) end
  local a = ckpt(fn, { x = x })
  local b = sharding.context_parallel(nil, function() return ckpt(fn, x) end)
  local c = sharding.context_parallel(nil, function() return ckpt(fn, { x = x }) end)
  scale = 3

  for _, y in ipairs { a, b, c } do
    t.raises('"scale" was assigned again', function() y:sum():backward() end)
  end
end)

-- What may change -------------------------------------------------------------------------------------

--- Runs three regions whose functions make(i) makes, and compares their gradients with those without regions.
local function allowed(name, make)
  t.test("MayChange(" .. name .. ")", function()
    local function gradients(call)
      torch.manual_seed(1)
      local fn_of, x = make(), input()
      local y = x
      for i = 1, 3 do y = call(fn_of(i), y) end
      return torch.grad(y:sum(), { x })
    end
    for _, early_stop in ipairs { true, false } do
      t.equal(gradients(checkpoint.new { early_stop = early_stop }), gradients(plainly))
    end
  end)
end

allowed("the variable of a loop", function()
  return function(i) return function(x) return torch.tanh(x * i) end end
end)

allowed("a count of the region's calls", function()
  local calls = 0
  return function()
    return function(x)
      calls = calls + 1
      return torch.tanh(x)
    end
  end
end)

allowed("a count in a function that it calls", function()
  local calls = 0
  local function note() calls = calls + 1 end
  return function()
    return function(x)
      note()
      return torch.tanh(x)
    end
  end
end)

allowed("a table that is made at the first use", function()
  local cosines
  return function()
    return function(x)
      cosines = cosines or torch.cos(torch.arange(4))
      return torch.tanh(x * cosines)
    end
  end
end)

allowed("statistics without a gradient", function()
  local mean, largest = torch.zeros { 4 }, torch.zeros {}
  return function()
    return function(x)
      mean:mul_(0.9):add_(x:detach(), { alpha = 0.1 })
      largest = torch.maximum(largest, x:detach():abs():max())
      return torch.tanh(x)
    end
  end
end)

allowed("a result that is handed out", function()
  return function()
    local aux
    return function(x)
      aux = torch.tanh(x)
      return torch.sin(aux)
    end
  end
end)

allowed("the fields of a table", function()
  local notes = { step = 0 }
  return function()
    return function(x)
      notes.step = notes.step + 1
      notes[#notes + 1] = x
      return torch.tanh(x)
    end
  end
end)

allowed("the buffers of a module", function()
  local net = nn.Linear(4, 4)
  net.mean = torch.zeros { 4 }
  return function()
    return function(x)
      net.mean:mul_(0.9):add_(x:detach(), { alpha = 0.1 })
      return net(x)
    end
  end
end)

t.test("AVariableWithTheSameValueIsNoChange", function()
  local x, nan, net = input(), 0 / 0, nn.Linear(4, 4)
  local weight, alias = net.weight, x
  local y = checkpoint.new()(function(v)
    return torch.tanh(net(v) * (nan ~= nan and 1 or 0) * alias + weight:sum())
  end, x)
  nan, weight, alias = -nan, net.weight, torch.atleast_1d(x)

  t.truthy(torch.grad(y:sum(), { x })[1])
end)

t.test("AParameterMayBeCapturedAndUsedOnAfterwards", function()
  local w, x = input(), input()
  local y = checkpoint.new()(function(v) return v * w end, x)
  y:sum():backward()
  torch.no_grad(function() w:add_(w.grad) end) -- the optimizer's step, after backward

  t.equal(x.grad, w - w.grad)
end)

-- Random programs -------------------------------------------------------------------------------------

--- Writes a script of regions that read some of three variables, directly or through a function, and of assignments.
--- Returns it, and whether a region reads a variable that is assigned after its forward.
local function program(draw)
  local lines, read, is_wrong = {}, {}, false
  local function line(...) lines[#lines + 1] = string.format(...) end
  line "local torch, call, x = ..."
  line "local v1, v2, v3 = 2, torch.tensor { 1, 2, 3, 4 }, torch.tanh"
  line "local function f1(h) return torch.tanh(h * v1) end"
  line "local function f2(h) return torch.tanh(h * v2) end"
  line "local function f3(h) return v3(h) end"
  local direct = { "torch.tanh(h * v1)", "torch.tanh(h * v2)", "v3(h)" }
  local assignments = {
    { "v1 = v1 + 1", "v1 = v1", "do local v1 = 7; x = x * v1 end" },
    { "v2 = v2 + 1", "v2:add_(1)", "v2 = v2" },
    { "v3 = torch.sin", "v3 = v3", "do local v3 = torch.sin; x = v3(x) end" },
  }
  local changes = { { true }, { true, true }, { true } }
  for _ = 1, 2 + draw(5) do
    local which = draw(3)
    if draw(3) == 1 then
      local how = draw(3)
      line("%s", assignments[which][how])
      -- v3 = torch.sin changes it the first time only.
      if changes[which][how] and not (which == 3 and read.is_sin) then is_wrong = is_wrong or read[which] or false end
      if which == 3 and how == 1 then read.is_sin = true end
    else
      read[which] = true
      line("x = call(function(h) return %s end, x)", draw(2) == 1 and direct[which] or ("f%d(h)"):format(which))
    end
  end
  line "return x"
  return table.concat(lines, "\n"), is_wrong
end

t.test("RandomProgramsAreRefusedOrRight", function()
  local state, refused = 12345, 0
  local function draw(most)
    state = (state * 16807) % 2147483647
    return math.floor(state / 65536) % most + 1
  end
  for _ = 1, 400 do
    local text, is_wrong = program(draw)
    local function gradient(call)
      local x = input()
      return torch.grad(assert(loadstring(text, "=program"))(torch, call, x):sum(), { x })[1]
    end
    local ok, result = pcall(gradient, checkpoint.new())
    t.equal(ok, not is_wrong, text .. "\n" .. tostring(result))
    if ok then
      t.equal(result, gradient(plainly), text)
    else
      refused = refused + 1
      t.truthy(result:find("since forward", 1, true), text .. "\n" .. tostring(result))
    end
  end
  t.truthy(refused > 40 and refused < 360, refused .. " of 400 are refused")
end)

-- math.random -----------------------------------------------------------------------------------------

t.test("MathRandomDrawsTheSameNumbers", function()
  local function gradients(call)
    math.randomseed(5)
    local x = input()
    local y = x
    for _ = 1, 3 do y = call(function(v) return torch.tanh(v * math.random()) end, y) end
    local following = math.random()
    return { torch.grad(y:sum(), { x })[1], following, math.random() }
  end
  local expected = gradients(plainly)

  t.equal(gradients(checkpoint.new()), expected)
  t.equal(gradients(function(fn, ...) return checkpoint.new()(function(v) return checkpoint.new()(fn, v) end, ...) end),
    expected)
  t.truthy(not gradients(checkpoint.new { preserve_rng = false })[1]:equal(expected[1]))
end)

t.test("AnotherGeneratorInMathRandomIsTheScriptsAffair", function()
  local random, x = math.random, input()
  math.random = function() return 0.5 end -- luacheck: ignore 122
  local y = checkpoint.new()(function(v) return torch.tanh(v * math.random() * random()) end, x)
  math.random = random -- luacheck: ignore 122

  t.equal(torch.grad(y:sum(), { x })[1].shape, x.shape)
end)
