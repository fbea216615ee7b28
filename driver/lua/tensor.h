// Tensors and dtypes as Lua values.
//
// A tensor is a userdata that shares its storage with the C++ tensor; pushing costs one small
// allocation. Lua's collector sees only that: so every push reports the tensor's bytes, and enough
// reported bytes make the collector take a step (see "Memory" in tensor.cc).

#ifndef LOCKSTEP_DRIVER_LUA_TENSOR_H_
#define LOCKSTEP_DRIVER_LUA_TENSOR_H_

#include <cstdint>
#include <string>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "c10/core/ScalarType.h"
#include "lua.hpp"

namespace lockstep::lua {

// Creates the metatables. Once per state, before any tensor is pushed; leaves the stack as it was.
void RegisterTensor(lua_State* state);

// Pushes the tensor, or nil where it is undefined.
void PushTensor(lua_State* state, at::Tensor tensor);

// The tensor at `index`, or nullptr where the value is something else.
at::Tensor* TensorAt(lua_State* state, int index);

// As above; throws Error with the argument's name where there is none.
const at::Tensor& ReadTensor(lua_State* state, int index, const char* name);
std::vector<at::Tensor> ReadTensors(lua_State* state, int index, const char* name);  // an array
void PushTensors(lua_State* state, const std::vector<at::Tensor>& tensors);

// One value per dtype: `x.dtype == torch.float32` compares by identity.
void PushDtype(lua_State* state, at::ScalarType dtype);
bool DtypeAt(lua_State* state, int index, at::ScalarType* dtype);
std::string DtypeName(at::ScalarType dtype);  // "float32"

// Every dtype with its name, in the order of documentation.
struct NamedDtype {
  const char* name;
  at::ScalarType dtype;
};
const std::vector<NamedDtype>& NamedDtypes();

// "float32 {2, 3} on cuda:0": for messages.
std::string Describe(const at::Tensor& tensor);

// Bytes of the tensors that Lua values of this thread hold, the garbage among them included.
int64_t LiveTensorBytes();

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_TENSOR_H_
