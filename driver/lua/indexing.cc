#include "driver/lua/indexing.h"

#include <string>
#include <vector>

#include "ATen/TensorIndexing.h"
#include "absl/strings/str_cat.h"
#include "driver/lua/stack.h"
#include "driver/lua/tensor.h"
#include "driver/lua/vm.h"

namespace lockstep::lua {
namespace {

using at::indexing::Slice;
using at::indexing::TensorIndex;

// {}, {a, b} or {a, b, step}.
TensorIndex ReadSlice(lua_State* state, int index) {
  const std::vector<int64_t> bounds = ReadIntegers(state, index, "tensor index: a range {from, to}");
  if (bounds.empty()) return Slice();
  if (bounds.size() == 1 || bounds.size() > 3) {
    throw Error(absl::StrCat("tensor index: a range is {}, {from, to} or {from, to, step}, not ",
                             bounds.size(), " numbers"));
  }
  return Slice(bounds[0], bounds[1], bounds.size() == 3 ? bounds[2] : 1);
}

TensorIndex ReadIndex(lua_State* state, int index) {
  if (const at::Tensor* tensor = TensorAt(state, index)) return *tensor;
  switch (lua_type(state, index)) {
    case LUA_TNUMBER:
      return ReadInteger(state, index, "tensor index");
    case LUA_TBOOLEAN:
      return lua_toboolean(state, index) != 0;
    case LUA_TTABLE:
      return ReadSlice(state, index);
    case LUA_TSTRING:
      if (ReadString(state, index, "tensor index") == "...") return at::indexing::Ellipsis;
      [[fallthrough]];
    default:
      ThrowTypeError(state, index, "tensor index",
                     "a number, a range {from, to}, {}, a tensor or \"...\"");
  }
}

std::vector<TensorIndex> ReadKey(lua_State* state, int key_index) {
  std::vector<TensorIndex> indices;
  if (lua_type(state, key_index) != LUA_TTABLE) {
    indices.push_back(ReadIndex(state, key_index));
    return indices;
  }
  const int size = static_cast<int>(lua_objlen(state, key_index));
  for (int i = 1; i <= size; ++i) {
    lua_rawgeti(state, key_index, i);
    indices.push_back(ReadIndex(state, lua_gettop(state)));
    lua_pop(state, 1);
  }
  if (indices.empty()) indices.emplace_back(at::indexing::Ellipsis);
  return indices;
}

}  // namespace

void PushIndexed(lua_State* state, const at::Tensor& tensor, int key_index) {
  if (lua_type(state, key_index) == LUA_TNUMBER) {
    PushTensor(state, tensor.select(0, ReadInteger(state, key_index, "tensor index")));
    return;
  }
  PushTensor(state, tensor.index(ReadKey(state, key_index)));
}

void AssignIndexed(lua_State* state, at::Tensor& tensor, int key_index, int value_index) {
  const std::vector<TensorIndex> indices = ReadKey(state, key_index);
  if (const at::Tensor* value = TensorAt(state, value_index)) {
    tensor.index_put_(indices, *value);
  } else if (lua_type(state, value_index) == LUA_TBOOLEAN) {
    tensor.index_put_(indices, c10::Scalar(lua_toboolean(state, value_index) != 0));
  } else {
    tensor.index_put_(indices, c10::Scalar(ReadNumber(state, value_index, "the value assigned")));
  }
}

}  // namespace lockstep::lua
