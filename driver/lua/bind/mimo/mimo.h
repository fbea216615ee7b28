// require "lockstep.core.mimo": binds the library `mimo` for lockstep.mimo.

#ifndef LOCKSTEP_DRIVER_LUA_BIND_MIMO_MIMO_H_
#define LOCKSTEP_DRIVER_LUA_BIND_MIMO_MIMO_H_

#include "lua.hpp"

namespace lockstep::lua {

// Leaves the module on the stack: a package.preload function.
int OpenMimo(lua_State* state);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_MIMO_MIMO_H_
