--- Saves and resumes the state of a run. Scripts reach it as run:state, run:save and run:resume.
---
--- Every rank calls each of these functions alike. A failure of one rank is an error on all, the same on each.

local agreement = require "lockstep.state.agreement"
local background = require "lockstep.state.background"
local best = require "lockstep.state.best"
local contents = require "lockstep.state.contents"
local core = require "lockstep.core"
local core_state = require "lockstep.core.state"
local dist = require "lockstep.distributed"
local eviction = require "lockstep.state.eviction"
local folder = require "lockstep.state.folder"
local memory = require "lockstep.state.memory"
local optimizers = require "lockstep.state.optimizers"
local options = require "lockstep.options"
local plain = require "lockstep.plain"
local resuming = require "lockstep.state.resuming"
local run = require "lockstep.run"
local saving = require "lockstep.state.saving"
local torchrun = require "lockstep.state.torchrun"

local M = {}

--- A shell's exit code for a process that SIGTERM ended.
local SIGTERM_EXIT_CODE = 143

local objects ---@type table<string, any>?
local keep, every, is_async = 3, nil, false ---@type integer, integer?, boolean
local memory_every ---@type integer?
local left_out = {} ---@type string[] what run:resume was told to leave out, of names that are not registered
local kept_step ---@type integer? of the state that was saved between steps, or resumed, last

local function root() return run.dir .. "/state" end

local function check_registered(caller)
  plain.check(objects,
    "%s: nothing was registered; call run:state { model = model, optimizer = optimizer } before", caller)
end

-- Registering -----------------------------------------------------------------------------------------

--- See run:state. Collective.
---@param given table<string, any>
---@param opts {keep: integer?, every: integer?, async: boolean?, memory_every: integer?, memory_limit_gib: number?}?
function M.register(given, opts)
  local o = options.read("run:state", opts, { keep = 3, every = options.optional, async = false,
    memory_every = options.optional, memory_limit_gib = options.optional })
  for _, name in ipairs { "keep", "every", "memory_every" } do
    local value = o[name]
    if value and not plain.is_whole(value, 1) then
      core.raise(("run:state: %s must be a whole number of at least 1, not %s"):format(name, tostring(value)))
    end
  end
  plain.check(not o.async or o.every,
    "run:state: async is for the saves of every = n, which is not given; run:save waits for its files")
  local limit = o.memory_limit_gib
  plain.check(limit == nil or type(limit) == "number" and limit > 0,
    "run:state: memory_limit_gib must be a number above 0, not %s", tostring(limit))
  plain.check(not limit or o.memory_every,
    "run:state: memory_limit_gib is for the snapshots of memory_every = n, which is not given")
  plain.check(type(given) == "table" and getmetatable(given) == nil and next(given) ~= nil,
    "run:state: the objects come in a table by name, as in run:state { model = model }")
  for name, object in pairs(given) do
    plain.check(type(name) == "string" and name:match("^[%w_]+$"),
      'run:state: "%s" is not a valid name: use letters, digits and _', name)
    local problem = contents.kind_of(name, object) == "table" and contents.plain_mismatch(name, object) or ""
    if problem ~= "" then core.raise("run:state: " .. problem) end
  end
  agreement.together("run:state", function() return run.dir end) -- which another run may have
  agreement.same("run:state", { every = tostring(o.every or "none"), keep = tostring(o.keep),
    async = tostring(o.async), memory_every = tostring(o.memory_every or "none"),
    objects = table.concat(plain.keys(given), ", ") }, "give every rank the same")
  background.finish() -- of the objects before
  memory.begin(o.memory_every and { limit_gib = limit } or nil)
  memory_every = o.memory_every
  objects, keep, every, is_async, kept_step, left_out = given, o.keep, o.every, o.async, nil, {}
  best.begin(nil)
  core_state.announce_saving()
end

-- Saving and resuming ---------------------------------------------------------------------------------

--- Starts a save by `begin`, of this module or the background's, when none is under way any more.
local function begin_save(begin, folder_of_states, step, num_kept, replace)
  run.progress.saving_seconds = run.progress.saving_seconds + background.finish()
  optimizers.compare("run:save", objects)
  return begin(objects, step, { root = folder_of_states, keep = num_kept, config = run.progress.config,
    left_out = left_out, replace = replace })
end

local function save_in(...) return saving.finish(begin_save(saving.begin, ...)) end

--- Returns the registered optimizers whose parameters are not what others are to use, and the name of one.
local function averaging()
  local found, one = {}, nil
  for name, object in pairs(objects) do
    if contents.kind_of(name, object) == "optimizer" and object.kind and object.kind.averaged then
      found[#found + 1], one = object, name
    end
  end
  return found, one
end

--- Calls fn(...) while the registered optimizers' parameters hold what others are to use.
local function averaged(fn, ...)
  for _, optimizer in ipairs(averaging()) do
    local inner = fn
    fn = function(...) return optimizer:averaged(inner, ...) end
  end
  return fn(...)
end

--- See run:save.
---@param step integer steps that are done
---@return string path
function M.save(step)
  check_registered("run:save")
  return save_in(root(), step, keep)
end

--- See run:keep_best.
---@param metric string
---@param value number|torch.Tensor
---@param mode "min"|"max"|nil
---@param step integer steps that are done
---@return boolean
function M.keep_best(metric, value, mode, step)
  check_registered("run:keep_best")
  local before = best.record()
  if not best.improves(metric, value, mode, step) then return false end
  local ok, message = pcall(averaged, save_in, run.dir .. "/best", step, 1, true)
  if ok then return true end
  best.take_back(before) -- on a full disk: a later value need only be better than what is kept
  error(message, 0)
end

--- See run:load_best.
---@return state.Best?
function M.load_best()
  check_registered("run:load_best")
  background.finish()
  local record = resuming.load_best(objects, run.dir .. "/best")
  for _, optimizer in ipairs(record and averaging() or {}) do optimizer.kind.forget(optimizer) end
  return record
end

--- See run:resume.
---@param opts {from: string?, without: string[]?}?
---@return integer? steps that are done
function M.resume(opts)
  local o = options.read("run:resume", opts, { from = options.optional, without = {} })
  if o.from and type(o.from) ~= "string" then
    core.raise("run:resume: from must be a folder's path, not a " .. type(o.from))
  end
  check_registered("run:resume")
  local _, name = averaging()
  for _, left in ipairs(o.without) do name = name ~= left and name or nil end
  if name and o.from and o.from:find "best/*$" then
    core.raise(('run:resume: a best state has the averaged weights of "%s", from which training cannot go on; resume '
      .. 'from a state of run:save, or begin anew from the average: without = { "%s" }'):format(name, name))
  end
  background.finish()
  local step, unknown, is_in_memory = resuming.resume(objects,
    { root = root(), from = o.from, without = o.without, config = run.progress.config })
  kept_step, left_out = step, unknown
  if is_in_memory then kept_step = nil end -- the disk lacks it
  return step
end

-- Between steps ---------------------------------------------------------------------------------------

--- Raises an error if a loader reads ahead: a saved state would lose the batches that are not trained on yet.
---@param loader any
function M.check_loader(loader)
  if objects and type(loader) == "table" and loader.reads_ahead then
    core.raise("run:steps: sharding.lockstep reads one batch ahead, which a saved state would leave out; give "
      .. "run:steps the loader itself (after run:state it holds that all ranks' loops end together), or pass "
      .. "read_ahead = 0")
  end
end

--- Raises if a loop would save its steps next to an earlier loop's: a resume could not distinguish them.
---@param first integer the step that it begins with
function M.begin_loop(first)
  eviction.begin_loop()
  if core.evict_slow() and not objects and dist.rank() == 0 then
    io.stderr:write("lockstep: --evict-slow has no effect without run:state: ranks compare their work as they agree "
      .. "between steps, and the state is saved first\n")
  end
  if not objects or kept_step == nil or kept_step <= first then return end
  plain.check(not every,
    "run:steps: this loop counts its steps from %d, and a loop before it has saved the state after %d, which a resume "
    .. "could not tell from its own; give all epochs and phases one loop of run:steps, loop over the loader itself to "
    .. "validate, or call run:resume() before the loop", first, kept_step)
  kept_step = nil
end

--- Returns whether any rank was asked to end, and whether the threads of all ranks are done with the save that is under
--- way. Raises an error on all if the loop ends on some ranks only, or if their optimizers differ. Collective.
---@param done integer steps
---@param is_end boolean
---@param fingerprint string of the optimizers, where they are compared
local function agree(done, is_end, fingerprint)
  local asked, ends, goes_on, is_same, is_written = false, nil, nil, true, true
  local letters = (is_end and "x" or "g") .. (core_state.sigterm_came() and "t" or "-") .. background.letter()
  for rank, text in ipairs(agreement.flags(letters .. fingerprint)) do
    asked = asked or text:sub(2, 2) == "t"
    is_written = is_written and text:sub(3, 3) == "d"
    is_same = is_same and text:sub(4) == fingerprint
    if text:sub(1, 1) == "x" then ends = ends or rank - 1 else goes_on = goes_on or rank - 1 end
  end
  if ends and goes_on then
    core.raise(("run:steps: the loop ends on rank %d after %d steps, but continues on rank %d; give every "
      .. "rank the same number of batches, as sharding.dataset { drop_last = true } does"):format(ends, done, goes_on))
  end
  if not is_same then optimizers.compare(("run:steps: after %d steps"):format(done), objects) end
  return asked, is_written
end

--- run:steps calls it between two steps, before the next batch is drawn. It saves if it is time, or if a rank was asked
--- to end. Collective if anything is registered, as after_loading is.
---@param done integer steps
---@param is_end boolean the loop ends here
function M.between_steps(done, is_end)
  if not objects then return end
  core_state.catch_sigterm(true)
  local asked, is_written = agree(done, is_end, optimizers.fingerprint(objects))
  if is_written then background.go_on() end
  local slow = not asked and not is_end and eviction.after_step()
  local must_end = asked or slow
  local is_time = every and done > 0 and (is_end or done % every == 0)
  if memory_every and memory.is_on() and done > 0 and done % memory_every == 0 and not must_end and not is_end then
    optimizers.compare("run:save", objects)
    memory.take(done, saving.share(objects, done, { config = run.progress.config, left_out = left_out }))
  end
  -- The state that the script saved within the step may be older than the step's results.
  local goes_on = is_async and not must_end and not is_end
  if kept_step ~= done and (must_end or is_time) then
    if goes_on then begin_save(background.begin, root(), done, keep) else M.save(done) end
    kept_step = done
  end
  if not goes_on then background.finish() end
  if must_end then
    if slow and slow.ends_agent then torchrun.end_agent() end
    core_state.end_together(slow and slow.exit_code or SIGTERM_EXIT_CODE, ("%s: the state after %d steps is in "
      .. "%s/%s; the same command with --run-dir %s goes on from there"):format(slow and slow.text or "SIGTERM", done,
      root(), folder.name(done), run.dir))
  end
  core_state.catch_sigterm(not is_end)
end

--- run:steps calls it once the loader has returned, before the step begins on any rank.
---@param done integer steps
---@param is_end boolean the loader has none
function M.after_loading(done, is_end)
  if not objects then return end
  agree(done, is_end, "")
  if is_end then M.between_steps(done, true) end
end

--- The program calls it when the script has ended: a loop that was left by a break may have left a save under way.
--- Collective if one is.
function M.finish()
  background.finish()
  memory.finish()
end

return M
