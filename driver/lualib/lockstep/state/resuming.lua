--- Reads a state, and lets the objects go on from it: all of it is checked before anything of theirs is changed.

local agreement = require "lockstep.state.agreement"
local best = require "lockstep.state.best"
local contents = require "lockstep.state.contents"
local core = require "lockstep.core"
local core_safetensors = require "lockstep.core.safetensors"
local dist = require "lockstep.distributed"
local folder = require "lockstep.state.folder"
local files = require "lockstep.core.files"
local memory = require "lockstep.state.memory"
local plain = require "lockstep.plain"
local rows = require "lockstep.state.rows"
local settings = require "lockstep.state.settings"

local M = {}

local function say(text)
  if dist.rank() == 0 then io.stderr:write("lockstep: ", text, "\n") end
end

--- The folders to try, the latest first: this run's own, and where it has none those of `from`.
local function candidates(root, from)
  local found, torn = folder.usable(root)
  if #found == 0 and from then
    for _, place in ipairs { from .. "/state", from } do
      if #found == 0 then found = folder.usable(place) end
    end
    if #found == 0 and #files.list(from) > 0 then found = { { path = from, step = 0, suffix = "from" } } end
    if #found == 0 then error("there is no state in " .. from, 0) end
    for _, one in ipairs(found) do one.is_foreign = true end
  end
  if #found == 0 and torn > 0 then
    error(("%s holds no state but %d that were set aside as torn; restore one from a copy, or start again with "
      .. "another --run-dir"):format(root, torn), 0)
  end
  return found
end

--- The saved tensors by name, if this rank finds all as it should be.
local function read(one)
  local marker = folder.check(one.path, dist.rank(), dist.world_size())
  local saved, owners = {}, {}
  for name in pairs(marker.files) do
    if name:match("%.safetensors$") then
      for tensor_name, tensor in pairs((core_safetensors.read(one.path .. "/" .. name, "safetensors"))) do
        saved[tensor_name] = tensor
        owners[tensor_name] = name:match("^model%-") and "model" or tensor_name:match("^([%w_]+)%.")
      end
    end
  end
  return { marker = marker, tensors = saved, owners = owners }
end

--- Reads the latest state that is complete on every rank. Reports incomplete ones, sets them aside and counts them.
local function read_latest(found)
  local torn, first_problem = {}, nil
  for _, one in ipairs(found) do
    local result, problem = agreement.try(read, one)
    if not problem then
      -- Only now: where none is left all stay as they are.
      for _, other in ipairs(dist.rank() == 0 and torn or {}) do
        say(("run:resume: %s cannot be used: %s; it is kept as %s, and the state before it is used"):format(other.path,
          other.problem, folder.set_aside(other):match("[^/]+$")))
      end
      if dist.rank() == 0 then folder.adopt(one) end
      return result, one, #torn
    end
    one.problem, first_problem = problem, first_problem or problem
    torn[#torn + 1] = one
  end
  core.raise(("run:resume: none of the %d states in %s can be used; of the latest: %s. Restore one from a copy, or "
    .. "start again with another --run-dir"):format(#torn,
    found[1].suffix == "from" and found[1].path or found[1].path:match("^(.*)/"), first_problem))
end

--- Reads the newest snapshot in memory that is whole, unless this run's own state on the disk is newer.
---@return table? state
---@return state.Folder?
local function read_memory(found)
  local on_disk = found[1] and not found[1].is_foreign and found[1].step or -1
  local tries = {}
  while true do
    local snapshot = memory.newest()
    -- Twice: a share that was damaged here may be whole on another machine.
    local count = snapshot and (tries[snapshot.step] or 0)
    if not snapshot or snapshot.step < on_disk or count == 2 then return nil end
    tries[snapshot.step] = count + 1
    local state, is_too_large = memory.read(snapshot)
    if is_too_large then return nil end
    if state then return state, { path = "memory", step = snapshot.step, suffix = "", is_in_memory = true } end
  end
end

--- The values by name, decoded: all of them before anything is changed. Then how random numbers go on.
local function take_values(state, own)
  local marker, values = state.marker, {}
  local saved = marker.values[rows.NAME] == "shared" and contents.take_value(state.tensors, rows.NAME) or nil
  local random = rows.plan(saved, marker.world_size, own)
  for name, kind in pairs(marker.values) do
    if kind == "shared" then
      values[name] = { value = contents.take_value(state.tensors, name) }
    elseif contents.is_random(name) then
      values[name] = random.source and { value = contents.take_value(state.tensors, name, random.source) }
        or { begins_anew = true }
    elseif marker.world_size == dist.world_size() then
      values[name] = { value = contents.take_value(state.tensors, name, dist.rank()) }
    elseif own[name] ~= nil then
      local resuming = dist.world_size() == 1 and "1 rank" or dist.world_size() .. " ranks"
      error(('"%s" was another on each of the %d ranks that saved it, and %s cannot share that out; resume on '
        .. '%d, or leave it out: run:resume { without = { "%s" } }'):format(name, marker.world_size, resuming,
        marker.world_size, name), 0)
    end
  end
  return values, random
end

--- Raises where the state is not of these objects.
local function check_fit(collected, state, values, own)
  local problem = contents.mismatch(collected, state.tensors)
  local present, has_stages = {}, {}
  for _, one in ipairs(collected.tensors) do
    present[one.name] = true
    has_stages[one.object or ""] = has_stages[one.object or ""] or one.stage ~= nil
  end
  for _, name in ipairs(problem == "" and plain.keys(state.owners) or {}) do
    local owner = own[state.owners[name]]
    local is_value = name:find("^lockstep%.values%.") or name:find("^lockstep%.rank%-")
    local may_lack = present[name] or has_stages[state.owners[name]] -- other ranks have the other stages
    if owner and not is_value and not may_lack and contents.kind_of(name, owner) == "module" then
      problem = ('it has a tensor "%s", which the script does not have now'):format(name)
      break
    end
  end
  for _, name in ipairs(plain.keys(own)) do
    if problem == "" and contents.kind_of(name, own[name]) ~= "module" then
      if not values[name] then
        problem = ('it has no "%s", which the script has now'):format(name)
      else
        problem = contents.value_mismatch(name, own[name], values[name].value)
      end
    end
  end
  if problem ~= "" then
    error(problem .. "; resume with the script and the settings that saved it (config.json in the run's folder), "
      .. 'leave an object out with run:resume { without = { "optimizer" } }, or start again with another --run-dir', 0)
  end
end

--- The objects but for those of `without`; and which of those the script does not register.
local function read_without(objects, without)
  local own, unknown = plain.copy(objects), {}
  for _, name in ipairs(without) do
    if objects[name] == nil then unknown[#unknown + 1] = tostring(name) end
    own[name] = nil
  end
  return own, unknown
end

--- Raises if the state has objects that are not registered, or if `without` names an unknown object.
local function check_names(values, saved, objects, without)
  local is_left_out, left_out_before = {}, settings.left_out_names(values)
  for _, name in ipairs(without) do
    is_left_out[name] = true
    if objects[name] == nil and not saved[name] and not left_out_before[name] then
      error(('without names "%s", which is not registered, and not in it'):format(tostring(name)), 0)
    end
  end
  local lost = {}
  for _, name in ipairs(plain.keys(saved)) do
    if objects[name] == nil and not is_left_out[name] then lost[#lost + 1] = ('"%s"'):format(name) end
  end
  if #lost > 0 then
    local names = table.concat(lost, ", ")
    error(("it has %s, which the script does not register now and the next state would lack; register what was saved, "
      .. "or leave it out: run:resume { without = { %s } }"):format(names, names), 0)
  end
end

--- Restores what objects of the script's own, and generators, may still refuse. Notes in `undo` how to take that back.
local function restore_what_may_refuse(plan, own, step, undo)
  for _, name in ipairs(plain.keys(own)) do
    if contents.may_refuse(name, own[name]) then
      undo[#undo + 1] = { name = name, fn = contents.keep_value(name, own[name], plan.collected.values[name]) }
      for _, line in ipairs(contents.restore_value(name, own[name], plan.values[name].value)) do
        plan.lines[#plan.lines + 1] = line
      end
    end
  end
  for _, name in ipairs(plain.keys(plan.values)) do
    if contents.is_random(name) then
      undo[#undo + 1] = { name = name, fn = contents.keep_random(name) }
      contents.restore_random(name, plan.values[name].value, step, plan.random.leader)
      plan.begins_anew = plan.begins_anew or plan.values[name].begins_anew
    end
  end
end

--- Takes all of it back; returns what kept which rank from that: "" where nothing did. Collective.
local function take_back(undo)
  local problems = ""
  for i = #undo, 1, -1 do
    local ok, message = pcall(undo[i].fn)
    if not ok then
      problems = problems .. ('; "%s" on rank %d could not be restored: %s'):format(undo[i].name, dist.rank(),
        agreement.plain(message))
    end
  end
  return table.concat(agreement.texts(problems))
end

--- Restores all else: nothing of it can fail on one rank and be done on another.
local function restore_the_rest(plan, own, saved)
  contents.restore_tensors(plan.collected, saved)
  for _, name in ipairs(plain.keys(own)) do
    if plan.values[name] and not contents.may_refuse(name, own[name]) then
      for _, line in ipairs(contents.restore_value(name, own[name], plan.values[name].value)) do
        plan.lines[#plan.lines + 1] = line
      end
    end
  end
end

--- Loads the latest state in `root` into the objects. Returns the number of steps done, or nil without a state, and the
--- names of `without` that the script does not register, and whether it came from memory. Collective.
---@param objects table<string, any>
---@param opts {root: string, from: string?, without: string[], config: table?} config: the run's
---@return integer?
---@return string[]
---@return boolean
function M.resume(objects, opts)
  local own, unknown = read_without(objects, opts.without)
  -- Rank 0 lists: what another sees of a folder may be late.
  local found = agreement.together("run:resume", function()
    return dist.rank() == 0 and candidates(opts.root, opts.from) or {}
  end)
  found = agreement.values(found)[1]
  local state, one, torn = read_memory(found)
  if not state and #found == 0 then
    plain.check(#unknown <= 0,
      'run:resume: without names "%s", which is not registered, and there is no state', unknown[1])
    best.begin(nil)
    require("lockstep.log").go_on_from(0)
    return nil, {}, false
  end
  if not state then state, one, torn = read_latest(found) end
  local step, where = state.marker.step, one.path
  local plan = agreement.together("run:resume: the state in " .. where .. " does not fit", function()
    local collected = contents.collect(own)
    local values, random = take_values(state, own)
    check_names(values, contents.object_names(state.marker.values), objects, opts.without)
    check_fit(collected, state, values, own)
    return { collected = collected, values = values, random = random, lines = {}, begins_anew = false }
  end)
  local undo = {}
  local ok, message = pcall(agreement.together, "run:resume: " .. where, restore_what_may_refuse, plan, own, step, undo)
  if not ok then error(message .. take_back(undo), 0) end
  agreement.together("run:resume: " .. where, restore_the_rest, plan, own, state.tensors)
  contents.restore_buckets(own, plan.values)
  best.begin(not one.is_foreign and best.read(plan.values) or nil)
  table.sort(plan.lines)
  for _, line in ipairs(plan.lines) do say("run:resume: " .. line) end
  if plan.begins_anew then
    say(("run:resume: the %d ranks that saved had different random numbers; %s"):format(state.marker.world_size,
      plan.random.rows))
  elseif plan.random.line then
    say("run:resume: " .. plan.random.line)
  end
  local changes = settings.config_changes(plan.values, opts.config)
  require("lockstep.log").go_on_from(step, ("resumed from %s, after %d steps%s%s"):format(where, step,
    torn and torn > 0 and (" (%d later states could not be used)"):format(torn) or "",
    #changes > 0 and "; the configuration differs: " .. table.concat(changes, ", ") or ""))
  return step, unknown, one.is_in_memory == true
end

--- Loads the modules of the best state in `root` into those among the objects; returns the state's record, or nil
--- without a state. Collective.
---@param objects table<string, any>
---@param root string
---@return state.Best?
function M.load_best(objects, root)
  local found = agreement.together("run:load_best", function()
    local record = best.record()
    if dist.rank() ~= 0 or not record then return {} end
    local usable = folder.usable(root)
    for _, one in ipairs(usable) do
      if one.step == record.step then return { one.path } end
    end
    if not usable[1] then
      error(("the best state, of a %s of %g after %d steps, is gone from %s; restore it from a copy, or go on with the "
        .. "last weights without this call"):format(record.metric, record.value, record.step, root), 0)
    end
    return { usable[1].path } -- a run that was killed has replaced the best since it was recorded
  end)
  local path = agreement.values(found)[1][1]
  if not path then return nil end
  local modules = {}
  for name, object in pairs(objects) do
    if contents.kind_of(name, object) == "module" then modules[name] = object end
  end
  local state = agreement.together("run:load_best", read, { path = path })
  local plan = agreement.together("run:load_best: the state in " .. path .. " does not fit", function()
    local collected = contents.collect(modules)
    check_fit(collected, state, {}, modules)
    return { collected = collected, record = best.of_tensors(state.tensors) }
  end)
  agreement.together("run:load_best: " .. path, contents.restore_tensors, plan.collected, state.tensors)
  return plan.record
end

return M
