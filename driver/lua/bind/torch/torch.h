// require "lockstep.torch": ATen's operators, dtypes, autograd, random numbers.

#ifndef LOCKSTEP_DRIVER_LUA_BIND_TORCH_TORCH_H_
#define LOCKSTEP_DRIVER_LUA_BIND_TORCH_TORCH_H_

#include "lua.hpp"

namespace lockstep::lua {

// Leaves the module on the stack: a package.preload function.
int OpenTorch(lua_State* state);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_TORCH_TORCH_H_
