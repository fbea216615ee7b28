// Tensors and dtypes as Lua values.
//
// A tensor is a userdata that shares its storage with the C++ tensor; pushing it costs one small
// allocation. Lua's collector sees only that allocation. So a push also counts the bytes of the
// storage, unless another Lua value holds it, and enough new bytes make the collector take a step
// (pressure.h).

#ifndef LOCKSTEP_DRIVER_LUA_TENSOR_TENSOR_H_
#define LOCKSTEP_DRIVER_LUA_TENSOR_TENSOR_H_

#include <cstdint>
#include <string>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "c10/core/Device.h"
#include "c10/core/ScalarType.h"
#include "c10/util/Exception.h"
#include "driver/lua/vm/vm.h"
#include "lua.hpp"

namespace lockstep::lua {

// Creates the metatables. Call it once per state, before any tensor is pushed. Leaves the stack
// unchanged.
void RegisterTensor(lua_State* state);

// Pushes the tensor, or nil if it is undefined.
int PushTensor(lua_State* state, at::Tensor tensor);

// Returns the tensor at `index`, or nullptr if the value is not a tensor.
at::Tensor* TensorAt(lua_State* state, int index);

// Returns the tensor at `index`, or throws Error with the argument's name.
const at::Tensor& ReadTensor(lua_State* state, int index, const char* name);
std::vector<at::Tensor> ReadTensors(lua_State* state, int index, const char* name);  // an array
int PushTensors(lua_State* state, const std::vector<at::Tensor>& tensors);

// Pushes the dtype's only value: `x.dtype == torch.float32` compares by identity.
int PushDtype(lua_State* state, at::ScalarType dtype);
bool DtypeAt(lua_State* state, int index, at::ScalarType* dtype);
at::ScalarType ReadDtype(lua_State* state, int index, const char* name);
std::string DtypeName(at::ScalarType dtype);  // "float32"

// All dtypes with their names, in the order of documentation.
struct NamedDtype {
  const char* name;
  at::ScalarType dtype;
};
const std::vector<NamedDtype>& NamedDtypes();

// Parses "cuda:0", "cpu" or "meta". Throws Error, with the argument's name, if the text is not a
// device or if this machine lacks it.
at::Device ParseDevice(const std::string& text, const std::string& name);
at::Device ReadDevice(lua_State* state, int index, const char* name);

// Returns the error's message without ATen's list of the backends that an operator has.
std::string KernelMessage(const c10::Error& error);

// Runs `call`, and puts `name` before the message of an error that ATen raises in it.
template <typename Call>
auto PrefixErrors(const std::string& name, const Call& call) {
  try {
    return call();
  } catch (const c10::Error& error) {
    throw Error(name + ": " + KernelMessage(error));
  }
}

// Returns "float32 {2, 3} on cuda:0", for messages.
std::string Describe(const at::Tensor& tensor);

// Returns the bytes of the storages that Lua values of this thread hold, with garbage, plus a few
// bytes for each value.
int64_t LiveTensorBytes();

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_TENSOR_TENSOR_H_
