// require "lockstep.core.fuse": binds //kernels:torch's fused functions for lockstep/fuse.lua.

#ifndef LOCKSTEP_DRIVER_LUA_BIND_KERNELS_FUSE_H_
#define LOCKSTEP_DRIVER_LUA_BIND_KERNELS_FUSE_H_

#include "lua.hpp"

namespace lockstep::lua {

// Leaves the module on the stack: a package.preload function.
int OpenFuse(lua_State* state);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_KERNELS_FUSE_H_
