--- The run that a script is part of: its configuration, its folder, its steps.
---
---     local config = run.config { model = { hidden = 64 }, steps = 400 }   -- --set model.hidden=128
---     for step, batch in run:steps(loader, config.steps) do ... end

local agreement = require "lockstep.state.agreement"
local core = require "lockstep.core"
local core_state = require "lockstep.core.state"
local dist = require "lockstep.distributed"
local files = require "lockstep.core.files"
local nonfinite = require "lockstep.run.nonfinite"
local options = require "lockstep.options"
local plain = require "lockstep.plain"
local precision = require "lockstep.run.precision"
local terminal = require "lockstep.log.terminal"
local torch = require "lockstep.torch"

---@class lockstep.run
---@field dir string the run's folder, the same on every rank; made, and kept for this run alone, when first asked for
---@field args string[] what stood after the script on the command line
---@field restarts integer how often the run's launcher has started it again after a failure; 0 at first
local M = {}
M.restarts = core.restarts()

--- The loop's state, which run:steps fills. Private to the library.
---@class lockstep.run.Progress
---@field step integer? the step that is under way, or was last, from 0
---@field is_under_way (fun(): boolean)? from a loop's first step to its end: whether no break or error has left it
---@field total integer? steps that the loop will take, where known
---@field data_seconds number spent waiting for the loader since it was last asked
---@field saving_seconds number spent waiting for the end of a save in the background, since it was last asked
---@field batch table the loader's first value of the step under way, at 1, for messages; held weakly
---@field resumed integer? steps that run:resume found done, until a loop has taken them up
---@field config table? what run.config returned last
---@field least_ranks integer? run.elastic's min
---@field num_shared integer? micro-batches or rows of a global batch, which elastic:share divided among the ranks last
---@field on_step table<fun(step: integer?), true> called before a step's data is loaded, and with nil after the last
M.progress = { step = nil, total = nil, data_seconds = 0, saving_seconds = 0,
  batch = setmetatable({}, { __mode = "v" }), resumed = nil, on_step = {} }

-- Configuration -----------------------------------------------------------------------------------

--- Returns `defaults` overridden by `settings`, {{path, text}, ...}, in their order. A value keeps the type of its
--- default: text becomes a number, a boolean, or, split at commas, an array. `defaults` does not change. Reading a
--- missing key is an error.
---
---     run.merge({ text = { hidden = 64 } }, { { "text.hidden", "128" } }).text.hidden   -- 128
---@generic T: table
---@param defaults T
---@param settings string[][]
---@param presets table<string, table<string, table>>? words that stand for values of a group: see run.config
---@return T
function M.merge(defaults, settings, presets) return require "lockstep.run.merge"(defaults, settings, presets) end

--- Raises unless the values at these paths are whole numbers that are large enough.
---@param config table
---@param least table<string, integer> by path
local function check_least(config, least)
  for _, path in ipairs(plain.keys(least)) do
    local value = config
    for key in path:gmatch "[^.]+" do value = type(value) == "table" and rawget(value, key) or nil end
    if value == nil then core.raise(('run.config: at_least names "%s", which the configuration lacks'):format(path)) end
    if not plain.is_whole(value, least[path]) then
      core.raise_usage(("run.config: %s must be a whole number of at least %d, not %s"):format(path, least[path],
        tostring(value)))
    end
  end
end

--- Writes the configuration, but not over the config of a model: a folder of weights would lose what they are.
local function write_config(path, config)
  local ok, there = pcall(core.json_decode, plain.read_file(path) or "{}", path)
  if ok and type(there) == "table" and there.architectures and there.model_type then
    core.raise(("run.config: %s is a model's; give the run a folder of its own: --run-dir"):format(path))
  end
  core.write_file(path, { core.json_encode(config, 2), "\n" })
end

--- Returns the script's configuration: `defaults`, overridden by --set on the command line (see run.merge). Rank 0
--- writes the result to config.json in the run's folder.
---
--- The key `nonfinite` is special: it is for steps whose loss or gradient norm is NaN or infinite. "stop", the default,
--- is an error; "skip" and "go_on" only report and count such steps (see run:finite).
---
--- `at_least`: the values at these paths must be whole numbers, no less than these. Anything else is an error at the
--- start, and not in the middle of the run:
---
---     local config = run.config({ steps = 400, lora = { r = 16 } }, { at_least = { steps = 1, ["lora.r"] = 0 } })
---
--- `presets`: words that the command line may give to a group of keys, and the values that each stands for. With
--- { parallel = { fully_shard = { fully_shard = true } } } `--set parallel=fully_shard` sets parallel.fully_shard.
---
--- The ranks compare their values. `per_rank`: the values at these paths may differ, such as a folder of each machine.
--- Collective.
---@generic T: table
---@param defaults T
---@param opts {at_least: table<string, integer>?, per_rank: string[]?, presets: table<string, table<string, table>>?}?
---@return T
function M.config(defaults, opts)
  local o = options.read("run.config", opts, { at_least = {}, per_rank = {}, presets = {} })
  local config = M.merge(defaults, core.settings(), o.presets)
  check_least(config, o.at_least)
  for _, argument in ipairs(core.arguments()) do
    local key = argument:match "^([%w_%.]+)="
    if key and rawget(config, key:match "^[^.]+") ~= nil then
      core.raise_usage(('run.config: the argument "%s" sets nothing; write --set %s'):format(argument, argument))
    end
  end
  require("lockstep.state.settings").compare(config, o.per_rank)
  nonfinite.configure(config)
  M.progress.config = config
  if dist.rank() == 0 then write_config(M.dir .. "/config.json", config) end
  return config
end

--- Returns the dtype of a model's weights for a precision: "bf16", "float32", "float64", or "auto", which is "bf16" on
--- GPUs (of compute capability 8.0 or newer) and "float32" elsewhere. Rank 0 prints which.
---
---     local config = run.config { precision = "auto" }   -- --set precision=bf16
---     local net = models.load(dir, { device = dist.device(), dtype = run.dtype(config.precision) })
---
--- In "bf16" weights, activations and gradients are bfloat16, and the optimizer keeps a float32 copy of each weight,
--- its master.
---@param name "auto"|"bf16"|"float32"|"float64"
---@return torch.dtype
function M.dtype(name) return precision.dtype(name) end

local function check_colon(self, name)
  if self ~= M then core.raise(("run:%s is called with a colon: run:%s()"):format(name, name)) end
end

-- Steps -------------------------------------------------------------------------------------------

local has_said_that_it_begins_anew = M.restarts == 0

--- Says that a run which was started again does not continue from a state.
local function say_that_it_begins_anew()
  if has_said_that_it_begins_anew or dist.rank() ~= 0 then return end
  has_said_that_it_begins_anew = true
  io.stderr:write(("lockstep: restart %d begins again with step 0: no saved state was resumed (run:state { ... }, "
    .. "{ every = n } saves one, and run:resume() loads it)\n"):format(M.restarts))
end

local function check_no_loop()
  plain.check(not core_state.in_loop(),
    "run:steps: another loop of run:steps is under way, whose steps these would count as; loop over the loader "
    .. "itself, as in: for batch in loader do")
end

--- Iterates over the batches of `loader` and numbers the steps, from 0 or from where run:resume continues. Measures how
--- long the loop waits for data.
---
---     for step, batch in run:steps(loader, total) do ... end
---
--- After run:state it is collective: between two steps the ranks save if it is time, or if SIGTERM asked one of them to
--- end. An error names ranks whose loops end at different steps. It is the loop of the training: another loop inside it
--- is an error, in a coroutine too. So is a later loop that would save earlier steps than are saved.
---@param loader function an iterator: called until it returns nil
---@param total integer? steps of the run, those before run:resume included; also for the time left. 0: a line says so
---@return fun(): integer?, ...
function M:steps(loader, total)
  if self ~= M then core.raise("run:steps is called with a colon: run:steps(loader, total)") end
  plain.check(plain.is_callable(loader),
    "run:steps: the loader must be a function that returns the next batch, not a %s", type(loader))
  plain.check(total == nil or plain.is_whole(total, 0), "run:steps: total must be a whole number of steps, not %s",
    plain.shown(total, "number"))
  if total == 0 and dist.rank() == 0 and not package.loaded["lockstep.dry_run"] then
    io.stderr:write "lockstep: run:steps: total is 0: no step runs\n"
  end
  check_no_loop()
  local state = require "lockstep.state"
  state.check_loader(loader)
  local step = (M.progress.resumed or 0) - 1
  if M.progress.resumed == nil and M.progress.step == nil then say_that_it_begins_anew() end
  M.progress.total, M.progress.resumed = total, nil
  local has_begun, is_for = false, false
  -- Only a `for` loop shows whether it was left.
  local function is_under_way() return not is_for or core_state.in_loop() end
  local function tell(next_step)
    if next_step == nil then
      core_state.end_loop()
      M.progress.is_under_way, M.progress.batch[1] = nil, nil
    end
    for on_step in pairs(M.progress.on_step) do on_step(next_step) end
  end
  local function count(started, first, ...)
    M.progress.data_seconds = M.progress.data_seconds + (core.now() - started)
    state.after_loading(step + 1, first == nil)
    if first == nil then return tell(nil) end
    step = step + 1
    M.progress.step, M.progress.is_under_way = step, is_under_way
    M.progress.batch[1] = first
    core.set_step(step)
    return step, first, ...
  end
  local function next_step()
    if not has_begun then
      check_no_loop() -- that has begun since
      M.progress.saving_seconds = 0
      state.begin_loop(step + 1)
      nonfinite.begin_loop()
      core_state.begin_loop(next_step)
      M.progress.is_under_way, is_for = nil, core_state.in_loop()
    end
    if has_begun and core.verify_every() then require("lockstep.sharding.verification").between_steps(step) end
    has_begun = true
    local is_end = total ~= nil and step + 1 >= total
    state.between_steps(step + 1, is_end)
    if is_end then return tell(nil) end
    tell(step + 1)
    return count(core.now(), loader())
  end
  return next_step
end

--- Returns whether a step's numbers are finite on every rank, so that all ranks step or none does.
---
---     local norm = optim.clip_grad_norm(model:parameters(), 1)
---     if run:finite { loss = loss, grad_norm = norm } then optimizer:step() end
---
--- A value that is NaN or infinite on any rank is reported with step, rank and batch, and handled as `nonfinite` in
--- run.config says: "stop" (the default) raises an error on every rank; "skip" returns false; "go_on" returns true. The
--- step line and metrics.jsonl count such steps. log.step checks what it reports (fields whose names end in loss or
--- norm), on rank 0 alone and after the step.
---
--- Collective: every rank calls it once per step. Reads tensors from their device.
---@param values table<string, number|torch.Tensor> tensors of one element
---@return boolean
function M:finite(values)
  check_colon(self, "finite")
  plain.check(type(values) == "table",
    "run:finite: the values must be a table, as in {loss = loss}, not a %s", type(values))
  local numbers = {}
  for name, value in pairs(values) do
    local number = torch.is_tensor(value) and value:numel() == 1 and value:item() or value
    if type(number) ~= "number" then
      core.raise(("run:finite: %s must be a number or a tensor of one element, not %s"):format(tostring(name),
        torch.is_tensor(value) and tostring(value.shape) or "a " .. type(value)))
    end
    numbers[tostring(name)] = number
  end
  return nonfinite.check_together(M.progress.step or 0, numbers, M.progress.batch[1])
end

-- Work of one rank ---------------------------------------------------------------------------------

--- Calls `fn(...)` and returns its results. Other ranks may wait for this one meanwhile, longer than --timeout: that
--- time does not count.
---
---     if dist.rank() == 0 then run.alone(export, model) end
---     dist.barrier()
---
--- Use it for work of one rank, such as evaluation or export; fn must call no collective. A rank that dies or is
--- stopped in fn ends the run as usual.
---@generic T
---@param fn fun(...: T): any ...
---@param ... T
---@return any ...
function M.alone(fn, ...)
  return core.alone(nil, fn, ...)
end

-- Another number of ranks -------------------------------------------------------------------------

--- Says with how many ranks the script can go on: from `min` to `max`, any number without `max`. With fewer or more,
--- the run ends with exit code 2. The result shares the global batch out over the ranks of now, so that it stays the
--- same when a run goes on with others.
---
---     local elastic = run.elastic { min = 1, max = 8 }
---     local rows, micro_batches = elastic:share(config.batch, config.micro_batch)   -- of this rank
---     for step, batches in run:steps(function() return draw(micro_batches) end, config.steps) do
---
--- run:resume, sharding.dataset and data.loader continue on any number of ranks. Collective: every rank gives the same.
---@param opts {min: integer, max: integer?}
---@return run.Elastic
function M.elastic(opts) return require "lockstep.run.elastic"(opts) end

-- State -------------------------------------------------------------------------------------------

--- Registers objects for run:save and run:resume: modules, optimizers, datasets, objects with state_dict() and
--- load_state_dict(state), and plain tables of values. The step and the random number generators are saved too.
---
---     run:state({ model = model, optimizer = optimizer, data = dataset, best = best }, { keep = 3, every = 100 })
---
--- `keep`: the number of latest states to keep; older ones are removed. `every`: run:steps saves after every so many
--- steps, and at the end. A run that SIGTERM asks to end saves after the present step, and ends with exit code 143.
---
--- `async`: a save of `every` copies the state between two steps, and a thread writes it while the next steps run. One
--- is under way at a time; the next waits, and the step line says how long. A write that failed is an error at the next
--- step or save, on every rank. All other saves, and the end of the run, wait for it.
---
--- `memory_every`: after every so many steps the ranks leave a snapshot of the state in memory, which a small process
--- of each machine keeps (`lockstep keep`). run:resume takes the newest that is whole, in memory or on the disk.
--- `memory_limit_gib`: an error if a machine's snapshots need more; default: half of its memory. Collective.
---@param objects table<string, any>
---@param opts {keep: integer?, every: integer?, async: boolean?, memory_every: integer?, memory_limit_gib: number?}?
function M:state(objects, opts)
  check_colon(self, "state")
  require("lockstep.state").register(objects, opts)
end

--- Returns whether it is time for work of every n-th step: in the body of a loop of run:steps, after each n steps, and
--- in the last step of its total.
---
---     if run:every(100) then log.record("validation", { loss = evaluate() }) end
---@param n integer
---@return boolean
function M:every(n)
  check_colon(self, "every")
  plain.check(plain.is_whole(n, 1), "run:every: expected a whole number of steps, at least 1, got %s", n)
  plain.check(M.progress.is_under_way and M.progress.is_under_way(),
    "run:every: call it in the body of a loop of run:steps")
  local done = M.progress.step + 1
  return done % n == 0 or done == M.progress.total
end

--- Returns how many steps are done, as the option `step` says, or the loop that is under way.
local function steps_done(caller, step)
  if step == nil and M.progress.is_under_way and M.progress.is_under_way() then step = M.progress.step + 1 end
  plain.check(step ~= nil,
    "%s: outside of a loop of run:steps say how many steps are done, in the option step = 100", caller)
  if not plain.is_whole(step, 0) or step > 2 ^ 53 then
    core.raise(("%s: step must be a whole number of steps that are done, from 0 to 2^53, not %s"):format(caller,
      plain.shown(step, "number")))
  end
  return step
end

--- Saves the objects of run:state in the run's folder; returns the path. Within a loop of run:steps the present step
--- counts as done: call it at the end of the loop's body. Elsewhere `step` is the number of steps done.
---
---     if batch.is_last_of_epoch then run:save() end
---
--- Collective.
---@param opts {step: integer?}?
---@return string path
function M:save(opts)
  check_colon(self, "save")
  local step = options.read("run:save", opts, { step = options.optional }).step
  return require("lockstep.state").save(steps_done("run:save", step))
end

--- Saves the objects of run:state in the run's folder `best` if a metric is better than it ever was, in place of the
--- best before; returns whether it was. Call it where run:save may be called. The folder is a state as run:save writes
--- it, so run:resume { from = "runs/x/best" } starts from it.
---
---     if run:every(100) then run:keep_best("loss", evaluate()) end
---
--- `mode`: "min" keeps the state with the lowest value, "max" the one with the highest. A metric whose name ends in
--- "loss" defaults to "min"; any other needs it. NaN and infinity are never the best. `step`: as for run:save.
---
--- The best value so far is saved with each state, and restored by run:resume. Collective: every rank passes the same
--- value, or every rank gets an error.
---@param metric string
---@param value number|torch.Tensor
---@param opts {mode: "min"|"max"|nil, step: integer?}?
---@return boolean is_best
function M:keep_best(metric, value, opts)
  check_colon(self, "keep_best")
  local o = options.read("run:keep_best", opts, { mode = options.optional, step = options.optional })
  return require("lockstep.state").keep_best(metric, value, o.mode, steps_done("run:keep_best", o.step))
end

--- Loads the weights that run:keep_best kept into the modules of run:state; returns their value of the metric and the
--- steps that were done, or nil if this run has kept none. Optimizers and all else stay as they are: call it after the
--- loop.
---
---     run:load_best()
---     models.save(model, run.dir .. "/model")
---
--- Collective.
---@return number? value
---@return integer? step
function M:load_best()
  check_colon(self, "load_best")
  plain.check(not core_state.in_loop(),
    "run:load_best: within a loop of run:steps, whose optimizer belongs to other weights; call it after the loop")
  local record = require("lockstep.state").load_best()
  if record then return record.value, record.step end
end

--- Restores the latest state in the run's folder into the objects that run:state registered, on any number of ranks.
--- Returns the number of steps done, or nil without a state. run:steps continues from there. A damaged state is set
--- aside and the one before it is loaded; a state of another model is an error.
---
---     run:resume()
---
--- `from`: the folder of another run, or of one state, to start from if this run has none. `without`: names of
--- registered objects to leave as they are, or of saved objects to leave out. A saved object that is not registered is
--- an error otherwise. Collective.
---@param opts {from: string?, without: string[]?}?
---@return integer?
function M:resume(opts)
  check_colon(self, "resume")
  plain.check(not core_state.in_loop(),
    "run:resume: within a loop of run:steps, which would go on at its own step with what the state holds of another; "
    .. "call it before the loop, or leave that by break, resume, and begin another")
  M.progress.resumed = require("lockstep.state").resume(opts)
  return M.progress.resumed
end

for _, name in ipairs { "config", "elastic", "finite", "state", "save", "keep_best", "load_best", "resume" } do
  M[name] = agreement.counted(M[name])
end

-- The folder ----------------------------------------------------------------------------------------

--- Locks the folder for this run, on rank 0. Two runs in one folder would mix their metrics and replace each other's
--- states.
local function claim(folder)
  local claimed, what = files.lock(folder)
  if claimed == false then
    core.raise(("another run is writing to the run's folder %s%s; wait for its end, or give this one another --run-dir")
      :format(folder, what == "" and "" or (" (%s)"):format(what)))
  elseif claimed == nil then
    io.stderr:write(("lockstep: warning: the run's folder %s cannot be locked (%s): nothing keeps another run from "
      .. "writing there\n"):format(folder, what))
  end
end

setmetatable(M, {
  __index = function(_, key)
    if key == "dir" then
      core.make_folder(core.run_dir())
      if dist.rank() == 0 then
        claim(core.run_dir())
        local is_dry_run = package.loaded["lockstep.dry_run"] ~= nil -- its folder is removed at the end
        if not is_dry_run then terminal.print_line("run folder: " .. core.run_dir()) end
      end
      M.dir = core.run_dir()
      return M.dir
    elseif key == "args" then
      M.args = core.arguments()
      return M.args
    end
  end,
})

return M
