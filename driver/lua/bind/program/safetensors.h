// Files of tensors that Lua describes, for others that write them later.

#ifndef LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_SAFETENSORS_H_
#define LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_SAFETENSORS_H_

#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "driver/files/new_file.h"
#include "lua.hpp"

namespace lockstep::lua {

// A file that is ready to be written, without Lua.
struct TensorFile {
  std::string path;
  std::string head;
  std::vector<at::Tensor> tensors;

  // Writes the file, which gets its name once it is complete and on the disk.
  absl::StatusOr<driver::Checksum> Write() const;
};

// Reads path, tensors by name and metadata from the stack, from `first` on. Throws Error, which
// begins with `caller`, for names, dtypes and metadata that the format lacks.
TensorFile ReadTensorFile(lua_State* state, int first, const std::string& caller);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_SAFETENSORS_H_
