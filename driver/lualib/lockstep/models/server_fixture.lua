--- A stand-in for vLLM and SGLang.

local core = require "lockstep.core"
local data = require "lockstep.data"
local run = require "lockstep.run"

--- Calls fn(url, seen) with a server of a kind; seen() returns the requests so far.
local function with_server(kind, fn)
  local folder = run.dir .. "/" .. kind
  core.make_folder(folder)
  assert(os.execute(("mkfifo '%s/port'"):format(folder)) == 0)
  local process = assert(io.popen(("python3 -I -B tests/support/inference_server.py %s '%s'"):format(kind, folder),
    "w"))
  local port = assert(io.open(folder .. "/port")):read "*a" -- waits for the server
  local ok, message = pcall(fn, "http://127.0.0.1:" .. port, function()
    local requests = {}
    for request in data.jsonl(folder .. "/seen") do requests[#requests + 1] = request end
    return requests
  end)
  process:close()
  if not ok then error(message, 0) end
end

return with_server
