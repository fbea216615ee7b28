--- The program of //tests/strict is on the strict backend: what Gloo forgives fails here.

local dist = require "lockstep.distributed"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local RANK = dist.rank()

t.test("TagsDoNotTellMessagesApart", function()
  local group = dist.group { ranks = { 0, 1 } }
  local message = t.raises("NCCL ignores tags", function()
    if RANK == 0 then
      dist.send(torch.ones(2), 1, { tag = 5, group = group })
    else
      dist.recv(torch.zeros(2), 0, { tag = 6, group = group })
    end
  end)
  -- A note of 512 bytes travels before the tensor, with the same tag.
  t.truthy(message:find('rank 0 issued "send 512 of Byte to rank 1"', 1, true), message)
end)
