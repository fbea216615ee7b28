// lockstep.core: writes files for the Lua library.

#ifndef LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_FILES_H_
#define LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_FILES_H_

#include "lua.hpp"

namespace lockstep::lua {

// write_file(path: string, pieces: (string|torch.Tensor)[])
// Writes a file, which takes its name once it is complete. pieces: tensors as the bytes they hold.
int WriteFile(lua_State* state);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_FILES_H_
