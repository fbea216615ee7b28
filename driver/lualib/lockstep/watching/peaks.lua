--- The peak FLOP/s of GPUs, for the share that a run reaches.

local core = require "lockstep.core"
local plain = require "lockstep.plain"

local M = {}

--- Dense bfloat16 FLOP/s of the tensor cores with float32 sums, from NVIDIA's data sheets. `model`: what the
--- driver calls it.
local PEAKS = {
  { name = "A100", model = "A100", flops = 312e12 },
  { name = "H100 PCIe", model = "H100 PCIe", flops = 756e12 },
  { name = "H100 NVL", model = "H100 NVL", flops = 835e12 },
  { name = "H100 SXM", model = "H100 80GB HBM3", flops = 989e12 },
  { name = "H200", model = "H200", flops = 989e12 },
  { name = "B200", model = "B200", flops = 2250e12 },
  { name = "L40S", model = "L40S", flops = 362e12 },
  { name = "L4", model = "L4", flops = 121e12 },
  { name = "RTX 3090", model = "RTX 3090", flops = 71e12 },
  { name = "RTX 4090", model = "RTX 4090", flops = 165e12 },
}

local function names()
  local known = {}
  for i, peak in ipairs(PEAKS) do known[i] = peak.name end
  return known
end

--- The FLOP/s of a GPU by its name here, "H100 SXM".
---@param name string
---@return number
function M.of(name)
  plain.check(type(name) == "string",
    "peaks.of: the argument must be a GPU's name, as \"H100 SXM\", not a %s", type(name))
  for _, peak in ipairs(PEAKS) do
    if peak.name == name then return peak.flops end
  end
  local meant = {}
  for _, known in ipairs(names()) do
    if known:sub(1, #name) == name then meant[#meant + 1] = '"' .. known .. '"' end
  end
  local nearest = core.nearest(name, names())
  if #meant == 0 and nearest then meant = { '"' .. nearest .. '"' } end
  core.raise(string.format('log.count_flops: no peak is known of "%s"%s (known: %s); give it in FLOP/s', name,
    #meant > 0 and "; did you mean " .. table.concat(meant, " or ") .. "?" or "", table.concat(names(), ", ")))
end

--- The FLOP/s of a GPU by what its driver calls it, "NVIDIA H100 80GB HBM3", or nil.
---@param model string
---@return number?
function M.of_model(model)
  plain.check(type(model) == "string",
    "peaks.of_model: the argument must be a GPU's name, as \"NVIDIA H100 80GB HBM3\", not a %s", type(model))
  for _, peak in ipairs(PEAKS) do
    local from, to = model:find(peak.model, 1, true)
    -- "L4" is not the start of "L40".
    if from and not model:sub(to + 1, to + 1):find("%w") then return peak.flops end
  end
end

--- Returns the driver's name of this machine's GPUs if all are alike, otherwise nil.
---@return string?
function M.model_here()
  local model
  local pipe = assert(io.popen("cat /proc/driver/nvidia/gpus/*/information 2>/dev/null"))
  for line in pipe:lines() do
    local found = line:match("^Model:%s*(.-)%s*$")
    if found and model and found ~= model then
      pipe:close()
      return nil
    end
    model = found or model
  end
  pipe:close()
  return model
end

return M
