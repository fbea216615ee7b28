// require "lockstep.core": facts about the program and the machine for the Lua library. Scripts use
// the modules over it.

#ifndef LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_CORE_H_
#define LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_CORE_H_

#include "lua.hpp"

namespace lockstep::lua {

// Leaves the module on the stack: a package.preload function.
int OpenCore(lua_State* state);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_CORE_H_
