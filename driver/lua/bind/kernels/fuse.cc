#include "kernels/pointwise/fuse.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "driver/lua/bind/open.h"
#include "driver/lua/torch/tensor.h"
#include "driver/lua/vm/object.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/vm.h"

namespace lockstep::lua {

using Recordings = std::unique_ptr<kernels::PointwiseRecordings>;
template <>
inline constexpr const char* kObjectName<Recordings> = "fused function";

namespace {

constexpr const char* kName = "lockstep.fuse";

std::vector<kernels::PointwiseArgument> ReadArguments(lua_State* state, int first) {
  std::vector<kernels::PointwiseArgument> arguments;
  for (int i = first; i <= lua_gettop(state); ++i) {
    if (const at::Tensor* tensor = TensorAt(state, i))
      arguments.emplace_back(*tensor);
    else if (lua_type(state, i) == LUA_TNUMBER)
      arguments.emplace_back(lua_tonumber(state, i));
    else
      throw Error(absl::StrCat(kName, ": argument ", i - first + 1,
                               " must be a tensor or a number, not ", TypeName(state, i)));
  }
  return arguments;
}

// Calls the Lua function at index 2 with tensors.
std::vector<at::Tensor> CallFunction(lua_State* state, const std::vector<at::Tensor>& inputs) {
  const int top = lua_gettop(state);
  const int count = static_cast<int>(inputs.size());
  if (lua_checkstack(state, count + 16) == 0) throw Error("lockstep.fuse: the stack is full");
  lua_pushvalue(state, 2);
  for (const at::Tensor& input : inputs) PushTensor(state, input);
  try {
    Call(state, count, LUA_MULTRET);
  } catch (const PendingError& error) {
    if (!kernels::IsRecordingPointwise()) throw;
    throw Error(absl::StrCat(kName, ": the function could not be recorded: ", error.what()));
  }
  std::vector<at::Tensor> results;
  for (int i = top + 1; i <= lua_gettop(state); ++i) {
    const std::string name = absl::StrCat(kName, ": result ", i - top, " of the function");
    results.push_back(ReadTensor(state, i, name.c_str()));
  }
  lua_settop(state, top);
  return results;
}

// call(fn, ...) -> fn's results
int CallFused(lua_State* state) {
  kernels::PointwiseRecordings& recordings = *ReadObject<Recordings>(state, 1, "call: recordings");
  ReadFunction(state, 2, "lockstep.fuse: fn");
  const std::vector<kernels::PointwiseArgument> arguments = ReadArguments(state, 3);
  std::vector<at::Tensor> results = PrefixErrors(kName, [&] {
    return recordings.Call(
        [state](const std::vector<at::Tensor>& inputs) { return CallFunction(state, inputs); },
        arguments, RunningScriptLine);
  });
  lua_checkstack(state, static_cast<int>(results.size()) + 4);
  for (at::Tensor& result : results) PushTensor(state, std::move(result));
  return static_cast<int>(results.size());
}

// size() -> the number of recordings
int NumRecordings(lua_State* state) {
  PushInteger(state, ReadObject<Recordings>(state, 1, "size: recordings")->size());
  return 1;
}

int NewRecordings(lua_State* state) {
  PushObject<Recordings>(state, std::make_unique<kernels::PointwiseRecordings>());
  return 1;
}

}  // namespace

int OpenFuse(lua_State* state) {
  RegisterObject<Recordings>(state, {{"call", CallFused}, {"size", NumRecordings}});
  lua_newtable(state);
  SetFunctions(state, {{"new", NewRecordings}});
  return 1;
}

}  // namespace lockstep::lua
