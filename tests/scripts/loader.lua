-- Takes samples from a loader in a run that saves its state, and writes down which, by rank, in ids-<attempt>-<rank>.

local data = require "lockstep.data"
local dist = require "lockstep.distributed"
local run = require "lockstep.run"

local config = run.config { attempt = 0, workers = 0, every = 1, skip = false }
require("ffi").cdef "int getpid(void);"
print("I am " .. dist.rank() .. " pid " .. require("ffi").C.getpid())

local loader = data.loader {
  source = data.source("numbers.jsonl", { cache = "cache" }), map = "loader_map", options = { skip = config.skip },
  workers = config.workers, epochs = 2, seed = 7, on_error = config.skip and "skip" or "error",
}
run:state({ loader = loader }, { every = config.every, keep = 2 })
local first = run:resume() or 0

local ids = assert(io.open(("ids-%d-%d"):format(config.attempt, dist.rank()), "w"))
ids:setvbuf("no")
ids:write("from " .. first .. "\n")
for step, sample in run:steps(loader) do
  ids:write(("%d %d\n"):format(step, sample.id))
  if step % 100 == first % 100 or step < first + 20 then print("step " .. step) end
end
print "all done"
