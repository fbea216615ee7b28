--- Which process is torchrun's agent. python/tests/elastic_agents_test.py has the real one.

local t = require "lockstep.testing"
local torchrun = require "lockstep.state.torchrun"

local function words(text)
  local found = {}
  for word in text:gmatch "%S+" do found[#found + 1] = word end
  return found
end

t.test("OnlyTorchrunsCommandLineIsTheAgents", function()
  local cases = {
    { "/usr/bin/python3 /usr/bin/torchrun --no-python lockstep train.lua", true },
    { "python -I -m torch.distributed.run --nnodes 2 lockstep train.lua", true },
    { "python3.11 -u -X faulthandler -W ignore -m torch.distributed.run train.lua", true },
    { "python3 /site-packages/torch/distributed/run.py train.lua", true },
    { "torchrun train.lua", true },
    { "/usr/bin/python3 train.py torchrun", false },
    { "python -I -m mine torch.distributed.run", false },
    { "python -I -c torchrun torchrun", false },
    { "python3", false },
    { "bash -c machine machine torchrun --no-python lockstep train.lua", false },
    { "srun torchrun --no-python lockstep train.lua", false },
    { "slurmstepd: [7.0]", false },
    { "/sbin/init", false },
    { "/opt/lockstep --nproc 2 train.lua", false },
    { "", false }, -- a thread of the kernel, or a process that has ended
  }
  for _, case in ipairs(cases) do t.equal(torchrun.is_torchrun(words(case[1])), case[2], case[1]) end
end)

--- Returns a reader of the files of processes, { parent, command line } by number.
local function files_of(processes)
  return function(path)
    local pid, name = path:match "^/proc/(%d+)/(%l+)$"
    local process = processes[tonumber(pid)]
    if not process then return "" end
    if name == "status" then return "Name:\tx\nPid:\t" .. pid .. "\nPPid:\t" .. process[1] .. "\n" end
    return (process[2]:gsub(" ", "\0") .. "\0")
  end
end

t.test("TheClosestAgentAmongTheAncestorsIsFound", function()
  local agent = "python3 /bin/torchrun --nnodes 1:2 lockstep"
  local cases = {
    { { [9] = { 5, agent }, [5] = { 1, "torchrun x" } }, 9, 9 },
    { { [9] = { 8, "bash -c rank" }, [8] = { 7, "numactl lockstep" }, [7] = { 1, agent } }, 9, 7 },
    { { [9] = { 8, "bash train.sh" }, [8] = { 1, "slurmstepd: [7.0]" }, [1] = { 0, "init" } }, 9, nil },
    { { [9] = { 0, "bash" } }, 9, nil }, -- its parent is outside of the container
    { { [9] = { 1, "bash" }, [1] = { 0, agent } }, 9, nil },
    { { [1] = { 0, agent } }, 1, nil },
    { { [0] = { 0, agent } }, 0, nil },
    { {}, 9, nil }, -- files that cannot be read
  }
  for i, case in ipairs(cases) do
    local pid, arguments = torchrun.find(case[2], files_of(case[1]))
    t.equal({ pid or "none", arguments and arguments[2] or "none" }, { case[3] or "none",
      case[3] and "/bin/torchrun" or "none" }, "case " .. i)
  end
  t.equal(torchrun.arguments(), nil) -- of this process
end)

t.test("TheLeastNumberOfAgentsIsThatOfTheCommandLine", function()
  local cases = {
    { "torchrun --nnodes 2:4 --rdzv-backend c10d x", 2 },
    { "torchrun --nnodes=2:4 --rdzv_backend=etcd-v2 x --nnodes 9", 2 },
    { "torchrun --rdzv-backend c10d --nnodes 4 x", 4 },
    { "torchrun --nnodes 2:4 x", 4 }, -- the static rendezvous waits for all
    { "torchrun --nnodes 2:4 --rdzv-backend static x", 4 },
    { "torchrun --rdzv-backend c10d x", nil },
    { "torchrun --rdzv-backend c10d --nnodes", nil },
    { "torchrun --rdzv-backend c10d --nnodes many x", nil },
  }
  for _, case in ipairs(cases) do
    t.equal(torchrun.least_agents(words(case[1])) or "none", case[2] or "none", case[1])
  end
end)
