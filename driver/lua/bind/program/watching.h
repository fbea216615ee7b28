// require "lockstep.core.watching": binds //driver/files:event_file and //driver/watching for
// lockstep/log.lua and lockstep/watching.lua.

#ifndef LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_WATCHING_H_
#define LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_WATCHING_H_

#include "lua.hpp"

namespace lockstep::lua {

// Leaves the module on the stack: a package.preload function.
int OpenWatching(lua_State* state);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_WATCHING_H_
