// require "lockstep.core.batching": binds //batching:torch for lockstep/batching.lua.

#ifndef LOCKSTEP_DRIVER_LUA_BIND_BATCHING_BATCHING_H_
#define LOCKSTEP_DRIVER_LUA_BIND_BATCHING_BATCHING_H_

#include "lua.hpp"

namespace lockstep::lua {

// Leaves the module on the stack: a package.preload function.
int OpenBatching(lua_State* state);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_BATCHING_BATCHING_H_
