--- Writes a state: which rank writes what, what is the same on all ranks and what each has of its own.

local agreement = require "lockstep.state.agreement"
local best = require "lockstep.state.best"
local contents = require "lockstep.state.contents"
local core = require "lockstep.core"
local core_safetensors = require "lockstep.core.safetensors"
local dist = require "lockstep.distributed"
local files = require "lockstep.core.files"
local folder = require "lockstep.state.folder"
local plain = require "lockstep.plain"
local replicas = require "lockstep.state.replicas"
local settings = require "lockstep.state.settings"
local sharded = require "lockstep.state.sharded"

local M = {}

local function bytes_of(tensor) return tensor:numel() * tensor:element_size() end

--- Assigns tensors to ranks: the largest first, each to the rank with the least so far.
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

--- Raises, on every rank, where a tensor that is written once is not the same on all.
local function check_equal_tensors(tensors)
  local once, values = {}, {}
  for _, one in ipairs(tensors) do
    if not one.part then once[#once + 1], values[#values + 1] = one, one.tensor end
  end
  local index, rank = replicas.difference(values)
  plain.check(not index, 'run:save: "%s" holds other values on rank %d than on rank 0, and is written once; '
    .. "sharding.data_parallel keeps replicas alike, if every rank makes the same updates", index and once[index].name,
    rank)
end

--- "shared" or "per_rank" by name, alike on every rank. Raises, on every rank, where one lacks a value.
local function compare_values(values)
  local own, kinds = {}, {}
  for name, value in pairs(values) do own[name] = contents.fingerprint(value) end
  local prints = agreement.values(own)
  for has, theirs in ipairs(prints) do
    for _, name in ipairs(plain.keys(theirs)) do
      for lacks, others in ipairs(prints) do
        if others[name] == nil then
          core.raise(('run:save: rank %d has no "%s", which rank %d has; %s'):format(lacks - 1, name, has - 1,
            name == "run.config" and "call run.config on every rank" or "give every rank the same"))
        end
      end
      local same = theirs[name] == prints[1][name]
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
    if writer[one.name] == rank and not one.part then parts[kind][one.name] = one.tensor end
  end
  -- Each rank keeps of a unit's whole tensors those that it writes.
  sharded.each_whole(tensors, function(one, whole)
    if writer[one.name] == rank then parts[one.is_model and "model" or "state"][one.name] = whole:cpu():clone() end
  end)
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

--- Writes the index that Hugging Face's loaders read first.
local function write_index(path, weights)
  local map, total = {}, 0
  for name, weight in pairs(weights) do map[name], total = weight.file, total + weight.bytes end
  local name = "model.safetensors.index.json"
  core.write_file(path .. "/" .. name, { core.json_encode({ metadata = { total_size = total }, weight_map = map }, 2) })
  local bytes, crc32 = files.checksum(path .. "/" .. name)
  return name, { bytes = bytes, crc32 = crc32 }
end

--- Raises, on every rank, unless all save after as many steps.
local function check_same_step(step)
  agreement.begin("run:save")
  local differs, first, other, rank = agreement.difference({ step = step }, { "step" })
  if differs then
    core.raise(("run:save: rank %d saves after %d steps, and rank 0 after %d; every rank saves the same step"):format(
      rank, other, first))
  end
end

--- Saves the objects in `root`; returns where. Collective.
---@param objects table<string, any>
---@param step integer steps that are done
---@param opts {root: string, keep: integer, config: table?, left_out: string[], replace: boolean?}
--- left_out: see settings.left_out_values. replace: later states may be there, and go
---@return string path
function M.save(objects, step, opts)
  local root, is_first = opts.root, dist.rank() == 0
  check_same_step(step)
  local collected = agreement.together("run:save", contents.collect, objects)
  check_same_tensors(collected.tensors)
  check_equal_tensors(collected.tensors)
  for _, values in ipairs { contents.bucket_values(objects), contents.random_values(),
    settings.config_values(opts.config), settings.left_out_values(opts.left_out), best.values() } do
    for name, value in pairs(values) do collected.values[name] = value end
  end
  local kinds = compare_values(collected.values)
  local temporary = folder.unfinished(root, step)
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
  local part = agreement.together("run:save", write_part, temporary, collected.tensors, collected.values, kinds)
  local parts = agreement.values(part.files)
  local path = root .. "/" .. folder.name(step)
  agreement.together("run:save", function()
    if not is_first then return end
    local marker = { step = step, world_size = dist.world_size(), values = kinds, files = {} }
    for _, theirs in ipairs(parts) do
      for name, file in pairs(theirs) do marker.files[name] = file end
    end
    local index, file = write_index(temporary, part.weights)
    marker.files[index] = file
    folder.complete(temporary, marker)
    folder.publish(root, step)
    folder.prune(root, opts.keep, step)
  end)
  return path
end

return M
