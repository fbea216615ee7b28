---@meta lockstep.core.safetensors
--- Files of tensors, as lockstep.data and run:save() read and write them. The program's side is
--- driver/lua/bind/program/safetensors.cc.

---@class lockstep.core.safetensors
local safetensors = {}

--- The tensors share the memory of the file, which is mapped; what is written to them stays out of it.
---@param path string
---@param caller string what errors begin with
---@return table<string, torch.Tensor> tensors
---@return table<string, string> metadata
function safetensors.read(path, caller) end

--- The file takes its name once it is complete and on the disk.
---@param path string
---@param tensors table<string, torch.Tensor>
---@param metadata table<string, string>
---@param caller string what errors begin with
---@return integer bytes
---@return string crc32 of the file
function safetensors.write(path, tensors, metadata, caller) end

return safetensors
