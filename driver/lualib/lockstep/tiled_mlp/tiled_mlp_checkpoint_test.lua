-- A tiled MLP at the end of a checkpointed region: its node saves its tensors before it computes, so the
-- recomputation stops there and no tile runs a third time. Four forward passes' worth of work, where those
-- that compute first take five.

local checkpoint = require "lockstep.checkpoint"
local t = require "lockstep.testing"
local tiled_mlp = require "lockstep.tiled_mlp"
local torch = require "lockstep.torch"

local TILES = 4

--- Runs of the body in forward, and in forward and backward, with and without early stop.
local function count_runs(opts)
  torch.manual_seed(1)
  local up, down = torch.randn({ 8, 32 }, { dtype = torch.float64 }), torch.randn({ 32, 8 }, { dtype = torch.float64 })
  local x = torch.randn({ 20, 8 }, { dtype = torch.float64 })
  for _, tensor in ipairs { up, down, x } do tensor:requires_grad_(true) end
  local runs = 0
  local function body(tile, w1, w2)
    runs = runs + 1
    return torch.gelu(tile:matmul(w1)):matmul(w2)
  end
  local mlp = tiled_mlp.new { tiles = TILES }
  local function region(input) return mlp(body, torch.tanh(input), { up, down }) end

  local y = opts and checkpoint.new(opts)(region, x) or region(x)
  local forward = runs
  y:pow(2):sum():backward()
  return forward, runs, { up.grad, down.grad, x.grad }
end

t.test("ItsTilesRunNoThirdTime", function()
  local _, plain_runs, plain = count_runs(nil)
  local forward, runs, gradients = count_runs { early_stop = true }

  t.equal(plain_runs, 2 * TILES)
  t.equal(forward, TILES)
  t.equal(runs, 2 * TILES)
  for i, gradient in ipairs(gradients) do t.truthy(torch.equal(gradient, plain[i])) end
end)

t.test("WithoutEarlyStopTheyDo", function()
  local _, runs = count_runs { early_stop = false }

  t.equal(runs, 3 * TILES)
end)
