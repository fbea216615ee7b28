-- optim.AdamW8bit against bitsandbytes' numbers, which tests/models/make_four_bit.py writes, and against optim.AdamW.

local blockwise = require "lockstep.nn.blockwise"
local data = require "lockstep.data"
local optim = require "lockstep.optim"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local FACTS = data.safetensors "tests/models/four_bit/adamw8bit.safetensors"

local function trained(n, dtype)
  return torch.randn({ n }, { dtype = dtype }):requires_grad_(true)
end

t.test("StepsAndStatesAreThoseOfBitsandbytes", function()
  local params = {}
  for i = 0, 2 do params[i + 1] = FACTS["before." .. i]:clone():requires_grad_(true) end
  local optimizer = optim.AdamW8bit(params, { lr = 1e-2, betas = { 0.9, 0.95 }, weight_decay = 0.1 })

  for step = 0, 2 do
    for i, p in ipairs(params) do p.grad = FACTS[("grad.%d.%d"):format(i - 1, step)]:clone() end
    optimizer:step()
    for i, p in ipairs(params) do
      t.near(p:detach(), FACTS[("after.%d.%d"):format(i - 1, step)], 2e-6, ("parameter %d, step %d"):format(i, step))
    end
  end

  for i = 1, 2 do
    local state = optimizer.state[params[i]]
    for own, theirs in pairs { exp_avg = "1", exp_avg_sq = "2" } do
      local absmax = FACTS[("absmax%s.%d"):format(theirs, i - 1)]
      t.truthy(((state[own .. "_absmax"] - absmax):abs() / absmax):max():item() < 1e-5, own)
      local codes = FACTS[("state%s.%d"):format(theirs, i - 1)]
      local off = torch.ne(state[own .. "_codes"], codes):to(torch.float32):mean():item()
      t.truthy(off < 1e-3, off .. " of the codes differ") -- what lies in the middle of two may be rounded otherwise
    end
  end
  t.equal(optimizer.state[params[3]].exp_avg.dtype, torch.float32)
end)

t.test("SmallParametersAreThoseOfAdamW", function()
  torch.manual_seed(1)
  local p = trained(4095)
  local q = p:detach():clone():requires_grad_(true)
  local ours, plain = optim.AdamW8bit { p }, optim.AdamW { q }
  for _ = 1, 5 do
    p.grad = torch.randn { 4095 }
    q.grad = p.grad:clone()
    ours:step(0.5)
    plain:step(0.5)
  end

  t.near(p:detach(), q:detach(), 5e-6)
end)

--- A least-squares fit. Returns the last loss.
local function fit(make, dtype, steps)
  torch.manual_seed(2)
  local x, w = torch.randn { 96, 64 }, torch.randn({ 64, 80 })
  local p = torch.zeros({ 64, 80 }, { dtype = dtype }):requires_grad_(true)
  local optimizer, loss = make { p }, nil
  for _ = 1, steps do
    loss = (torch.matmul(x, p:float()) - torch.matmul(x, w)):square():mean()
    loss:backward()
    optimizer:step()
    optimizer:zero_grad()
  end
  return loss:item(), optimizer, p
end

for name, dtype in pairs { float32 = torch.float32, bfloat16 = torch.bfloat16 } do
  for _, master in ipairs { "float32", "stochastic", "none" } do
    t.test(("LearnsAsAdamWDoes_%s_%s"):format(name, master), function()
      local o = { lr = 0.1, master = master, weight_decay = 0 }
      local loss = fit(function(params) return optim.AdamW8bit(params, o) end, dtype, 40)
      local plain = fit(function(params) return optim.AdamW(params, o) end, dtype, 40)

      t.truthy(loss < 2 * plain + 0.05, ("%g, and AdamW %g"):format(loss, plain))
    end)
  end
end

t.test("MomentsTakeTwoBytesAndALittle", function()
  local p = trained(1024 * 64)
  local optimizer = optim.AdamW8bit { p }
  p.grad = p:detach():clone()
  optimizer:step()

  local bytes = 0
  for _, tensor in pairs(optimizer.state[p]) do bytes = bytes + tensor:numel() * tensor:element_size() end
  t.truthy(bytes / p:numel() < 2.04, bytes / p:numel() .. " bytes of an element")
end)

t.test("AStateGoesOnBitForBit", function()
  torch.manual_seed(3)
  for _, n in ipairs { 4096, 5003, 17 } do
    local p = trained(n)
    local optimizer = optim.AdamW8bit { p }
    local function step(one, other, grad)
      one.grad = grad:clone()
      other:step()
    end
    for _ = 1, 3 do step(p, optimizer, torch.randn { n } * 10 ^ math.random(-5, 3)) end
    local q = p:detach():clone():requires_grad_(true)
    local again = optim.AdamW8bit { q }

    again:load_state_dict(optimizer:state_dict())

    for _ = 1, 3 do
      local grad = torch.randn { n }
      step(p, optimizer, grad)
      step(q, again, grad)
    end
    t.truthy(torch.equal(p:detach(), q:detach()), n)
    local plain = optim.AdamW { q } -- the moments are AdamW's
    plain:load_state_dict(again:state_dict())
    t.equal(again:state_dict().states[1].exp_avg_sq:min():item() >= 0, true)
  end
end)

t.test("NumbersOfBlocksAreRecovered", function()
  torch.manual_seed(4)
  for case = 1, 30 do
    local n = 100 + 37 * case
    local x = torch.randn { n } * 10 ^ (case % 9 - 5)
    for signed in pairs { [true] = 1, [false] = 1 } do
      local given = signed and x or x:abs()
      local codes, absmax = blockwise.quantize(given, signed, 256)
      local values = blockwise.dequantize(codes, absmax, signed, 256)

      local again, magnitudes = blockwise.recover(values, signed, 256)

      t.truthy(torch.equal(blockwise.dequantize(again, magnitudes, signed, 256), values), case)
      t.truthy(((values - given):abs() / given:abs():max()):max():item() < 0.04, case)
    end
  end
end)

t.test("EachNumberIsTheNearestOf256", function()
  torch.manual_seed(5)
  local x = torch.randn { 700 }
  for signed in pairs { [true] = 1, [false] = 1 } do
    local given = signed and x or x:abs()
    local codes, absmax = blockwise.quantize(given, signed, 256)
    local scaled = blockwise.rows(given, 256) / absmax:unsqueeze(1)
    local nearest = (scaled:view(-1, 1) - blockwise.map(signed, "cpu")):abs():amin { 1 }
    local chosen = blockwise.map(signed, "cpu"):index_select(0, codes:to(torch.int32))
    t.near((chosen - scaled:view(-1):narrow(0, 0, 700)):abs(), nearest:narrow(0, 0, 700), 1e-6)
  end
end)

t.test("OptionsThatDoNotFitAreErrors", function()
  t.raises("states must be left out", optim.AdamW8bit, { trained(3) }, { states = torch.bfloat16 })
  t.raises("betas must be two numbers", optim.AdamW8bit, { trained(3) }, { betas = { 0.9 } })
end)
