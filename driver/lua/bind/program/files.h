// require "lockstep.core.files": folders, and checks that files are complete. Scripts do not use
// it.

#ifndef LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_FILES_H_
#define LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_FILES_H_

#include "lua.hpp"

namespace lockstep::lua {

// Leaves the module on the stack: a package.preload function.
int OpenFiles(lua_State* state);

// write_file(path, {piece, ...}): strings, and tensors as the bytes they hold.
int WriteFile(lua_State* state);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_FILES_H_
