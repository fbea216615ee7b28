// Tensors to and from nested Lua arrays.

#ifndef LOCKSTEP_DRIVER_LUA_TORCH_NESTED_H_
#define LOCKSTEP_DRIVER_LUA_TORCH_NESTED_H_

#include <optional>

#include "ATen/core/TensorBody.h"
#include "lua.hpp"

namespace lockstep::lua {

// The tensor that nested arrays of numbers or booleans at `index` spell; a bare number gives a
// tensor of no dimensions. Without `dtype`: numbers become the default dtype, float32, whether or
// not they are whole (Lua has one number type), booleans become bool. On the CPU.
//
// Throws Error where rows differ in length (naming both), where an element is neither number nor
// boolean, where a table holds more than an array, and where an integer dtype cannot hold an
// element exactly.
at::Tensor ReadNested(lua_State* state, int index, std::optional<at::ScalarType> dtype);

// The inverse: nested arrays, or a bare value for a tensor of no dimensions. Throws Error where an
// integer is beyond 2^53.
void PushNested(lua_State* state, const at::Tensor& tensor);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_TORCH_NESTED_H_
