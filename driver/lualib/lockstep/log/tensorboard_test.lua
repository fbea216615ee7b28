--- The event files that TensorBoard reads, read back with the tensorboard wheel's own reader.

local core = require "lockstep.core"
local data = require "lockstep.data"
local log = require "lockstep.log"
local run = require "lockstep.run"
local t = require "lockstep.testing"
local watching = require "lockstep.core.watching"

local function quietly(fn, ...)
  local stdout = io.stdout
  io.stdout = { write = function() end, flush = function() end } -- luacheck: ignore 122
  local ok, message = pcall(fn, ...)
  io.stdout = stdout -- luacheck: ignore 122
  if not ok then error(message, 0) end
end

--- Event files in `folder`, in the order in which they were made.
local function files_in(folder)
  local paths = {}
  for path in assert(io.popen("ls " .. folder .. "/*tfevents* 2>/dev/null")):lines() do paths[#paths + 1] = path end
  return paths
end

--- The file's records, as the wheel reads them; numbers as text, to seven digits.
local function read_back(path)
  local events, pipe = {}, assert(io.popen("python3 -I -B tests/support/read_events.py " .. path .. " 2>&1"))
  for line in pipe:lines() do events[#events + 1] = core.json_decode(line, "read_events.py") end
  pipe:close()
  return events
end

local function scalar(event, tag) return tonumber(event.scalars[tag]) end

t.test("TensorBoardReadsWhatMetricsJsonlHolds", function()
  local start = os.time()
  run.config { model = { hidden = 64 }, name = "<größe>" }
  quietly(function()
    for step = 0, 3 do log.step { step = step, loss = 1 / (step + 1), tokens = 4096 } end
    log.record("validation", { loss = 0.5, accuracy = 0.75, step = 3 })
  end)

  local paths = files_in(run.dir)
  t.equal(#paths, 1)
  local events, index = read_back(paths[1]), 3
  t.equal({ events[1].kind, events[1].version }, { "file_version", "brain.Event:2" })
  t.equal({ events[2].kind, events[2].status, events[2].step }, { "session_log", 1, 0 })
  local config = assert(io.open(run.dir .. "/config.json")):read("*a")
  t.equal({ events[3].step, events[3].texts }, { 0, { config = "```json\n" .. config .. "```\n" } })
  t.equal(core.json_decode(config).model.hidden, 64)
  for object in data.jsonl(run.dir .. "/metrics.jsonl") do
    index = index + 1
    local event, prefix = events[index], object.event and object.event .. "/" or ""
    t.equal(event.step, object.step)
    t.truthy(event.wall_time >= start and event.wall_time <= os.time() + 1)
    for name, value in pairs(object) do
      if name ~= "step" and name ~= "event" then
        t.near(scalar(event, prefix .. name), value, 1e-6 * math.abs(value), name)
        event.scalars[prefix .. name] = nil
      end
    end
    t.equal(next(event.scalars), nil)
  end
  t.equal(#events, index)
end)

t.test("EachRecordIsInTheFileWhenItHasBeenLogged", function()
  local path = files_in(run.dir)[1]
  for step = 10, 12 do
    quietly(log.step, { step = step, loss = step })

    local events = read_back(path)
    t.equal({ events[#events].step, scalar(events[#events], "loss") }, { step, step })
  end
end)

t.test("NumbersThatAreNotFiniteReachTensorBoard", function()
  t.raises("grad_norm is inf, loss is nan", quietly, log.step, { step = 20, loss = 0 / 0, grad_norm = math.huge })

  local events = read_back(files_in(run.dir)[1])
  local scalars = events[#events].scalars
  t.equal({ scalars.loss, scalars.grad_norm }, { "nan", "inf" })
end)

t.test("AFileMadeLaterTellsTensorBoardToForgetWhatItRepeats", function()
  local folder = run.dir .. "/again"
  core.make_folder(folder)
  for first = 0, 5, 5 do
    local file = watching.event_file(folder)
    for step = first, first + 7 do file:write(step, { loss = step }) end
  end

  local paths = files_in(folder)
  t.equal(#paths, 2)
  local events = read_back(paths[2])
  t.equal({ events[2].kind, events[2].status, events[2].step }, { "session_log", 1, 5 })
  t.equal(events[3].step, 5)
end)

t.test("AnyTagIsKept", function()
  local folder = run.dir .. "/tags"
  core.make_folder(folder)
  local tags = { ["a b/c"] = 1, [("long"):rep(100)] = 2, ["größe"] = 3, [""] = 4 }
  watching.event_file(folder):write(2 ^ 40, tags)

  local event = read_back(files_in(folder)[1])[3]
  t.equal(event.step, 2 ^ 40)
  for tag, value in pairs(tags) do t.equal(scalar(event, tag), value, tag) end
end)

t.test("TheReaderFindsATornRecord", function()
  local folder = run.dir .. "/torn"
  core.make_folder(folder)
  watching.event_file(folder):write(0, { loss = 1 })
  local path = files_in(folder)[1]
  local bytes = assert(io.open(path, "rb")):read("*a")
  core.write_file(path, { (bytes:gsub("loss", "lass")) })

  t.raises("read_events.py", read_back, path)
end)
