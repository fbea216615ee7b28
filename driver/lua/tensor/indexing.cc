#include "driver/lua/tensor/indexing.h"

#include <vector>

#include "ATen/TensorIndexing.h"
#include "absl/strings/str_cat.h"
#include "driver/lua/tensor/tensor.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/vm.h"

namespace lockstep::lua {
namespace {

using at::indexing::Slice;
using at::indexing::TensorIndex;

// {}, {a, b} or {a, b, step}.
TensorIndex ReadSlice(lua_State* state, int index) {
  const std::vector<int64_t> bounds =
      ReadIntegers(state, index, "tensor index: a range {from, to}");
  if (bounds.empty()) return Slice();
  if (bounds.size() == 1 || bounds.size() > 3) {
    throw Error(absl::StrCat("tensor index: a range is {}, {from, to} or {from, to, step}, not ",
                             bounds.size(), " numbers"));
  }
  return Slice(bounds[0], bounds[1], bounds.size() == 3 ? bounds[2] : 1);
}

TensorIndex ReadIndex(lua_State* state, int index) {
  if (const at::Tensor* tensor = TensorAt(state, index)) {
    // ATen's words for it would not say what to do: torch.tensor({0, 2}) alone makes floats.
    if (at::isIntegralType(tensor->scalar_type(), /*includeBool=*/true)) return *tensor;
    throw Error(absl::StrCat(
        "tensor index: a tensor must hold positions (int64) or be a mask (bool), not be ",
        Describe(*tensor), "; torch.tensor({0, 2}, {dtype = torch.int64}) holds positions"));
  }
  switch (lua_type(state, index)) {
    case LUA_TNUMBER: return ReadInteger(state, index, "tensor index");
    case LUA_TBOOLEAN: return lua_toboolean(state, index) != 0;
    case LUA_TTABLE: return ReadSlice(state, index);
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
  ForEachElement(state, key_index,
                 [&](int) { indices.push_back(ReadIndex(state, lua_gettop(state))); });
  if (indices.empty()) indices.emplace_back(at::indexing::Ellipsis);
  return indices;
}

}  // namespace

int PushIndexed(lua_State* state, const at::Tensor& tensor, int key_index) {
  return PushTensor(state, PrefixErrors("tensor index", [&] {
                      if (lua_type(state, key_index) == LUA_TNUMBER) {
                        return tensor.select(0, ReadInteger(state, key_index, "tensor index"));
                      }
                      return tensor.index(ReadKey(state, key_index));
                    }));
}

void AssignIndexed(lua_State* state, at::Tensor& tensor, int key_index, int value_index) {
  const std::vector<TensorIndex> indices = ReadKey(state, key_index);
  PrefixErrors("tensor assignment", [&] {
    if (const at::Tensor* value = TensorAt(state, value_index)) {
      tensor.index_put_(indices, *value);
      return;
    }
    switch (lua_type(state, value_index)) {
      case LUA_TBOOLEAN:
        tensor.index_put_(indices, c10::Scalar(lua_toboolean(state, value_index) != 0));
        return;
      case LUA_TNUMBER:
        tensor.index_put_(indices, c10::Scalar(lua_tonumber(state, value_index)));
        return;
      default:
        ThrowTypeError(state, value_index, "tensor assignment: the value",
                       "a tensor, a number or a boolean");
    }
  });
}

}  // namespace lockstep::lua
