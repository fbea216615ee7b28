--- The precision that a script trains in, by its name on the command line.

local core = require "lockstep.core"
local dist = require "lockstep.distributed"
local terminal = require "lockstep.log.terminal"
local torch = require "lockstep.torch"

local M = {}

local NAMES = { "auto", "bf16", "float32", "float64" }
local DTYPES = { bf16 = torch.bfloat16, float32 = torch.float32, float64 = torch.float64 }

--- Returns what "auto" stands for on a device.
---@param device string
---@return string
function M.default(device) return device == "cpu" and "float32" or "bf16" end

--- Returns the dtype of a precision, and says on rank 0 which it is. See run.dtype.
---@param precision any
---@return torch.dtype
function M.dtype(precision)
  local is_auto = precision == "auto"
  local name = is_auto and M.default(dist.device()) or precision
  local dtype = DTYPES[name]
  if not dtype then
    core.raise(('run.dtype: precision must be "%s", not %s'):format(table.concat(NAMES, '", "'),
      type(name) == "string" and ('"%s"'):format(name) or "a " .. type(name)))
  end
  if dist.rank() == 0 then
    terminal.print_line(("precision: %s%s%s"):format(name, dtype == torch.bfloat16 and ", with float32 masters" or "",
      is_auto and (" (the default on %s)"):format(dist.device() == "cpu" and "CPUs" or "GPUs") or ""))
  end
  return dtype
end

return M
