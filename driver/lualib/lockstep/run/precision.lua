--- The precision that a script trains in, by its name on the command line.

local dist = require "lockstep.distributed"
local terminal = require "lockstep.log.terminal"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

local M = {}

local NAMES = { "auto", "bf16", "float32", "float64" }
local DTYPES = { bf16 = torch.bfloat16, float32 = torch.float32, float64 = torch.float64 }

--- Returns what "auto" stands for on a device. GPUs before compute capability 8.0 emulate bfloat16, slowly.
---@param device string
---@param major integer? of a GPU's compute capability
---@return string
function M.default(device, major) return device ~= "cpu" and major >= 8 and "bf16" or "float32" end

local function default_of_this_rank()
  local device = dist.device()
  return M.default(device, device ~= "cpu" and torch.cuda.get_device_capability() or nil)
end

--- Returns the dtype of a precision, and says on rank 0 which it is. See run.dtype.
---@param precision any
---@return torch.dtype
function M.dtype(precision)
  local is_auto = precision == "auto"
  local name = is_auto and default_of_this_rank() or precision
  local dtype = DTYPES[name]
  plain.check(dtype, 'run.dtype: precision must be "%s", not %s', table.concat(NAMES, '", "'),
    plain.shown(name, "string"))
  if dist.rank() == 0 then
    terminal.print_line(("precision: %s%s%s"):format(name, dtype == torch.bfloat16 and ", with float32 masters" or "",
      is_auto and (" (the default on %s)"):format(dist.device() == "cpu" and "CPUs" or "this GPU") or ""))
  end
  return dtype
end

return M
