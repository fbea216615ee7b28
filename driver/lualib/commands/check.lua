--- `./run check`: tries every device and the ways between ranks, and names what is wrong or slow.

local check = require "lockstep.check"
local log = require "lockstep.log"
local run = require "lockstep.run"

local config = run.config {
  seconds = 1,    -- of the products of matrices, and of the copies
  slower = 1.5,   -- how many times slower than the median of the ranks is an error
  megabytes = 64, -- of each message
}

local rows = check.ranks { seconds = config.seconds, slower = config.slower, megabytes = config.megabytes }
log.print(#rows == 1 and "the rank is well" or #rows .. " ranks are well")
