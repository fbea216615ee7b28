// require "lockstep.core.tiled_mlp": binds //tiled_mlp:torch for lockstep/tiled_mlp.lua.

#ifndef LOCKSTEP_DRIVER_LUA_BIND_TILED_MLP_TILED_MLP_H_
#define LOCKSTEP_DRIVER_LUA_BIND_TILED_MLP_TILED_MLP_H_

#include "lua.hpp"

namespace lockstep::lua {

// Leaves the module on the stack: a package.preload function.
int OpenTiledMlp(lua_State* state);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_TILED_MLP_TILED_MLP_H_
