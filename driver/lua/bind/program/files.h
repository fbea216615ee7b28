// Writes files for the Lua library.

#ifndef LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_FILES_H_
#define LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_FILES_H_

#include "lua.hpp"

namespace lockstep::lua {

// write_file(path, {piece, ...}): strings, and tensors as the bytes they hold.
int WriteFile(lua_State* state);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_FILES_H_
