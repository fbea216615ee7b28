--- Samples that data.loader copies to the device while it computes, against copies that the program waits for: the same
--- values, and time.

local timing = require "timing"
local data = require "lockstep.data"
local torch = require "lockstep.torch"

local SAMPLES, rows, columns = 32, timing.size(2048, 32), timing.size(4096, 32)
local source = {}
torch.manual_seed(1)
for i = 1, SAMPLES do source[i] = { x = torch.randn { rows, columns }, id = i } end
local weight = torch.randn({ columns, columns }, { device = timing.device }):mul_(0.01)

--- Returns a loader; the copies are its own if `device` is given.
local function open(device)
  return data.loader { source = source, workers = 2, prefetch = 4, shuffle = false, epochs = 1, rank = 0, world = 1,
    device = device }
end

local differing = 0
for sample in open(timing.device) do
  if not torch.equal(sample.x * 2, source[sample.id].x:to(timing.device) * 2) then differing = differing + 1 end
end
timing.report("samples that differ", differing)

--- Takes all samples, with steps that end with a wait for the device, as a loop that prints its loss has.
local function train(device)
  for sample in open(device) do
    local y = device and sample.x or sample.x:to(timing.device)
    for _ = 1, 8 do y = torch.tanh(y:matmul(weight)) end
    y:sum():item()
  end
end

local waiting = timing.seconds(1, 3, function() train(nil) end)
local overlapping = timing.seconds(1, 3, function() train(timing.device) end)
timing.report("time with the copy stream / without", overlapping / waiting)
