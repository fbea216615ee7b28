#include "driver/lua/bind/torch/nested.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ops/empty.h"
#include "absl/strings/str_cat.h"
#include "c10/core/DefaultDtype.h"
#include "driver/lua/operators/arguments.h"
#include "driver/lua/tensor/tensor.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/vm.h"

namespace lockstep::lua {
namespace {

constexpr int kMaxDepth = 16;

// Collects the elements in row-major order and the shape on the way.
class Reader {
 public:
  explicit Reader(lua_State* state) : state_(state) {}

  void Read(int index) { Visit(index, 0); }

  std::vector<int64_t> sizes;
  std::vector<double> numbers;
  bool booleans = false;

 private:
  void Visit(int index, int depth) {
    const int type = lua_type(state_, index);
    if (type == LUA_TTABLE) return VisitArray(index, depth);
    if (TensorAt(state_, index) != nullptr)
      Fail("a tensor is no element; torch.stack(array) joins tensors");
    if (type != LUA_TNUMBER && type != LUA_TBOOLEAN) {
      Fail(absl::StrCat("expected a number, a boolean or an array of them, not ",
                        TypeName(state_, index)));
    }
    // Elements stand where no array does: inside as many arrays as there are dimensions.
    if (static_cast<size_t>(depth) != sizes.size())
      Fail("elements and arrays are mixed at one depth");
    if (!numbers.empty() && booleans != (type == LUA_TBOOLEAN))
      Fail("numbers and booleans are mixed");
    booleans = type == LUA_TBOOLEAN;
    numbers.push_back(booleans ? lua_toboolean(state_, index) : lua_tonumber(state_, index));
  }

  void VisitArray(int index, int depth) {
    const int64_t size = static_cast<int64_t>(lua_objlen(state_, index));
    if (depth >= kMaxDepth) Fail("arrays are nested more than 16 deep");
    CheckOnlyArray(index, size);
    if (static_cast<size_t>(depth) == sizes.size()) {
      if (!numbers.empty()) Fail("elements and arrays are mixed at one depth");
      sizes.push_back(size);
    } else if (sizes[depth] != size) {
      Fail(absl::StrCat("this row has ", size, " elements, the first one ", sizes[depth]));
    }
    for (int64_t i = 1; i <= size; ++i) {
      path_.push_back(i);
      lua_rawgeti(state_, index, static_cast<int>(i));
      Visit(lua_gettop(state_), depth + 1);
      lua_pop(state_, 1);
      path_.pop_back();
    }
  }

  // {1, 2, dtype = torch.int64} would lose its dtype, {1, nil, 3} an element.
  void CheckOnlyArray(int index, int64_t size) {
    luaL_checkstack(state_, 4, "nested arrays");
    int64_t count = 0;
    for (lua_pushnil(state_); lua_next(state_, index) != 0; lua_pop(state_, 1)) {
      ++count;
      if (lua_type(state_, -2) == LUA_TNUMBER) continue;
      const bool named = lua_type(state_, -2) == LUA_TSTRING;
      Fail(absl::StrCat(
          "the table is no plain array, it holds the key ",
          named ? lua_tostring(state_, -2) : TypeName(state_, -2),
          "; options go in a table of their own: torch.tensor({1, 2}, {dtype = torch.int64})"));
    }
    if (count != size)
      Fail(absl::StrCat("the array has a hole: its length is ", size, ", and it holds ", count,
                        " elements"));
  }

  std::string Path() const {
    std::string text;
    for (const int64_t i : path_) absl::StrAppend(&text, "[", i, "]");
    return text;
  }

  [[noreturn]] void Fail(const std::string& reason) {
    throw Error(
        absl::StrCat("torch.tensor: at ", path_.empty() ? "the top" : Path(), ": ", reason));
  }

  lua_State* state_;
  std::vector<int64_t> path_;
};

// The least and the greatest whole number that an element can be: what both the dtype and Lua's
// numbers hold exactly.
std::pair<int64_t, int64_t> Range(at::ScalarType dtype) {
  const auto of = [](auto type) {
    using Limits = std::numeric_limits<decltype(type)>;
    return std::make_pair<int64_t, int64_t>(Limits::min(), Limits::max());
  };
  switch (dtype) {
    case at::kByte: return of(uint8_t{});
    case at::kUInt16: return of(uint16_t{});
    case at::kUInt32: return of(uint32_t{});
    case at::kUInt64: return {0, kMaxInteger};
    case at::kChar: return of(int8_t{});
    case at::kShort: return of(int16_t{});
    case at::kInt: return of(int32_t{});
    default: return {-kMaxInteger, kMaxInteger};
  }
}

void CheckExact(const std::vector<double>& numbers, at::ScalarType dtype) {
  const auto [least, greatest] = Range(dtype);
  for (const double value : numbers) {
    const bool whole = value == std::floor(value);
    if (whole && value >= static_cast<double>(least) && value <= static_cast<double>(greatest))
      continue;
    throw Error(absl::StrCat("torch.tensor: ", NumberText(value),
                             whole ? " is beyond" : " is not one of", " the whole numbers that ",
                             DtypeName(dtype), " can hold here, ", least, " to ", greatest,
                             "; give another dtype, as {dtype = torch.float64}"));
  }
}

// Pushes element i of a contiguous tensor of float64, int64, uint64 or bool.
int PushElement(lua_State* state, const at::Tensor& tensor, int64_t i) {
  switch (tensor.scalar_type()) {
    case at::kBool: return PushBoolean(state, tensor.const_data_ptr<bool>()[i]);
    case at::kLong: return PushInteger(state, tensor.const_data_ptr<int64_t>()[i]);
    case at::kUInt64: {
      const uint64_t value = tensor.const_data_ptr<uint64_t>()[i];
      // Beyond int64 it is far beyond 2^53: PushInteger says so for the nearest that it can name.
      return PushInteger(state, static_cast<int64_t>(std::min<uint64_t>(value, INT64_MAX)));
    }
    default: return PushNumber(state, tensor.const_data_ptr<double>()[i]);
  }
}

int PushRows(lua_State* state, const at::Tensor& tensor) {
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
  return 1;
}

}  // namespace

at::Tensor ReadNested(lua_State* state, int index, std::optional<at::ScalarType> dtype) {
  Reader reader(state);
  reader.Read(index);
  const at::ScalarType natural =
      reader.booleans ? at::kBool : c10::get_default_dtype_as_scalartype();
  const at::ScalarType wanted = dtype.value_or(natural);
  if (at::isIntegralType(wanted, /*includeBool=*/false) && !reader.booleans)
    CheckExact(reader.numbers, wanted);
  const at::Tensor values = at::empty(reader.sizes, at::kDouble);
  std::copy(reader.numbers.begin(), reader.numbers.end(), values.mutable_data_ptr<double>());
  return values.to(wanted);
}

int PushNested(lua_State* state, const at::Tensor& tensor) {
  if (tensor.is_complex())
    throw Error("totable: complex numbers have no form in Lua; use torch.view_as_real(x)");
  at::ScalarType dtype = at::kDouble;
  if (at::isIntegralType(tensor.scalar_type(), /*includeBool=*/false)) dtype = at::kLong;
  if (tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kUInt64)
    dtype = tensor.scalar_type();
  return PushRows(state, tensor.detach().to(at::kCPU, dtype).contiguous());
}

}  // namespace lockstep::lua
