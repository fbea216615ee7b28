#include "driver/lua/operators/conversion.h"

#include <string>

#include "ATen/ScalarOps.h"
#include "ATen/core/Reduction.h"
#include "ATen/core/jit_type.h"
#include "absl/strings/str_cat.h"
#include "c10/core/Layout.h"
#include "c10/core/MemoryFormat.h"
#include "driver/lua/tensor/tensor.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/vm.h"

namespace lockstep::lua {
namespace {

std::string ElementName(const Parameter& parameter, int i) {
  return absl::StrCat("\"", parameter.name, "\"[", i, "]");
}

// Converts each element of the array at `index`. read(i) reads the element on top of the stack.
template <typename List, typename ReadElement>
List ConvertList(lua_State* state, int index, List list, ReadElement read) {
  list.reserve(lua_objlen(state, index));
  ForEachElement(state, index, [&](int i) { list.push_back(read(i)); });
  return list;
}

const at::Tensor& ReadElement(lua_State* state, const Parameter& parameter, int i) {
  if (const at::Tensor* tensor = TensorAt(state, -1)) return *tensor;
  ThrowTypeError(state, -1, ElementName(parameter, i).c_str(), "a tensor");
}

c10::Scalar ReadScalar(lua_State* state, int index) {
  if (lua_type(state, index) == LUA_TBOOLEAN) return c10::Scalar(lua_toboolean(state, index) != 0);
  const double value = lua_tonumber(state, index);
  if (Classify(state, index) == ValueClass::kWhole) return c10::Scalar(static_cast<int64_t>(value));
  return c10::Scalar(value);
}

c10::IValue ConvertTensor(lua_State* state, int index) {
  if (const at::Tensor* tensor = TensorAt(state, index)) return *tensor;
  // A number among tensors takes part in type promotion as a number, not as a tensor.
  return at::native::wrapped_scalar_tensor(ReadScalar(state, index));
}

c10::IValue ConvertIntegers(lua_State* state, int index, const Parameter& parameter) {
  if (lua_type(state, index) == LUA_TNUMBER) {
    c10::List<int64_t> list;
    list.resize(parameter.list_size, static_cast<int64_t>(lua_tonumber(state, index)));
    return list;
  }
  // The class of the list says that all are whole numbers.
  return ConvertList(state, index, c10::List<int64_t>(),
                     [&](int) { return static_cast<int64_t>(lua_tonumber(state, -1)); });
}

// ATen's numbers for the reductions of a loss.
int64_t ReadReduction(lua_State* state, int index) {
  if (lua_type(state, index) == LUA_TNUMBER)
    return static_cast<int64_t>(lua_tonumber(state, index));
  const std::string text = lua_tostring(state, index);
  if (text == "none") return at::Reduction::None;
  if (text == "mean") return at::Reduction::Mean;
  if (text == "sum") return at::Reduction::Sum;
  throw Error(
      absl::StrCat("\"reduction\" must be \"none\", \"mean\" or \"sum\", not \"", text, "\""));
}

c10::IValue ConvertString(const std::string& text, const Parameter& parameter) {
  switch (parameter.kind) {
    case ParameterKind::kDevice: return ParseDevice(text, absl::StrCat("\"", parameter.name, "\""));
    case ParameterKind::kLayout:
      if (text == "strided") return c10::kStrided;
      if (text == "sparse_coo") return c10::kSparse;
      if (text == "sparse_csr") return c10::kSparseCsr;
      throw Error(absl::StrCat("\"", parameter.name,
                               "\" must be \"strided\", \"sparse_coo\" or \"sparse_csr\", not \"",
                               text, "\""));
    case ParameterKind::kMemoryFormat:
      if (text == "contiguous_format") return c10::MemoryFormat::Contiguous;
      if (text == "preserve_format") return c10::MemoryFormat::Preserve;
      if (text == "channels_last") return c10::MemoryFormat::ChannelsLast;
      if (text == "channels_last_3d") return c10::MemoryFormat::ChannelsLast3d;
      throw Error(absl::StrCat(
          "\"", parameter.name,
          "\" must be \"contiguous_format\", \"preserve_format\", \"channels_last\" or "
          "\"channels_last_3d\", not \"",
          text, "\""));
    default: return text;
  }
}

}  // namespace

c10::IValue Convert(lua_State* state, int index, const Parameter& parameter) {
  if (lua_isnoneornil(state, index)) return parameter.default_value.value_or(c10::IValue());
  switch (parameter.kind) {
    case ParameterKind::kTensor: return ConvertTensor(state, index);
    case ParameterKind::kTensors:
      return ConvertList(state, index, c10::List<at::Tensor>(),
                         [&](int i) { return ReadElement(state, parameter, i); });
    case ParameterKind::kOptionalTensors:
      return ConvertList(state, index, c10::List<std::optional<at::Tensor>>(),
                         [&](int i) -> std::optional<at::Tensor> {
                           if (!lua_toboolean(state, -1)) return std::nullopt;
                           return ReadElement(state, parameter, i);
                         });
    case ParameterKind::kScalar: return ReadScalar(state, index);
    case ParameterKind::kScalars: {
      c10::impl::GenericList list(c10::NumberType::get());
      return ConvertList(state, index, list,
                         [&](int) { return c10::IValue(ReadScalar(state, -1)); });
    }
    case ParameterKind::kInteger: return static_cast<int64_t>(lua_tonumber(state, index));
    case ParameterKind::kReduction: return ReadReduction(state, index);
    case ParameterKind::kIntegers: return ConvertIntegers(state, index, parameter);
    case ParameterKind::kFloat: return lua_tonumber(state, index);
    case ParameterKind::kFloats:
      return ConvertList(state, index, c10::List<double>(),
                         [&](int) { return lua_tonumber(state, -1); });
    case ParameterKind::kBoolean: return lua_toboolean(state, index) != 0;
    case ParameterKind::kBooleans:
      return ConvertList(state, index, c10::List<bool>(),
                         [&](int) { return lua_toboolean(state, -1) != 0; });
    case ParameterKind::kString:
    case ParameterKind::kDevice:
    case ParameterKind::kLayout:
    case ParameterKind::kMemoryFormat: return ConvertString(lua_tostring(state, index), parameter);
    case ParameterKind::kDtype: {
      at::ScalarType dtype = at::kFloat;
      DtypeAt(state, index, &dtype);
      return dtype;
    }
    case ParameterKind::kGenerator:
    case ParameterKind::kOther: break;
  }
  throw Error(absl::StrCat("\"", parameter.name, "\" cannot be given from Lua"));
}

void PushValue(lua_State* state, const c10::IValue& value) {
  if (value.isTensor()) {
    PushTensor(state, value.toTensor());
  } else if (value.isNone()) {
    lua_pushnil(state);
  } else if (value.isInt()) {
    PushInteger(state, value.toInt());
  } else if (value.isSymInt()) {
    PushInteger(state, value.toSymInt().expect_int());
  } else if (value.isDouble()) {
    lua_pushnumber(state, value.toDouble());
  } else if (value.isBool()) {
    lua_pushboolean(state, value.toBool());
  } else if (value.isString()) {
    PushString(state, value.toStringRef());
  } else if (value.isDevice()) {
    PushString(state, value.toDevice().str());
  } else if (value.isList()) {
    PushArray(state, value.toListRef(),
              [&](const c10::IValue& element) { PushValue(state, element); });
  } else {
    throw Error(absl::StrCat("a result of type ", value.tagKind(), " has no form in Lua"));
  }
}

}  // namespace lockstep::lua
