--- `--evict-slow`: finds a rank that makes all others wait, from the clocks that travel in the ranks' agreements
--- (driver/watching/own_work.h). Every rank sees the same clocks, and so finds the same.
---
--- torchrun starts the ranks of a machine again after every exit code. If the others can go on without the slow
--- machine, a rank of that machine ends its agent (state/torchrun.lua). The other ranks leave, and their agents start
--- them again.

local core = require "lockstep.core"
local dist = require "lockstep.distributed"
local plain = require "lockstep.plain"
local run = require "lockstep.run"
local stragglers = require "lockstep.log.stragglers"
local torchrun = require "lockstep.state.torchrun"
local watching = require "lockstep.core.watching"

local M = {}

--- The steps over which ranks are compared. A rank is slow for a step for many reasons.
M.STEPS = 100

local EVICTED, GOES_ON = 75, 143 -- EX_TEMPFAIL of sysexits.h; as after SIGTERM

local clocks, steps

--- Starts the count of steps again. A loop calls it at its start.
function M.begin_loop() clocks, steps = nil, 0 end

--- Returns the rank that worked more than `factor` times as long as the median, and how many times; nil if no rank
--- did.
---@param seconds number[] by rank
---@param factor number
---@return integer? rank
---@return number? ratio
function M.slow_rank(seconds, factor)
  local rank, median = stragglers.slowest(seconds)
  local longest = seconds[rank + 1]
  if longest > factor * median then return rank, longest / median end
end

--- Where a rank runs.
---@class state.Place
---@field host string
---@field agent integer? torchrun's number of its agent, which is an ancestor of this process
---@field restarts_left integer? of that agent
---@field least_agents integer? the agents that torchrun needs
---@field least integer? the ranks that run.elastic needs
---@field num_shared integer? what elastic:share divides evenly among the ranks

---@return state.Place
local function own_place()
  local function number(name) return tonumber(os.getenv(name)) end
  local progress = run.progress
  local place = { host = plain.host_name(), least = progress.least_ranks, num_shared = progress.num_shared }
  local arguments = os.getenv("TORCHELASTIC_RUN_ID") and number("TORCHELASTIC_MAX_RESTARTS") and torchrun.arguments()
  if arguments then
    place.agent, place.least_agents = number("GROUP_RANK"), torchrun.least_agents(arguments)
    place.restarts_left = number("TORCHELASTIC_MAX_RESTARTS") - (number("TORCHELASTIC_RESTART_COUNT") or 0)
  end
  return place
end

--- Returns whether torchrun can start the ranks of the other agents again without those of the slow rank's.
---@param places state.Place[] by rank
---@param slow integer rank
---@return boolean
function M.others_go_on(places, slow)
  local left, least, agents, num_agents = 0, places[1].least, {}, 0
  for _, place in ipairs(places) do
    if not place.agent or not place.least_agents then return false end
    if place.agent ~= places[slow + 1].agent then
      if place.restarts_left < 1 then return false end
      left = left + 1
      if not agents[place.agent] then agents[place.agent], num_agents = true, num_agents + 1 end
    end
  end
  if (places[1].num_shared or 0) % left ~= 0 then return false end
  return least ~= nil and left >= least and num_agents >= places[1].least_agents
end

--- A rank that was slow.
---@class state.Slow
---@field text string
---@field exit_code integer this rank's
---@field ends_agent boolean this rank does

--- Call it between two steps, after the ranks have agreed. Returns what is wrong once a rank was slow for M.STEPS
--- steps. Collective.
---@return state.Slow?
function M.after_step()
  local factor = core.evict_slow()
  if not factor then return nil end
  local now = watching.work_clocks()
  if #now < 2 then return nil end
  if not clocks then
    clocks = now
    return nil
  end
  steps = steps + 1
  if steps < M.STEPS then return nil end
  local worked = {}
  for i, clock in ipairs(now) do worked[i] = clock - clocks[i] end
  clocks, steps = now, 0
  local rank, ratio = M.slow_rank(worked, factor)
  if not rank then return nil end
  local places = dist.all_gather_object(own_place())
  local goes_on = M.others_go_on(places, rank)
  local leaves = places[dist.rank() + 1].agent == places[rank + 1].agent
  return {
    text = ("rank %d (%s) worked %.1f times as long as the median rank, %.0f ms a step over %d steps; "
      .. "--evict-slow %g%s")
      :format(rank, places[rank + 1].host, ratio, 1000 * worked[rank + 1] / M.STEPS, M.STEPS, factor,
      goes_on and "; torchrun's agent there ends, and the others go on" or ""),
    exit_code = goes_on and not leaves and GOES_ON or EVICTED,
    ends_agent = goes_on and leaves and os.getenv("LOCAL_RANK") == "0",
  }
end

return M
