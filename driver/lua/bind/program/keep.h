// Snapshots in memory, for the Lua library.

#ifndef LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_KEEP_H_
#define LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_KEEP_H_

#include "lua.hpp"

namespace lockstep::lua {

int OpenKeep(lua_State* state);  // lockstep.core.keep

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_KEEP_H_
