--- `--verify-every N`: all replicas of a model compute the same micro-batch, and compare the bits.
---
--- A device that computes wrong values now and then raises no error: the gradients of all ranks take them in. So in
--- steps 0, N, 2N and so on, each model runs a pass before the step's first one. All replicas run it with the inputs,
--- the buffers and the random numbers of one rank. Outputs and gradients must have the same bits on every replica.
--- Random numbers and buffers are then set back. Between the steps all ranks learn the result, and a rank that differs
--- ends the run before the state is saved.

local core = require "lockstep.core"
local core_state = require "lockstep.core.state"
local dist = require "lockstep.distributed"
local plain = require "lockstep.plain"
local run = require "lockstep.run"
local sending = require "lockstep.sharding.sending"
local torch = require "lockstep.torch"

local M = {}

--- EX_TEMPFAIL of sysexits.h, as of --evict-slow: the same may succeed elsewhere.
local EXIT_CODE = 75
local NAME = "--verify-every"

local verified = setmetatable({}, { __mode = "k" }) ---@type table<table, integer> the last step by model
local is_under_way = false
local of_step = {} ---@type {count: integer?, verdict: string?} of this rank's models in this step
local last_agreed ---@type integer? the last step in which all replicas had the same bits
local has_noted = false

local function every() return not package.loaded["lockstep.dry_run"] and core.verify_every() or nil end

--- Returns the step whose first pass of the model is to be compared, or nil.
local function due(model)
  local steps = every()
  if not steps or is_under_way or not torch.is_grad_enabled() then return nil end
  local progress = run.progress
  if not (progress.is_under_way and progress.is_under_way()) then return nil end
  return progress.step % steps == 0 and verified[model] ~= progress.step and progress.step or nil
end

local function bits_of(tensor)
  if tensor == nil then return "none    " end
  local replicas = require "lockstep.state.replicas"
  return torch.no_grad(function()
    return core_state.tensor_to_bytes(replicas.sum_of_bits(tensor):reshape { 1 }:view(torch.uint8):cpu())
  end)
end

--- Returns the tensors of a value, in an order that all ranks have.
local function tensors_in(value, found)
  if torch.is_tensor(value) then
    found[#found + 1] = value
  elseif type(value) == "table" and getmetatable(value) == nil then
    local keys = {}
    for key in pairs(value) do keys[#keys + 1] = key end
    table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
    for _, key in ipairs(keys) do tensors_in(value[key], found) end
  end
  return found
end

---@class sharding.Verified
---@field group dist.Group? the ranks that compute alike
---@field leaves [string, torch.Tensor][] parameters by name, in an order that all ranks have
---@field buffers fun(): fun(): string?, torch.Tensor?
---@field pass fun(...): ... the forward pass
---@field gradients fun(pass: (fun(): torch.Tensor[]), leaves: [string, torch.Tensor][]): table<integer, torch.Tensor>
---calls pass, and returns the gradients of the sum of what it returns; averages and keeps none

--- Computes the pass on the same inputs as all other replicas. Returns names and bits of its results.
local function compute(model, inputs, position, seed)
  local contents = require "lockstep.state.contents" -- which needs the models' modules
  local undo = {}
  for name in pairs(contents.random_values()) do undo[#undo + 1] = contents.keep_random(name) end
  for _, buffer in model.buffers() do
    local before = buffer:clone()
    undo[#undo + 1] = function() torch.no_grad(function() buffer:copy_(before) end) end
    dist.broadcast(buffer, sending.rank_at(model.group, position), { group = model.group })
  end
  local names, bits = {}, {}
  plain.finally(function()
    for _, fn in ipairs(undo) do fn() end
  end, function()
    torch.manual_seed(seed)
    math.randomseed(seed)
    local gradients = model.gradients(function()
      local with_gradient = {}
      for i, output in ipairs(tensors_in({ model.pass(unpack(inputs, 1, inputs.n)) }, {})) do
        names[i], bits[i] = "output " .. i, bits_of(output)
        if output.requires_grad then with_gradient[#with_gradient + 1] = output end
      end
      return with_gradient
    end, model.leaves)
    for i, leaf in ipairs(model.leaves) do
      names[#names + 1], bits[#bits + 1] = ('the gradient of "%s"'):format(leaf[1]), bits_of(gradients[i])
    end
  end)
  return names, bits
end

--- Returns the positions, by the bits that they have, those of the most first.
local function parties_of(all)
  local parties, of_bits = {}, {}
  for i, theirs in ipairs(all) do
    local party = of_bits[theirs.bits]
    if not party then
      party = { first = i }
      of_bits[theirs.bits], parties[#parties + 1] = party, party
    end
    party[#party + 1] = i
  end
  table.sort(parties, function(a, b) return #a > #b or #a == #b and a.first < b.first end)
  return parties
end

--- Returns the names of results that two replicas do not have alike, in words.
local function differences(names, bits, other)
  local found = {}
  for i, name in ipairs(names) do
    if bits:sub(8 * i - 7, 8 * i) ~= other:sub(8 * i - 7, 8 * i) then found[#found + 1] = name end
  end
  return #found > 3 and ("%s, %s and %d more"):format(found[1], found[2], #found - 2) or table.concat(found, ", ")
end

--- Returns what differs between the replicas, or nil. Every replica gets the same.
---@param all {bits: string, host: string}[] by position in the group
---@param names string[] of the results, whose bits are eight bytes each
---@param group dist.Group?
---@return string?
function M.verdict(all, names, group)
  local parties = parties_of(all)
  if #parties == 1 then return nil end
  local function who(positions)
    local shown = {}
    for i, position in ipairs(positions) do
      shown[i] = ("rank %d (%s)"):format(sending.rank_at(group, position), all[position].host)
    end
    return table.concat(shown, ", ")
  end
  local what = differences(names, all[parties[1][1]].bits, all[parties[2][1]].bits)
  if 2 * #parties[1] > #all then
    local others = {}
    for i = 2, #parties do
      for _, position in ipairs(parties[i]) do others[#others + 1] = position end
    end
    table.sort(others)
    return ("%s computed other bits than the %d other replicas: %s"):format(who(others), #parties[1], what)
  end
  local sides = {}
  for i, party in ipairs(parties) do sides[i] = who(party) end
  return ("%s computed different bits, and no majority says which are right: %s"):format(
    table.concat(sides, " and "), what)
end

--- Compares the replicas, if this is the first pass of a step that is to be compared. The wrappers call it before a
--- pass. Collective over the model's group.
---@param key table the wrapper
---@param model fun(): sharding.Verified
---@param ... any the pass's arguments
function M.before_pass(key, model, ...)
  local step = due(key)
  if not step then return end
  verified[key] = step
  local o = model()
  local size = o.group and o.group:size() or dist.world_size()
  plain.check(size > 1, "%s %d: this model has one replica, and nothing to compare it with; leave %s out, or start "
    .. "more ranks", NAME, every(), NAME)
  is_under_way = true
  plain.finally(function() is_under_way = false end, function(...)
    local position = step / every() % size + 1
    local inputs, problem = sending.send(NAME, { n = select("#", ...), ... }, position, o.group)
    plain.check(not problem, "%s: the arguments of this pass cannot be given to the other replicas: %s", NAME, problem)
    local names, bits = compute(o, inputs, position, step + 1)
    local all = dist.all_gather_object({ bits = table.concat(bits), host = plain.host_name() }, { group = o.group })
    of_step.count = (of_step.count or 0) + 1
    of_step.verdict = of_step.verdict or M.verdict(all, names, o.group)
  end, ...)
end

--- Ends the run if replicas have differed in this step. run:steps calls it after each step. Collective.
---@param step integer that was done
function M.between_steps(step)
  local steps = every()
  if not steps or step % steps ~= 0 then return end
  local own, any, verdict = of_step, false, nil
  of_step = {}
  for _, theirs in ipairs(dist.all_gather_object({ count = own.count or 0, verdict = own.verdict or false })) do
    any, verdict = any or theirs.count > 0, verdict or theirs.verdict or nil
  end
  if verdict then
    core_state.end_together(EXIT_CODE, ("step %d: %s; %s %d: no state is saved; %s; the same command goes on from the "
      .. "last saved state"):format(step, verdict, NAME, steps, last_agreed
      and ("states that were saved after step %d, where all agreed last, may hold wrong values"):format(last_agreed)
      or "all states may hold wrong values, as no step was compared before"))
  end
  if any then last_agreed = step end
  if not any and not has_noted then
    has_noted = true
    if dist.rank() == 0 then
      io.stderr:write(("lockstep: %s %d has compared nothing in step %d: the step ran no pass of what "
        .. "sharding.data_parallel or sharding.fully_shard returned, with gradients\n"):format(NAME, steps, step))
    end
  end
end

return M
