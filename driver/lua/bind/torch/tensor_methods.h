// The methods and operators of a tensor in Lua: x.shape, x:size(0), x + 2, x[i], tostring(x), and
// x:<op>(...) for every operator of ATen.

#ifndef LOCKSTEP_DRIVER_LUA_BIND_TORCH_TENSOR_METHODS_H_
#define LOCKSTEP_DRIVER_LUA_BIND_TORCH_TENSOR_METHODS_H_

#include <string>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "lua.hpp"

namespace lockstep::lua {

// Fills the tensor metatable that RegisterTensor made. Call it once per state.
void RegisterTensorMethods(lua_State* state);

// torch.tensor(nested arrays, {dtype=, device=, requires_grad=}).
int NewTensor(lua_State* state);

// Return the names of methods and fields that are not operators of ATen, for the stubs.
std::vector<std::string> ExtraMethodNames();
std::vector<std::string> FieldNames();

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_TORCH_TENSOR_METHODS_H_
