--- Compares the registered optimizers of all ranks: the same parameters trained with another learning rate, or by fewer
--- updates, drift apart without an error.

local agreement = require "lockstep.state.agreement"
local contents = require "lockstep.state.contents"
local files = require "lockstep.core.files"
local plain = require "lockstep.plain"
local stage_parameters = require "lockstep.sharding.pipeline.parameters"
local torch = require "lockstep.torch"

local M = {}

local function text_of(value)
  if torch.is_tensor(value) then return "a tensor" end -- on a GPU a comparison would wait for it
  if type(value) ~= "table" then return agreement.text_of(value) end
  local texts = {}
  for i, element in ipairs(value) do texts[i] = text_of(element) end
  return "{" .. table.concat(texts, ", ") .. "}"
end

--- Returns what all ranks must have alike, by what it is: {["optimizer.groups[1].lr"] = "0.001"}.
---@param objects table<string, any> those of run:state
---@return table<string, string>
local function options_of(objects)
  local found = {}
  for name, object in pairs(objects) do
    if contents.kind_of(name, object) == "optimizer" then
      found[name .. ": number of steps"] = text_of(object.num_steps or 0)
      found[name .. ": last factor of the lr"] = text_of(object.last_factor or 1)
      for i, group in ipairs(object.groups) do
        for key, value in pairs(group) do
          local is_list = key == "params"
          local count = is_list and (stage_parameters.of_any(value) and "those of a stage" or #value) or nil
          found[("%s.groups[%d].%s%s"):format(name, i, is_list and "#" or "", key)] = text_of(count or value)
        end
      end
    end
  end
  return found
end

--- Returns eight letters that differ where the options do, for a message that the ranks send anyway.
---@param objects table<string, any>
---@return string
function M.fingerprint(objects)
  local options, parts = options_of(objects), {}
  for _, key in ipairs(plain.keys(options)) do
    parts[#parts + 1] = key
    parts[#parts + 1] = options[key]
  end
  return (select(2, files.checksum_of { table.concat(parts, "\n") }))
end

--- Raises, on every rank, unless all have optimizers with the same options, which have made as many steps. Collective.
---@param caller string
---@param objects table<string, any>
function M.compare(caller, objects)
  agreement.same(caller, options_of(objects), "the ranks train the same parameters, so each needs the same optimizers, "
    .. "schedules and updates; an optimizer of one rank alone belongs in an object with state_dict and load_state_dict")
end

return M
