--- Ranks that plan different rows, or make the calls in different orders, get an error before rows meet. Otherwise Gloo
--- would end the process, and NCCL would mix rows up. Vision on ranks 0 and 1, language on rank 2.

local dist = require "lockstep.distributed"
local mimo = require "lockstep.mimo"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local RANK = dist.rank()
local IS_VISION = RANK < 2
local topo = mimo.topology { modules = { { name = "vision", dp = 2 }, { name = "language", first_rank = 2 } } }

for _, case in ipairs { { { 10, 15 }, { 1, 3 } }, { { 1, 3 }, { 10, 15 } } } do
  local of_vision, of_language = unpack(case)
  local function words(rows) return "rows per sample {" .. table.concat(rows, ", ") .. "}" end

  t.test(("RowsThatDisagreeNeverMeet(%s sent, %s expected)"):format(words(of_vision), words(of_language)), function()
    for agreed = 0, 2 do -- in the first call and in later ones
      local bridge = mimo.bridge { topology = topo, from = "vision", to = "language" }
      for _ = 1, agreed do
        local x = IS_VISION and torch.ones({ of_vision[RANK + 1], 2 }):requires_grad_(true) or nil
        torch.sum(bridge(x, { rows_per_sample = of_vision })):backward()
      end
      local x = IS_VISION and torch.ones({ of_vision[RANK + 1], 2 }):requires_grad_(true) or nil

      local message = t.raises("the ranks disagree about the micro-batch", function()
        torch.sum(bridge(x, { rows_per_sample = IS_VISION and of_vision or of_language })):backward()
      end)

      t.truthy(message:find("rank 2 (language) has " .. words(of_language), 1, true), message)
      t.truthy(message:find(words(of_vision), 1, true), message)
    end
  end)
end

--- A bridge after `calls` calls, with x and y of each.
local function go_forward(calls)
  local bridge, xs, ys = mimo.bridge { topology = topo, from = "vision", to = "language" }, {}, {}
  for i = 1, calls do
    xs[i] = IS_VISION and torch.ones({ 1, 2 }):requires_grad_(true) or nil
    ys[i] = bridge(xs[i])
  end
  return bridge, xs, ys
end

t.test("ManyCallsMayGoBackFromTheLastToTheFirst", function()
  local _, xs, ys = go_forward(300)
  for i = 300, 1, -1 do
    torch.sum(ys[i] * i):backward()
    if IS_VISION then t.equal(xs[i].grad, torch.full({ 1, 2 }, i)) end
  end
end)

t.test("BackwardInAnotherOrderIsAnErrorThatNamesBothCalls", function()
  local bridge, _, ys = go_forward(3)
  local message = t.raises("the ranks take the calls in different orders", function()
    -- Vision goes back from the last to the first; language the other way round.
    for i = 1, 3 do torch.sum(ys[IS_VISION and 4 - i or i]):backward() end
    bridge(nil) -- language has sent all: it gets the error in its next call
  end)
  t.truthy(message:find("(vision) comes to call 2, rank 2 (language) sends the gradient of call 0 first", 1, true),
    message)
end)
