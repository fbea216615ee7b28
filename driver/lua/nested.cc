#include "driver/lua/nested.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "ATen/ops/empty.h"
#include "absl/strings/str_cat.h"
#include "c10/core/DefaultDtype.h"
#include "driver/lua/stack.h"
#include "driver/lua/tensor.h"
#include "driver/lua/vm.h"

namespace lockstep::lua {
namespace {

constexpr int kMaxDepth = 16;

// Collects the elements in row-major order and the shape on the way.
class Reader {
 public:
  explicit Reader(lua_State* state) : state_(state) {}

  void Read(int index) {
    Visit(index, 0);
    if (!leaf_depth_.has_value()) leaf_depth_ = static_cast<int>(sizes.size());
  }

  std::vector<int64_t> sizes;
  std::vector<double> numbers;
  bool booleans = false;

 private:
  void Visit(int index, int depth) {
    if (lua_type(state_, index) == LUA_TTABLE) return VisitArray(index, depth);
    if (leaf_depth_.has_value() && *leaf_depth_ != depth) Fail("numbers and arrays are mixed at one depth");
    const int type = lua_type(state_, index);
    if (type != LUA_TNUMBER && type != LUA_TBOOLEAN) {
      ThrowTypeError(state_, index, absl::StrCat("torch.tensor: element ", Path()).c_str(), "a number or a boolean");
    }
    if (leaf_depth_.has_value() && booleans != (type == LUA_TBOOLEAN)) Fail("numbers and booleans are mixed");
    leaf_depth_ = depth;
    booleans = type == LUA_TBOOLEAN;
    numbers.push_back(booleans ? lua_toboolean(state_, index) : lua_tonumber(state_, index));
  }

  void VisitArray(int index, int depth) {
    const int64_t size = static_cast<int64_t>(lua_objlen(state_, index));
    if (depth >= kMaxDepth) Fail("arrays are nested more than 16 deep");
    if (leaf_depth_.has_value() && *leaf_depth_ <= depth) Fail("numbers and arrays are mixed at one depth");
    if (size == 0) {
      lua_pushnil(state_);
      if (lua_next(state_, index) != 0) Fail("a table with named fields is no array");
    }
    if (static_cast<size_t>(depth) == sizes.size()) {
      sizes.push_back(size);
    } else if (sizes[depth] != size) {
      Fail(absl::StrCat("this row has ", size, " elements, the first one ", sizes[depth]));
    }
    luaL_checkstack(state_, 4, "nested arrays");
    for (int64_t i = 1; i <= size; ++i) {
      path_.push_back(i);
      lua_rawgeti(state_, index, static_cast<int>(i));
      Visit(lua_gettop(state_), depth + 1);
      lua_pop(state_, 1);
      path_.pop_back();
    }
  }

  std::string Path() const {
    std::string text;
    for (const int64_t i : path_) absl::StrAppend(&text, "[", i, "]");
    return text;
  }

  [[noreturn]] void Fail(const std::string& reason) {
    throw Error(absl::StrCat("torch.tensor: at ", path_.empty() ? "the top" : Path(), ": ", reason));
  }

  lua_State* state_;
  std::vector<int64_t> path_;
  std::optional<int> leaf_depth_;
};

void CheckExact(const std::vector<double>& numbers, at::ScalarType dtype) {
  for (const double value : numbers) {
    if (value == std::floor(value) && std::abs(value) <= static_cast<double>(kMaxInteger)) continue;
    throw Error(absl::StrCat("torch.tensor: ", value, " is not a whole number that ", DtypeName(dtype),
                             " can hold; give {dtype = torch.float32}"));
  }
}

// Pushes element i of a contiguous tensor of float64, int64 or bool.
void PushElement(lua_State* state, const at::Tensor& tensor, int64_t i) {
  switch (tensor.scalar_type()) {
    case at::kBool:
      return lua_pushboolean(state, tensor.const_data_ptr<bool>()[i]);
    case at::kLong:
      return PushInteger(state, tensor.const_data_ptr<int64_t>()[i]);
    default:
      return lua_pushnumber(state, tensor.const_data_ptr<double>()[i]);
  }
}

void PushRows(lua_State* state, const at::Tensor& tensor) {
  if (tensor.dim() == 0) return PushElement(state, tensor, 0);
  luaL_checkstack(state, 4, "nested arrays");
  lua_createtable(state, static_cast<int>(tensor.size(0)), 0);
  for (int64_t i = 0; i < tensor.size(0); ++i) {
    if (tensor.dim() == 1) {
      PushElement(state, tensor, i);
    } else {
      PushRows(state, tensor.select(0, i));
    }
    lua_rawseti(state, -2, static_cast<int>(i + 1));
  }
}

}  // namespace

at::Tensor ReadNested(lua_State* state, int index, std::optional<at::ScalarType> dtype) {
  Reader reader(state);
  reader.Read(index);
  const at::ScalarType natural = reader.booleans ? at::kBool : c10::get_default_dtype_as_scalartype();
  const at::ScalarType wanted = dtype.value_or(natural);
  if (at::isIntegralType(wanted, /*includeBool=*/false) && !reader.booleans) CheckExact(reader.numbers, wanted);
  const at::Tensor values = at::empty(reader.sizes, at::kDouble);
  std::copy(reader.numbers.begin(), reader.numbers.end(), values.mutable_data_ptr<double>());
  return values.to(wanted);
}

void PushNested(lua_State* state, const at::Tensor& tensor) {
  if (tensor.is_complex()) throw Error("totable: complex numbers have no form in Lua; use torch.view_as_real(x)");
  at::ScalarType dtype = at::kDouble;
  if (at::isIntegralType(tensor.scalar_type(), /*includeBool=*/false)) dtype = at::kLong;
  if (tensor.scalar_type() == at::kBool) dtype = at::kBool;
  PushRows(state, tensor.detach().to(at::kCPU, dtype).contiguous());
}

}  // namespace lockstep::lua
