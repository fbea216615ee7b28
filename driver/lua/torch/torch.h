// require "lockstep.torch": ATen's operators, dtypes, autograd, random numbers.

#ifndef LOCKSTEP_DRIVER_LUA_TORCH_TORCH_H_
#define LOCKSTEP_DRIVER_LUA_TORCH_TORCH_H_

#include <string>
#include <vector>

#include "lua.hpp"

namespace lockstep::lua {

// Leaves the module on the stack: a package.preload function.
int OpenTorch(lua_State* state);

// Returns the names of functions that are not operators of ATen, for the stubs.
std::vector<std::string> ExtraFunctionNames();

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_TORCH_TORCH_H_
