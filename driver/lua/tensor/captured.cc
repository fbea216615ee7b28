#include "driver/lua/tensor/captured.h"

#include <algorithm>
#include <cmath>

#include "ATen/core/TensorBody.h"
#include "absl/strings/str_cat.h"
#include "base/torch/is_parameter.h"
#include "driver/lua/tensor/hooks.h"
#include "driver/lua/tensor/tensor.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/whereabouts.h"

namespace lockstep::lua {
namespace {

lua_Debug SourceOf(lua_State* state, int function) {
  lua_Debug info;
  lua_pushvalue(state, function);
  lua_getinfo(state, ">S", &info);
  return info;
}

bool IsScriptFunction(lua_State* state, int index) {
  return lua_isfunction(state, index) && !lua_iscfunction(state, index) &&
         !IsLibraryChunk(SourceOf(state, index).source);
}

// The count of writes to a tensor's memory; 0 for what has none, and for parameters.
uint32_t VersionOf(const at::Tensor* tensor) {
  if (tensor == nullptr || tensor->is_inference() || base::IsOfParameter(*tensor)) return 0;
  return static_cast<uint32_t>(tensor->_version());
}

bool IsSame(lua_State* state, int a, int b) {
  if (lua_rawequal(state, a, b) != 0) return true;
  if (lua_type(state, a) == LUA_TNUMBER && lua_type(state, b) == LUA_TNUMBER)
    return std::isnan(lua_tonumber(state, a)) && std::isnan(lua_tonumber(state, b));
  const at::Tensor *of_a = PeekTensor(state, a), *of_b = PeekTensor(state, b);
  return of_a != nullptr && of_b != nullptr && of_a->is_same(*of_b);
}

bool HasGradient(const at::Tensor* tensor) { return tensor != nullptr && tensor->requires_grad(); }

// Returns "float32 {3} on cpu", "the number 3", "a table".
std::string DescribeValue(lua_State* state, int index) {
  const at::Tensor* tensor = PeekTensor(state, index);
  return tensor != nullptr ? lua::Describe(*tensor) : TypeName(state, index);
}

}  // namespace

CapturedVariables::CapturedVariables(lua_State* state, int function) {
  if (!IsScriptFunction(state, function)) return;
  if (lua_checkstack(state, 8) == 0) throw Error("lua: the stack is full");
  lua_newtable(state);
  const int kept = lua_gettop(state);
  int num_kept = 0;
  const auto keep = [&](int value) {
    lua_pushvalue(state, value);
    lua_rawseti(state, kept, ++num_kept);
    return num_kept;
  };
  std::vector<const void*> seen = {lua_topointer(state, function)};
  std::vector<int> functions = {keep(function)};
  for (size_t i = 0; i < functions.size(); ++i) {
    lua_rawgeti(state, kept, functions[i]);
    for (int number = 1; lua_getupvalue(state, kept + 1, number) != nullptr; ++number) {
      const int value = kept + 2;
      variables_.push_back(
          {functions[i], number, keep(value), VersionOf(PeekTensor(state, value))});
      const void* const pointer = lua_topointer(state, value);
      if (IsScriptFunction(state, value) &&
          std::find(seen.begin(), seen.end(), pointer) == seen.end()) {
        seen.push_back(pointer);
        functions.push_back(num_kept);
      }
      lua_settop(state, kept + 1);
    }
    lua_settop(state, kept);
  }
  if (!variables_.empty()) kept_.emplace(state, kept);
  lua_settop(state, kept - 1);
}

void CapturedVariables::EndFirstRun() {
  first_run_has_ended_ = true;
  if (!kept_.has_value()) return;
  lua_State* const state = kept_->Push();
  const int kept = lua_gettop(state);
  std::erase_if(variables_, [&](const Variable& variable) {
    lua_rawgeti(state, kept, variable.closure);
    lua_rawgeti(state, kept, variable.value);
    lua_getupvalue(state, kept + 1, variable.number);
    const at::Tensor *before = PeekTensor(state, kept + 2), *now = PeekTensor(state, kept + 3);
    const bool is_first = lua_isnil(state, kept + 2);
    const bool has_changed =
        !IsSame(state, kept + 2, kept + 3) || VersionOf(now) != variable.version;
    const bool matters = HasGradient(before) || (HasGradient(now) && !is_first);
    lua_settop(state, kept);
    return has_changed && !matters;
  });
  lua_settop(state, kept - 1);
}

void CapturedVariables::Check(const std::string& where) const {
  if (!first_run_has_ended_ || !kept_.has_value()) return;
  lua_State* const state = kept_->Push();
  const int kept = lua_gettop(state);
  for (const Variable& variable : variables_) {
    lua_rawgeti(state, kept, variable.closure);
    lua_rawgeti(state, kept, variable.value);
    const char* const name = lua_getupvalue(state, kept + 1, variable.number);
    const bool is_same = IsSame(state, kept + 2, kept + 3);
    if (!is_same || VersionOf(PeekTensor(state, kept + 3)) != variable.version) {
      const lua_Debug source = SourceOf(state, kept + 1);
      const std::string change =
          is_same ? "was changed in place"
                  : absl::StrCat("was assigned again (it was ", DescribeValue(state, kept + 2),
                                 ", and is ", DescribeValue(state, kept + 3), ")");
      lua_settop(state, kept - 1);
      throw Error(absl::StrCat(where, "\"", name, "\" ", change, " since forward. The function at ",
                               source.short_src, ":", source.linedefined,
                               " captures this variable, and backward runs it again, so it ",
                               "would compute with the new value; pass \"", name,
                               "\" as an argument, or give the new value a variable of its own"));
    }
    lua_settop(state, kept);
  }
  lua_settop(state, kept - 1);
}

}  // namespace lockstep::lua
