-- Compares the weights and the optimizers' tensors of two states: compare_states.lua FOLDER FOLDER.

local data = require "lockstep.data"
local run = require "lockstep.run"
local torch = require "lockstep.torch"

--- The tensors in the files that complete.json lists, but for values such as the generators.
local function tensors_of(folder)
  local found = {}
  for name in pairs(data.json(folder .. "/complete.json").files) do
    if name:find "%.safetensors$" then
      for tensor_name, tensor in pairs(data.safetensors(folder .. "/" .. name)) do
        assert(not found[tensor_name], tensor_name .. " is in two files")
        if not tensor_name:find "^lockstep%." then found[tensor_name] = tensor end
      end
    end
  end
  return found
end

local first, second = tensors_of(run.args[1]), tensors_of(run.args[2])
local largest, count, equal = 0, 0, 0
for name, tensor in pairs(first) do
  local other = assert(second[name], name .. " is missing")
  assert(tostring(tensor.shape) == tostring(other.shape) and tensor.dtype == other.dtype, name)
  count, equal = count + 1, equal + (torch.equal(tensor, other) and 1 or 0)
  local scale = math.max(tensor:double():abs():max():item(), 1e-300)
  largest = math.max(largest, (tensor - other):double():abs():max():item() / scale)
end
for name in pairs(second) do assert(first[name], name .. " is new") end
print(("%d of %d tensors are equal, largest difference %g"):format(equal, count, largest))
