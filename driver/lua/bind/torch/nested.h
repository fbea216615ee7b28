// Converts nested Lua arrays to tensors, and back.

#ifndef LOCKSTEP_DRIVER_LUA_BIND_TORCH_NESTED_H_
#define LOCKSTEP_DRIVER_LUA_BIND_TORCH_NESTED_H_

#include <optional>

#include "ATen/core/TensorBody.h"
#include "lua.hpp"

namespace lockstep::lua {

// Returns the CPU tensor of the nested arrays of numbers or booleans at `index`. A bare number
// gives a tensor of no dimensions. Without `dtype`, numbers become the default dtype, float32,
// whether or not they are whole (Lua has one number type), and booleans become bool.
//
// Throws Error if rows differ in length (with both), if an element is not a number or boolean, or
// if a table holds more than an array. It also throws if an integer dtype cannot hold an element
// exactly.
at::Tensor ReadNested(lua_State* state, int index, std::optional<at::ScalarType> dtype);

// Pushes a tensor as nested arrays, or a tensor of no dimensions as a bare value. Throws Error if
// an integer is beyond 2^53.
int PushNested(lua_State* state, const at::Tensor& tensor);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_TORCH_NESTED_H_
