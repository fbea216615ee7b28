// require "lockstep.core.sharding": binds //sharding:torch for lockstep/sharding.lua.

#ifndef LOCKSTEP_DRIVER_LUA_BIND_SHARDING_SHARDING_H_
#define LOCKSTEP_DRIVER_LUA_BIND_SHARDING_SHARDING_H_

#include "lua.hpp"

namespace lockstep::lua {

// Leaves the module on the stack: a package.preload function.
int OpenSharding(lua_State* state);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_SHARDING_SHARDING_H_
