--- torchrun's agent among the ancestors of this process. The agent may have started a shell around the rank.
---
--- A signal to the wrong process ends another program: a parent may be a shell, Slurm's step daemon, or process 1 of a
--- container. So this looks for torchrun's command line, and takes nothing else for an agent.

local ffi = require "ffi"

local M = {}

local SIGTERM = 15

ffi.cdef "int getppid(void); int kill(int, int);"

--- Returns whether this is the command line of torchrun: `torchrun`, or Python with its file or its module,
--- torch.distributed.run.
---@param arguments string[] of a process, with its program
---@return boolean
function M.is_torchrun(arguments)
  local program = (arguments[1] or ""):match "[^/]*$"
  if program == "torchrun" then return true end
  if not program:find "^python" then return false end
  local i = 2
  while arguments[i] and arguments[i]:find "^%-" do
    local option = arguments[i]
    if option == "-m" then return arguments[i + 1] == "torch.distributed.run" end
    if option == "-c" then return false end
    i = i + ((option == "-X" or option == "-W") and 2 or 1)
  end
  local file = arguments[i] or ""
  return file:match "[^/]*$" == "torchrun" or file:find "torch/distributed/run%.py$" ~= nil
end

local function read(path)
  local file = io.open(path)
  if not file then return "" end
  local text = file:read "*a" or ""
  file:close()
  return text
end

--- Returns the closest ancestor of a process that is torchrun's agent, and its command line. Process 1 is none: its end
--- is that of a container or a machine.
---@param pid integer where to begin: the parent
---@param read_file (fun(path: string): string)? for tests
---@return integer? pid
---@return string[]? arguments
function M.find(pid, read_file)
  read_file = read_file or read
  while pid and pid > 1 do
    local folder, arguments = ("/proc/%d/"):format(pid), {}
    for argument in read_file(folder .. "cmdline"):gmatch "%Z+" do arguments[#arguments + 1] = argument end
    if M.is_torchrun(arguments) then return pid, arguments end
    pid = tonumber(read_file(folder .. "status"):match "\nPPid:%s*(%d+)")
  end
end

--- Returns the command line of the agent that has started this rank; nil if there is none.
---@return string[]?
function M.arguments() return (select(2, M.find(ffi.C.getppid()))) end

local function option(arguments, name)
  for i, argument in ipairs(arguments) do
    local given, value = argument:match "^%-%-([%w_-]+)=?(.*)$"
    if given and given:gsub("_", "-") == name then return value ~= "" and value or arguments[i + 1] end
  end
  return os.getenv("PET_" .. name:gsub("%-", "_"):upper())
end

--- Returns how many agents torchrun needs to start ranks again: the least of --nnodes. The static rendezvous needs the
--- most. Returns nil if it is not known.
---@param arguments string[] torchrun's
---@return integer?
function M.least_agents(arguments)
  local least, most = (option(arguments, "nnodes") or ""):match "^(%d+):?(%d*)$"
  local is_static = (option(arguments, "rdzv-backend") or "static") == "static"
  return tonumber(is_static and most ~= "" and most or least)
end

--- Ends the agent that has started this rank, which ends its ranks.
function M.end_agent()
  local pid = M.find(ffi.C.getppid())
  if pid then ffi.C.kill(pid, SIGTERM) end
end

return M
