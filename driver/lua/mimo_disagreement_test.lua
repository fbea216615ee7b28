--- Plans of rows that differ, of which eight bits of the fingerprints are alike: once a tag held no more, rows of
--- other sizes met under it, and Gloo ended the process. Vision on ranks 0 and 1, language on rank 2.

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

t.test("CallsThatAreFarApartNeverMeet", function()
  -- More calls under way than a tag has bits for their numbers, taken in another order than they were sent.
  local bridge = mimo.bridge { topology = topo, from = "vision", to = "language" }
  local calls, xs, ys = 300, {}, {}
  for i = 1, calls do
    xs[i] = IS_VISION and torch.ones({ 1, 2 }):requires_grad_(true) or nil
    ys[i] = bridge(xs[i])
  end
  for i = calls, 1, -1 do
    -- Vision goes back from the last to the first; language the other way round.
    local call = IS_VISION and i or calls + 1 - i
    torch.sum(ys[call] * call):backward()
    if IS_VISION then t.equal(xs[call].grad, torch.full({ 1, 2 }, call)) end
  end
end)
