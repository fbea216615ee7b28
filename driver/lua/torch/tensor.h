// Tensors and dtypes as Lua values.
//
// A tensor is a userdata that shares its storage with the C++ tensor; pushing costs one small
// allocation. Lua's collector sees only that: so a push counts the bytes of the storage, where no
// other Lua value holds it, and enough new bytes make the collector take a step (see "Memory" in
// tensor.cc).

#ifndef LOCKSTEP_DRIVER_LUA_TORCH_TENSOR_H_
#define LOCKSTEP_DRIVER_LUA_TORCH_TENSOR_H_

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

// "cuda:0", "cpu", "meta". Throws Error, with the argument's name, where the text names no device
// or one that this machine lacks.
at::Device ParseDevice(const std::string& text, const std::string& name);
at::Device ReadDevice(lua_State* state, int index, const char* name);

// What the error says, without ATen's listing of the backends that an operator has.
std::string KernelMessage(const c10::Error& error);

// Runs `call`, and puts `name` before the message of an error that ATen raises in it.
template <typename Call>
auto Naming(const std::string& name, const Call& call) {
  try {
    return call();
  } catch (const c10::Error& error) {
    throw Error(name + ": " + KernelMessage(error));
  }
}

// "float32 {2, 3} on cuda:0": for messages.
std::string Describe(const at::Tensor& tensor);

// Bytes of the storages that Lua values of this thread hold, the garbage among them included, and a
// little for each value.
int64_t LiveTensorBytes();

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_TORCH_TENSOR_H_
