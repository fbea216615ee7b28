// require "lockstep.core.checkpoint": binds //checkpoint:torch for lockstep/checkpoint.lua.

#ifndef LOCKSTEP_DRIVER_LUA_BIND_CHECKPOINT_CHECKPOINT_H_
#define LOCKSTEP_DRIVER_LUA_BIND_CHECKPOINT_CHECKPOINT_H_

#include "lua.hpp"

namespace lockstep::lua {

// Leaves the module on the stack: a package.preload function.
int OpenCheckpoint(lua_State* state);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_CHECKPOINT_CHECKPOINT_H_
