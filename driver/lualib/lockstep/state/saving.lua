--- Writes a state: which rank writes what, what is the same on all ranks and what each has of its own.

local agreement = require "lockstep.state.agreement"
local best = require "lockstep.state.best"
local contents = require "lockstep.state.contents"
local core = require "lockstep.core"
local dist = require "lockstep.distributed"
local files = require "lockstep.core.files"
local folder = require "lockstep.state.folder"
local plain = require "lockstep.plain"
local replicas = require "lockstep.state.replicas"
local rows = require "lockstep.state.rows"
local settings = require "lockstep.state.settings"
local sharded = require "lockstep.state.sharded"
local stages = require "lockstep.state.stages"

local M = {}

local INDEX = "model.safetensors.index.json"

local function bytes_of(tensor) return tensor:numel() * tensor:element_size() end

--- Assigns tensors to ranks: the largest first, each to the rank with the least so far. A tensor that some ranks lack
--- goes to the first rank that has it.
local function share_out(tensors, world)
  local by_size, load, writer = {}, {}, {}
  for i, one in ipairs(tensors) do
    by_size[i] = { name = one.name, bytes = bytes_of(one.tensor), holder = one.holder }
  end
  table.sort(by_size, function(a, b)
    if a.bytes ~= b.bytes then return a.bytes > b.bytes end
    return a.name < b.name
  end)
  for rank = 1, world do load[rank] = 0 end
  for _, one in ipairs(by_size) do
    local least = one.holder and one.holder + 1 or 1
    for rank = 2, one.holder and 0 or world do
      if load[rank] < load[least] then least = rank end
    end
    load[least], writer[one.name] = load[least] + one.bytes, least - 1
  end
  return writer
end

local function file_name(kind, rank, world) return ("%s-%05d-of-%05d.safetensors"):format(kind, rank + 1, world) end

--- Metadata for PyTorch's distributed checkpoint: each tensor begins at its own beginning.
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
  local prints = agreement.texts(select(2, files.checksum_of { text }) .. #text)
  for rank = 2, #prints do
    if prints[rank] ~= prints[1] then
      local theirs = agreement.values(lines)
      local i = 1
      while theirs[1][i] == theirs[rank][i] do i = i + 1 end
      core.raise(("run:save: ranks 0 and %d do not hold the same tensors: rank 0 has %s where rank %d has %s; register "
        .. "the same objects on every rank"):format(rank - 1, theirs[1][i] or "none", rank - 1,
        theirs[rank][i] or "none"))
    end
  end
end

local function check_no_difference(caller, once, index, rank)
  plain.check(not index, '%s: "%s" holds other values on rank %d than on rank 0, and is written once; '
    .. "sharding.data_parallel keeps replicas alike, if every rank makes the same updates", caller,
    index and once[index].name, rank)
end

--- Raises, on every rank, where a tensor that is written once is not the same on all. With `copies` those that may wait
--- are compared later: returns them. Collective.
local function check_equal_tensors(caller, tensors, copies)
  local once, values, later = {}, {}, {}
  for _, one in ipairs(tensors) do
    if not one.part and not one.holder then
      if copies and copies.may_wait(one) then
        later[#later + 1] = one
      else
        once[#once + 1], values[#values + 1] = one, one.tensor
      end
    end
  end
  check_no_difference(caller, once, replicas.difference(values))
  return later
end

--- "shared" or "per_rank" by name, alike on every rank. Raises, on every rank, where one lacks a value.
local function compare_values(values)
  local own, kinds = {}, {}
  for name, value in pairs(values) do own[name] = contents.fingerprint(value) end
  local prints = agreement.values(own)
  for has, theirs in ipairs(prints) do
    for _, name in ipairs(plain.keys(theirs)) do
      for lacks, others in ipairs(prints) do
        plain.check(others[name] ~= nil, 'run:save: rank %d has no "%s", which rank %d has; %s', lacks - 1, name,
          has - 1, name == "run.config" and "call run.config on every rank" or "give every rank the same")
      end
      local same = theirs[name] == prints[1][name]
      kinds[name] = kinds[name] ~= "per_rank" and same and "shared" or "per_rank"
    end
  end
  return kinds
end

--- Returns the tensors of this rank's files, {model = , state = }, and where all of the model's tensors are. `keep`
--- returns what is written of a tensor that may change: itself, or a copy. It is told what changes the tensor: "late",
--- operators alone, or "passing", the next call.
local function share_of(collected, kinds, keep)
  local rank, world = dist.rank(), dist.world_size()
  local writer = share_out(collected.tensors, world)
  local parts, weights = { model = {}, state = {} }, {}
  for _, one in ipairs(collected.tensors) do
    local kind = one.is_model and "model" or "state"
    if one.is_model then
      weights[one.name] = { file = file_name(kind, writer[one.name], world), bytes = bytes_of(one.tensor) }
    end
    if writer[one.name] == rank and not one.part then
      parts[kind][one.name] = keep(one.name, one.tensor, one.may_wait and "late" or nil)
    end
  end
  local values = {}
  for name, value in pairs(collected.values) do
    if kinds[name] == "per_rank" then contents.put_value(values, name, value, rank) end
    if kinds[name] == "shared" and rank == 0 then contents.put_value(values, name, value) end
  end
  for name, tensor in pairs(values) do parts.state[name] = keep(name, tensor) end
  -- Each rank keeps of a unit's whole tensors, whose memory the next unit uses again, those that it writes.
  sharded.each_whole(collected.tensors, function(one, whole)
    if writer[one.name] ~= rank then return end
    parts[one.is_model and "model" or "state"][one.name] = keep(one.name, whole, "passing")
  end)
  return parts, weights
end

--- Returns the steps of a file job that write this rank's files, and their names.
local function steps_of_part(path, parts)
  local steps, names = {}, {}
  for _, kind in ipairs { "model", "state" } do
    names[#names + 1] = file_name(kind, dist.rank(), dist.world_size())
    steps[#steps + 1] = { "tensors", path .. "/" .. names[#names], parts[kind], metadata_of(parts[kind]) }
  end
  return steps, names
end

--- Returns the index that Hugging Face's loaders read first, as text.
local function index_of(weights)
  local map, total = {}, 0
  for name, weight in pairs(weights) do map[name], total = weight.file, total + weight.bytes end
  return core.json_encode({ metadata = { total_size = total }, weight_map = map }, 2)
end

--- Returns the steps of rank 0's file job that make a state of the folder, once all ranks' files are on the disk.
---@param save state.Save
---@param parts table[] of each rank, its files by name
local function steps_to_complete(save, parts)
  local marker = { step = save.step, world_size = dist.world_size(), values = save.kinds, files = {} }
  for _, theirs in ipairs(parts) do
    for name, file in pairs(theirs) do marker.files[name] = file end
  end
  local index = index_of(save.weights)
  local bytes, crc32 = files.checksum_of { index }
  marker.files[INDEX] = { bytes = bytes, crc32 = crc32 }
  local path = folder.unfinished(save.root, save.step)
  local steps = { { "text", path .. "/" .. INDEX, index } }
  for _, more in ipairs { folder.completion(path, marker), folder.publication(save.root, save.step, save.keep) } do
    for _, step in ipairs(more) do steps[#steps + 1] = step end
  end
  return steps
end

--- Raises, on every rank, unless all save after as many steps.
local function check_same_step(step)
  agreement.begin("run:save")
  local differs, first, other, rank = agreement.difference({ step = step }, { "step" })
  plain.check(not differs,
    "run:save: rank %d saves after %d steps, and rank 0 after %d; every rank saves the same step", rank, other, first)
end

---@class state.SaveOptions
---@field root string
---@field keep integer
---@field config table? the run's
---@field left_out string[] see settings.left_out_values
---@field replace boolean? later states may be there, and go
---@field copies state.Copies? the save goes on in the background, with these

--- A save that is under way: at first all ranks write their files, then rank 0 makes a state of the folder.
---@class state.Save
---@field step integer
---@field root string
---@field keep integer
---@field caller string what its errors begin with
---@field kinds table<string, string>
---@field weights table?
---@field names string[]? of this rank's files, while they are written
---@field job lockstep.core.files.Job? what this rank's thread does
---@field copies state.Copies? the ranks go on meanwhile
---@field later {name: string}[] the tensors that are compared once they are copied
---@field sums lockstep.core.state.Copies? of their bits

--- Starts this rank's work, and waits for it unless that is done in the background. Returns its result then.
local function work(save, steps)
  save.job = files.start(steps)
  return not save.copies and save.job:wait() or nil
end

local function as_it_is(_, tensor, how) return how == "passing" and tensor:cpu():clone() or tensor end

--- Returns what all objects hold, after the ranks have compared it, which values differ by rank, and the tensors that
--- are yet to be compared. Collective.
local function collect(objects, step, opts)
  check_same_step(step)
  local collected = agreement.together("run:save", contents.collect, objects)
  collected.tensors = stages.complete(collected.tensors)
  check_same_tensors(collected.tensors)
  local later = check_equal_tensors("run:save", collected.tensors, opts.copies)
  for _, values in ipairs { contents.bucket_values(objects), contents.random_values(), rows.values(objects),
    settings.config_values(opts.config), settings.left_out_values(opts.left_out), best.values() } do
    for name, value in pairs(values) do collected.values[name] = value end
  end
  return collected, compare_values(collected.values), later
end

--- Returns this rank's tensors of a state that is not written to files, by "model" or "state" and by name, and which
--- values differ by rank. The tensors may be the objects' own. Collective.
---@param objects table<string, any>
---@param step integer steps that are done
---@param opts {config: table?, left_out: string[]}
---@return table<string, table<string, torch.Tensor>>
---@return table<string, string>
function M.share(objects, step, opts)
  local collected, kinds = collect(objects, step, opts)
  return agreement.together("run:save", function() return (share_of(collected, kinds, as_it_is)) end), kinds
end

--- Starts to save the objects in `root`. Collective.
---@param objects table<string, any>
---@param step integer steps that are done
---@param opts state.SaveOptions
---@return state.Save
function M.begin(objects, step, opts)
  local root, is_first, copies = opts.root, dist.rank() == 0, opts.copies
  local collected, kinds, later = collect(objects, step, opts)
  local save = { step = step, root = root, keep = opts.keep, kinds = kinds, copies = copies, later = {},
    caller = copies and ("run:save: the state after %d steps was not saved"):format(step) or "run:save" }
  agreement.together("run:save", function()
    if not is_first then return end
    local latest = not opts.replace and folder.usable(root)[1]
    if latest and latest.step > step then
      error(("%s is of a later step than %d: it would be kept and resumed from, and this state lost; call "
        .. "run:resume() before the loop, give all epochs one loop of run:steps, or take another --run-dir"):format(
        latest.path, step), 0)
    end
    folder.begin(root, step)
  end)
  local steps = agreement.together("run:save", function()
    local parts
    parts, save.weights = share_of(collected, save.kinds,
      copies and function(...) return copies:keep(...) end or as_it_is)
    local steps, names = steps_of_part(folder.unfinished(root, step), parts)
    save.names = names
    if copies then
      save.sums = copies:start(later)
      for i, one in ipairs(later) do save.later[i] = { name = one.name } end -- without its memory
      table.insert(steps, 1, { "copies", save.sums })
    end
    return steps
  end)
  save.results = agreement.together("run:save", function() return work(save, steps) or {} end)
  return save
end

--- Returns whether this rank's thread has done what it was given.
---@param save state.Save
---@return boolean
function M.is_done(save) return save.job == nil or save.job:is_done() end

--- Waits for what the ranks' threads do, and goes on to the next part. Returns whether the state is complete.
--- Collective.
---@param save state.Save
---@return boolean
function M.go_on(save)
  local is_first, results = dist.rank() == 0, save.results
  if save.copies then
    results = agreement.together(save.caller, function() return save.job and save.job:wait() or {} end)
  end
  save.job, save.results = nil, nil
  if not save.names then return true end
  if #save.later > 0 then
    check_no_difference(save.caller, save.later, replicas.difference_of(save.sums:sums()))
  end
  local own, others = {}, save.copies and 1 or 0
  for i, name in ipairs(save.names) do own[name] = results[others + i] end
  local parts = agreement.values(own)
  save.names = nil
  agreement.together(save.caller, function()
    if is_first then work(save, steps_to_complete(save, parts)) end
  end)
  return not save.copies
end

--- Waits until the state is complete; returns where it is. Collective.
---@param save state.Save
---@return string path
function M.finish(save)
  repeat until M.go_on(save)
  return save.root .. "/" .. folder.name(save.step)
end

return M
