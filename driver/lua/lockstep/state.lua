--- The state of a run: saved, and gone on from. Scripts reach it as run:state, run:save and run:resume.
---
--- Every rank calls each of these functions alike; what one rank cannot do is an error on all, the same on each.

local contents = require "lockstep.state.contents"
local core = require "lockstep.core"
local core_safetensors = require "lockstep.core.safetensors"
local core_sharding = require "lockstep.core.sharding"
local core_state = require "lockstep.core.state"
local dist = require "lockstep.distributed"
local files = require "lockstep.core.files"
local folder = require "lockstep.state.folder"
local options = require "lockstep.options"
local run = require "lockstep.run"

local M = {}

--- Saving takes as long as the slowest disk: ranks wait this long for each other, or --timeout where that is more.
local TIMEOUT_S = 1800
--- What a shell says of a process that SIGTERM ended.
local SIGTERM_EXIT_CODE = 143

local objects ---@type table<string, any>?
local keep, every = 3, nil ---@type integer, integer?
local saving, stepping ---@type lockstep.core.sharding.Gathering, lockstep.core.sharding.Gathering
local compared = false -- the ranks' tensors, once for what run:state registered
local last_step ---@type integer? of the state saved or resumed last

local function root() return run.dir .. "/state" end

local function check_registered(caller)
  if not objects then
    core.raise(caller .. ": nothing was registered; call run:state { model = model, optimizer = optimizer } before")
  end
end

-- Agreement -------------------------------------------------------------------------------------------

--- What an error says, without the script's line, which the error over it has.
local function plain(message) return (tostring(message):gsub("^[^\n]-%.lua:%d+: ", "")) end

--- Calls fn(...) on this rank, and where it fails on any raises that error on all. Collective.
local function together(caller, fn, ...)
  local ok, result = pcall(fn, ...)
  for rank, text in ipairs(saving:gather(ok and "" or plain(result))) do
    if text ~= "" then
      core.raise(dist.world_size() == 1 and ("%s: %s"):format(caller, text)
        or ("%s: rank %d: %s"):format(caller, rank - 1, text))
    end
  end
  return result
end

--- A value of every rank, by rank. Collective.
local function gather(value)
  local values = saving:gather((core_state.encode(value, "run:save")))
  for i, bytes in ipairs(values) do values[i] = core_state.decode(bytes, {}, "run:save") end
  return values
end

-- Registering -----------------------------------------------------------------------------------------

--- See run:state.
---@param given table<string, any>
---@param opts {keep: integer?, every: integer?}?
function M.register(given, opts)
  local o = options.read("run:state", opts, { keep = 3, every = options.optional })
  for _, name in ipairs { "keep", "every" } do
    local value = o[name]
    if value and not (type(value) == "number" and value >= 1 and value % 1 == 0) then
      core.raise(("run:state: %s must be a whole number of at least 1, not %s"):format(name, tostring(value)))
    end
  end
  if type(given) ~= "table" or next(given) == nil then
    core.raise("run:state: the objects come in a table by name, as in run:state { model = model }")
  end
  for name, object in pairs(given) do
    if type(name) ~= "string" or not name:match("^[%w_]+$") then
      core.raise(('run:state: "%s" is no name: letters, digits and _ make one'):format(tostring(name)))
    end
    contents.kind_of(name, object)
  end
  objects, keep, every, last_step, compared = given, o.keep, o.every, nil, false
  saving = saving or core_sharding.gathering("run:save", TIMEOUT_S)
  stepping = stepping or core_sharding.gathering("run:steps")
  core_state.announce_saving()
end

-- Saving ----------------------------------------------------------------------------------------------

local function bytes_of(tensor) return tensor:numel() * tensor:element_size() end

--- Which rank writes which tensor: the largest first, each to the rank with the least so far.
local function share_out(tensors, world)
  local by_size, load, writer = {}, {}, {}
  for i, one in ipairs(tensors) do by_size[i] = { name = one.name, bytes = bytes_of(one.tensor) } end
  table.sort(by_size, function(a, b)
    if a.bytes ~= b.bytes then return a.bytes > b.bytes end
    return a.name < b.name
  end)
  for rank = 1, world do load[rank] = 0 end
  for _, one in ipairs(by_size) do
    local least = 1
    for rank = 2, world do
      if load[rank] < load[least] then least = rank end
    end
    load[least], writer[one.name] = load[least] + one.bytes, least - 1
  end
  return writer
end

local function file_name(kind, rank, world) return ("%s-%05d-of-%05d.safetensors"):format(kind, rank + 1, world) end

--- What PyTorch's distributed checkpoint reads beside the tensors: each begins at its own beginning.
local function metadata_of(tensors)
  local parts = {}
  for name, tensor in pairs(tensors) do
    local zeros = {}
    for dim = 1, tensor:dim() do zeros[dim] = "0" end
    parts[#parts + 1] = ('%s:{"saved_offsets":[%s]}'):format(core.json_encode(name), table.concat(zeros, ","))
  end
  table.sort(parts)
  return { format = "pt", DCP_VERSION = "1.0", DCP_SHARDING_INFO = "{" .. table.concat(parts, ",") .. "}" }
end

--- Raises, on every rank, unless all have the same tensors.
local function check_same_tensors(tensors)
  local lines = {}
  for i, one in ipairs(tensors) do
    lines[i] = ("%s %s %s"):format(one.name, tostring(one.tensor.dtype), tostring(one.tensor.shape))
  end
  local text = table.concat(lines, "\n")
  local prints = saving:gather(select(2, files.checksum_of { text }) .. #text)
  for rank = 2, #prints do
    if prints[rank] ~= prints[1] then
      local theirs = gather(lines)
      local i = 1
      while theirs[1][i] == theirs[rank][i] do i = i + 1 end
      core.raise(("run:save: ranks 0 and %d do not hold the same tensors: rank 0 has %s where rank %d has %s; register "
        .. "the same objects on every rank"):format(rank - 1, theirs[1][i] or "none", rank - 1,
        theirs[rank][i] or "none"))
    end
  end
end

--- Raises, on every rank, where a tensor that is written once is not the same on all: the first save of a run looks.
local function check_equal_tensors(tensors)
  local own = {}
  for i, one in ipairs(tensors) do own[i] = select(2, files.checksum_of { one.tensor }) end
  local prints = gather(own)
  for rank = 2, #prints do
    for i, one in ipairs(tensors) do
      if prints[rank][i] ~= prints[1][i] then
        core.raise(('run:save: "%s" holds other values on rank %d than on rank 0, and is written once; '
          .. "sharding.data_parallel keeps replicas alike"):format(one.name, rank - 1))
      end
    end
  end
end

--- "shared" or "per_rank" by name, alike on every rank.
local function compare_values(values)
  local own, kinds = {}, {}
  for name, value in pairs(values) do own[name] = contents.fingerprint(value) end
  for _, theirs in ipairs(gather(own)) do
    for name, fingerprint in pairs(theirs) do
      local same = own[name] == fingerprint
      kinds[name] = kinds[name] ~= "per_rank" and same and "shared" or "per_rank"
    end
  end
  return kinds
end

--- Writes this rank's part; returns its files by name, with bytes and checksum, and where all of the model's tensors
--- are.
local function write_part(path, tensors, values, kinds)
  local rank, world = dist.rank(), dist.world_size()
  local writer = share_out(tensors, world)
  local parts, weights = { model = {}, state = {} }, {}
  for _, one in ipairs(tensors) do
    local kind = one.is_model and "model" or "state"
    if one.is_model then
      weights[one.name] = { file = file_name(kind, writer[one.name], world), bytes = bytes_of(one.tensor) }
    end
    if writer[one.name] == rank then parts[kind][one.name] = one.tensor end
  end
  for name, value in pairs(values) do
    if kinds[name] == "per_rank" then contents.put_value(parts.state, name, value, rank) end
    if kinds[name] == "shared" and rank == 0 then contents.put_value(parts.state, name, value) end
  end
  local written = {}
  for kind, part in pairs(parts) do
    local name = file_name(kind, rank, world)
    local bytes, crc32 = core_safetensors.write(path .. "/" .. name, part, metadata_of(part), "safetensors")
    written[name] = { bytes = bytes, crc32 = crc32 }
  end
  return { files = written, weights = weights }
end

--- What Hugging Face's loaders read first.
local function write_index(path, weights)
  local map, total = {}, 0
  for name, weight in pairs(weights) do map[name], total = weight.file, total + weight.bytes end
  local name = "model.safetensors.index.json"
  core.write_file(path .. "/" .. name, { core.json_encode({ metadata = { total_size = total }, weight_map = map }, 2) })
  local bytes, crc32 = files.checksum(path .. "/" .. name)
  return name, { bytes = bytes, crc32 = crc32 }
end

--- See run:save.
---@param step integer steps that are done
---@return string path
function M.save(step)
  check_registered("run:save")
  local is_first = dist.rank() == 0
  local collected = together("run:save", contents.collect, objects)
  check_same_tensors(collected.tensors)
  if not compared then check_equal_tensors(collected.tensors) end
  compared = true
  for _, values in ipairs { contents.bucket_values(objects), contents.random_values() } do
    for name, value in pairs(values) do collected.values[name] = value end
  end
  local kinds = compare_values(collected.values)
  local temporary = root() .. "/" .. folder.name(step) .. ".part"
  together("run:save", function()
    if not is_first then return end
    local latest = folder.usable(root())[1]
    if latest and latest.step > step then
      error(("%s is of a later step than %d: it would be kept and resumed from, and this state lost; call "
        .. "run:resume() before the loop, give all epochs one loop of run:steps, or take another --run-dir"):format(
        latest.path, step), 0)
    end
    folder.begin(root(), step)
  end)
  local part = together("run:save", write_part, temporary, collected.tensors, collected.values, kinds)
  local parts = gather(part.files)
  local path = root() .. "/" .. folder.name(step)
  together("run:save", function()
    if not is_first then return end
    local marker = { step = step, world_size = dist.world_size(), values = kinds, files = {} }
    for _, theirs in ipairs(parts) do
      for name, file in pairs(theirs) do marker.files[name] = file end
    end
    local index, file = write_index(temporary, part.weights)
    marker.files[index] = file
    folder.complete(temporary, marker)
    folder.publish(root(), step)
    folder.prune(root(), keep)
  end)
  last_step = step
  return path
end

-- Resuming --------------------------------------------------------------------------------------------

local function say(text)
  if dist.rank() == 0 then io.stderr:write("lockstep: ", text, "\n") end
end

--- The folders to try, the latest first: this run's own, and where it has none those of `from`.
local function candidates(from)
  local found, torn = folder.usable(root())
  if #found == 0 and from then
    for _, place in ipairs { from .. "/state", from } do
      if #found == 0 then found = folder.usable(place) end
    end
    if #found == 0 and #files.list(from) > 0 then found = { { path = from, step = 0, suffix = "from" } } end
    if #found == 0 then error("there is no state in " .. from, 0) end
    for _, one in ipairs(found) do one.is_foreign = true end
  end
  if #found == 0 and torn > 0 then
    error(("%s holds no state but %d that were set aside as torn; restore one from a copy, or begin anew with another "
      .. "--run-dir"):format(root(), torn), 0)
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

--- Reads the latest state that is whole on every rank. Those that are not are told, set aside and counted.
local function read_latest(found)
  local torn, first_problem = {}, nil
  for _, one in ipairs(found) do
    local ok, result = pcall(read, one)
    local problem
    for rank, text in ipairs(saving:gather(ok and "" or plain(result))) do
      if text ~= "" and not problem then
        problem = dist.world_size() == 1 and text or ("rank %d: %s"):format(rank - 1, text)
      end
    end
    if not problem then
      -- Only now: where none is left all stay as they are.
      for _, other in ipairs(dist.rank() == 0 and torn or {}) do
        say(("run:resume: %s cannot be used: %s; it is kept as %s, and the state before it is taken"):format(other.path,
          other.problem, folder.set_aside(other):match("[^/]+$")))
      end
      if dist.rank() == 0 then folder.adopt(one) end
      return result, one, #torn
    end
    one.problem, first_problem = problem, first_problem or problem
    torn[#torn + 1] = one
  end
  core.raise(("run:resume: none of the %d states in %s can be used; of the latest: %s. Restore one from a copy, or "
    .. "begin anew with another --run-dir"):format(#torn,
    found[1].suffix == "from" and found[1].path or found[1].path:match("^(.*)/"), first_problem))
end

--- The values by name, decoded: all of them before anything is changed.
local function take_values(state, own)
  local marker, values = state.marker, {}
  for name, kind in pairs(marker.values) do
    if kind == "shared" then
      values[name] = { value = contents.take_value(state.tensors, name) }
    elseif marker.world_size == dist.world_size() then
      values[name] = { value = contents.take_value(state.tensors, name, dist.rank()) }
    elseif contents.is_random(name) then
      values[name] = { begins_anew = true }
    elseif own[name] ~= nil then
      error(('"%s" was another on each of the %d ranks that saved it, and %d ranks cannot share that out; resume on '
        .. '%d, or leave it out: run:resume { without = { "%s" } }'):format(name, marker.world_size, dist.world_size(),
        marker.world_size, name), 0)
    end
  end
  return values
end

--- Raises where the state is not of these objects.
local function check_fit(collected, state, values, own)
  local problem = contents.mismatch(collected, state.tensors)
  local present = {}
  for _, one in ipairs(collected.tensors) do present[one.name] = true end
  for _, name in ipairs(problem == "" and contents.sorted_names(state.owners) or {}) do
    local owner = own[state.owners[name]]
    local is_value = name:find("^lockstep%.values%.") or name:find("^lockstep%.rank%-")
    if owner and not is_value and not present[name] and contents.kind_of(name, owner) == "module" then
      problem = ('it has a tensor "%s", which the script does not have now'):format(name)
      break
    end
  end
  for _, name in ipairs(contents.sorted_names(own)) do
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
      .. 'leave an object out with run:resume { without = { "optimizer" } }, or begin anew with another --run-dir', 0)
  end
end

local function read_without(without)
  local own = {}
  for name, object in pairs(objects or {}) do own[name] = object end
  for _, name in ipairs(without) do
    if own[name] == nil then
      core.raise(('run:resume: without names "%s", which is not registered'):format(tostring(name)))
    end
    own[name] = nil
  end
  return own
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
  local own = read_without(o.without)
  -- Rank 0 lists: what another sees of a folder may be late.
  local found = together("run:resume", function() return dist.rank() == 0 and candidates(o.from) or {} end)
  found = gather(found)[1]
  if #found == 0 then
    require("lockstep.log").go_on_from(0)
    return nil
  end
  local state, one, torn = read_latest(found)
  local step, where = state.marker.step, one.path
  local plan = together("run:resume: the state in " .. where .. " does not fit", function()
    local collected = contents.collect(own)
    local values = take_values(state, own)
    check_fit(collected, state, values, own)
    return { collected = collected, values = values }
  end)
  together("run:resume: " .. where, function()
    contents.restore_tensors(plan.collected, state.tensors)
    for _, name in ipairs(contents.sorted_names(own)) do
      if plan.values[name] then
        local lines = contents.restore_value(name, own[name], plan.values[name].value)
        for _, line in ipairs(lines) do say("run:resume: " .. line) end
      end
    end
  end)
  contents.restore_buckets(own, plan.values)
  local anew = false
  for name, saved in pairs(plan.values) do
    if contents.is_random(name) then
      contents.restore_random(name, saved.value, step)
      anew = anew or saved.begins_anew
    end
  end
  if anew then
    say(("run:resume: the %d ranks that saved had random numbers of their own; %d ranks begin new ones"):format(
      state.marker.world_size, dist.world_size()))
  end
  last_step = step
  require("lockstep.log").go_on_from(step, ("resumed from %s, after %d steps%s"):format(where, step,
    torn > 0 and (" (%d later states could not be used)"):format(torn) or ""))
  return step
end

-- Between steps ---------------------------------------------------------------------------------------

--- Raises where a loader has drawn what is not trained on yet: saved as it is then, that would be lost.
---@param loader any
function M.check_loader(loader)
  if objects and type(loader) == "table" and loader.reads_ahead then
    core.raise("run:steps: sharding.lockstep reads one batch ahead, which a saved state would leave out; give "
      .. "run:steps the loader itself: after run:state it holds that all ranks' loops end together")
  end
end

--- Whether any rank was asked to end; raises on all where the loop ends on one and goes on on another. Collective.
local function agree(done, is_end)
  local asked, ends, goes_on = false, nil, nil
  local own = (is_end and "x" or "g") .. (core_state.sigterm_came() and "t" or "-")
  for rank, text in ipairs(stepping:gather_flags(own)) do
    asked = asked or text:sub(2) == "t"
    if text:sub(1, 1) == "x" then ends = ends or rank - 1 else goes_on = goes_on or rank - 1 end
  end
  if ends and goes_on then
    core.raise(("run:steps: the loop ends on rank %d after %d steps, and goes on on rank %d; give every rank as many "
      .. "batches, as sharding.dataset { drop_last = true } does"):format(ends, done, goes_on))
  end
  return asked
end

--- What run:steps does where one step is done and the next batch not drawn: saves where it is time, or where a rank was
--- asked to end. Collective where anything is registered, as after_loading is.
---@param done integer steps
---@param is_end boolean the loop ends here
function M.between_steps(done, is_end)
  if not objects then return end
  core_state.catch_sigterm(true)
  local asked = agree(done, is_end)
  local is_time = every and done > 0 and (is_end or done % every == 0)
  if last_step ~= done and (asked or is_time) then M.save(done) end
  if asked then
    core_state.end_together(SIGTERM_EXIT_CODE, ("SIGTERM: the state after %d steps is in %s/%s; the same command "
      .. "with --run-dir %s goes on from there"):format(done, root(), folder.name(done), run.dir))
  end
  core_state.catch_sigterm(not is_end)
end

--- What run:steps does once the loader was asked for a batch, before the step begins on any rank.
---@param done integer steps
---@param is_end boolean the loader has none
function M.after_loading(done, is_end)
  if not objects then return end
  agree(done, is_end)
  if is_end then M.between_steps(done, true) end
end

return M
