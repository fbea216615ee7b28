// Indexes tensors: x[i], x[{i, {a, b}, {}}] and x[mask], read and written.
//
//    number       takes that position and drops the dimension; negative counts from the end
//    {a, b}       positions a to b - 1
//    {a, b, step} with a step
//    {}           all of the dimension
//    tensor       positions (integers) or a mask (booleans)
//    "..."        all dimensions that no other index names
//
// A single index applies to dimension 0. In a table there is one index for each dimension.
// Dimensions and positions start at 0, as in libtorch. So x[{0, 2}] is the element at row 0, column
// 2, and x[{{0, 2}}] the rows 0 and 1.

#ifndef LOCKSTEP_DRIVER_LUA_TENSOR_INDEXING_H_
#define LOCKSTEP_DRIVER_LUA_TENSOR_INDEXING_H_

#include "ATen/core/TensorBody.h"
#include "lua.hpp"

namespace lockstep::lua {

// Pushes tensor[key]; the key is at `key_index`.
int PushIndexed(lua_State* state, const at::Tensor& tensor, int key_index);

// Assigns tensor[key] = value, a tensor (broadcast) or a number.
void AssignIndexed(lua_State* state, at::Tensor& tensor, int key_index, int value_index);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_TENSOR_INDEXING_H_
