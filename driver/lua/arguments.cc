#include "driver/lua/arguments.h"

#include <cmath>

#include "ATen/ScalarOps.h"
#include "ATen/core/jit_type.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "c10/core/Layout.h"
#include "c10/core/MemoryFormat.h"
#include "driver/lua/stack.h"
#include "driver/lua/tensor.h"
#include "driver/lua/vm.h"

namespace lockstep::lua {
namespace {

ParameterKind KindOf(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::TensorType:
      return ParameterKind::kTensor;
    case c10::TypeKind::NumberType:
      return ParameterKind::kScalar;
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      return ParameterKind::kInteger;
    case c10::TypeKind::FloatType:
      return ParameterKind::kFloat;
    case c10::TypeKind::BoolType:
      return ParameterKind::kBoolean;
    case c10::TypeKind::StringType:
      return ParameterKind::kString;
    case c10::TypeKind::ScalarTypeType:
      return ParameterKind::kDtype;
    case c10::TypeKind::DeviceObjType:
      return ParameterKind::kDevice;
    case c10::TypeKind::LayoutType:
      return ParameterKind::kLayout;
    case c10::TypeKind::MemoryFormatType:
      return ParameterKind::kMemoryFormat;
    case c10::TypeKind::GeneratorType:
      return ParameterKind::kGenerator;
    case c10::TypeKind::ListType: {
      const c10::TypePtr element = type.castRaw<c10::ListType>()->getElementType();
      if (element->kind() == c10::TypeKind::OptionalType) return ParameterKind::kOptionalTensors;
      switch (KindOf(*element)) {
        case ParameterKind::kTensor:
          return ParameterKind::kTensors;
        case ParameterKind::kScalar:
          return ParameterKind::kScalars;
        case ParameterKind::kInteger:
          return ParameterKind::kIntegers;
        case ParameterKind::kFloat:
          return ParameterKind::kFloats;
        case ParameterKind::kBoolean:
          return ParameterKind::kBooleans;
        default:
          return ParameterKind::kOther;
      }
    }
    default:
      return ParameterKind::kOther;
  }
}

ValueClass ClassifyNumber(double value) {
  // -0 is no whole number here: as an integer it would lose its sign.
  const bool whole = value == std::floor(value) && std::abs(value) <= static_cast<double>(kMaxInteger) &&
                     !(value == 0 && std::signbit(value));
  return whole ? ValueClass::kWhole : ValueClass::kFraction;
}

// Looks at every element: {1, 0.5} is a list of numbers, {1, 2} of whole ones.
ValueClass ClassifyList(lua_State* state, int index) {
  const int size = static_cast<int>(lua_objlen(state, index));
  if (size == 0) {
    lua_pushnil(state);
    if (lua_next(state, index) == 0) return ValueClass::kEmptyList;
    lua_pop(state, 2);
    return ValueClass::kOther;
  }
  ValueClass list = ValueClass::kEmptyList;
  for (int i = 1; i <= size; ++i) {
    lua_rawgeti(state, index, i);
    ValueClass element = ValueClass::kOther;
    switch (lua_type(state, -1)) {
      case LUA_TNUMBER:
        element = ClassifyNumber(lua_tonumber(state, -1)) == ValueClass::kWhole ? ValueClass::kWholes
                                                                              : ValueClass::kNumbers;
        break;
      case LUA_TBOOLEAN:
        element = ValueClass::kBooleans;
        break;
      case LUA_TUSERDATA:
        if (TensorAt(state, -1) != nullptr) element = ValueClass::kTensors;
        break;
      default:
        break;
    }
    lua_pop(state, 1);
    // A list of tensors may hold false for "none": x = torch.index(y, {false, rows}).
    if (list == ValueClass::kEmptyList || (list == ValueClass::kBooleans && element == ValueClass::kTensors)) {
      list = element;
    } else if (list == ValueClass::kWholes && element == ValueClass::kNumbers) {
      list = element;
    } else if (element != list && !(list == ValueClass::kNumbers && element == ValueClass::kWholes) &&
               !(list == ValueClass::kTensors && element == ValueClass::kBooleans)) {
      return ValueClass::kOther;
    }
  }
  return list;
}

std::string ElementName(const Parameter& parameter, int i) {
  return absl::StrCat("\"", parameter.name, "\"[", i, "]");
}

// Converts each element of the array at `index`.
template <typename List, typename ReadElement>
List ConvertList(lua_State* state, int index, const Parameter& parameter, List list,
                 ReadElement read) {
  const int size = static_cast<int>(lua_objlen(state, index));
  list.reserve(size);
  for (int i = 1; i <= size; ++i) {
    lua_rawgeti(state, index, i);
    list.push_back(read(ElementName(parameter, i)));
    lua_pop(state, 1);
  }
  return list;
}

c10::Scalar ReadScalar(lua_State* state, int index) {
  if (lua_type(state, index) == LUA_TBOOLEAN) return c10::Scalar(lua_toboolean(state, index) != 0);
  const double value = lua_tonumber(state, index);
  if (ClassifyNumber(value) == ValueClass::kWhole) return c10::Scalar(static_cast<int64_t>(value));
  return c10::Scalar(value);
}

c10::IValue ConvertTensor(lua_State* state, int index) {
  if (const at::Tensor* tensor = TensorAt(state, index)) return *tensor;
  // A number among tensors takes part in type promotion as a number, not as a tensor.
  return at::native::wrapped_scalar_tensor(ReadScalar(state, index));
}

c10::IValue ConvertIntegers(lua_State* state, int index, const Parameter& parameter) {
  if (lua_type(state, index) == LUA_TNUMBER) {
    return c10::List<int64_t>({static_cast<int64_t>(lua_tonumber(state, index))});
  }
  return ConvertList(state, index, parameter, c10::List<int64_t>(), [&](const std::string& name) {
    return ReadInteger(state, -1, name.c_str());
  });
}

c10::IValue ConvertString(const std::string& text, const Parameter& parameter) {
  switch (parameter.kind) {
    case ParameterKind::kDevice:
      return c10::Device(text);
    case ParameterKind::kLayout:
      if (text == "strided") return c10::kStrided;
      if (text == "sparse_coo") return c10::kSparse;
      if (text == "sparse_csr") return c10::kSparseCsr;
      throw Error(absl::StrCat("\"", parameter.name,
                               "\" must be \"strided\", \"sparse_coo\" or \"sparse_csr\", not \"", text, "\""));
    case ParameterKind::kMemoryFormat:
      if (text == "contiguous_format") return c10::MemoryFormat::Contiguous;
      if (text == "preserve_format") return c10::MemoryFormat::Preserve;
      if (text == "channels_last") return c10::MemoryFormat::ChannelsLast;
      if (text == "channels_last_3d") return c10::MemoryFormat::ChannelsLast3d;
      throw Error(absl::StrCat("\"", parameter.name,
                               "\" must be \"contiguous_format\", \"preserve_format\", \"channels_last\" or "
                               "\"channels_last_3d\", not \"",
                               text, "\""));
    default:
      return text;
  }
}

}  // namespace

Parameter DescribeParameter(const c10::Argument& argument) {
  Parameter parameter;
  parameter.name = argument.name();
  parameter.keyword_only = argument.kwarg_only();
  parameter.written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
  parameter.default_value = argument.default_value();
  c10::TypePtr type = argument.real_type();
  if (const auto* optional = type->castRaw<c10::OptionalType>()) {
    parameter.optional = true;
    type = optional->getElementType();
  }
  parameter.kind = KindOf(*type);
  parameter.spreads = parameter.kind == ParameterKind::kIntegers && argument.N().has_value();
  return parameter;
}

ValueClass Classify(lua_State* state, int index) {
  switch (lua_type(state, index)) {
    case LUA_TNONE:
    case LUA_TNIL:
      return ValueClass::kNil;
    case LUA_TBOOLEAN:
      return ValueClass::kBoolean;
    case LUA_TNUMBER:
      return ClassifyNumber(lua_tonumber(state, index));
    case LUA_TSTRING:
      return ValueClass::kString;
    case LUA_TUSERDATA: {
      if (TensorAt(state, index) != nullptr) return ValueClass::kTensor;
      at::ScalarType dtype;
      return DtypeAt(state, index, &dtype) ? ValueClass::kDtype : ValueClass::kOther;
    }
    case LUA_TTABLE:
      return ClassifyList(state, index);
    default:
      return ValueClass::kOther;
  }
}

std::optional<int> ConversionCost(ValueClass value, const Parameter& parameter) {
  if (value == ValueClass::kNil) {
    if (parameter.optional || parameter.default_value.has_value()) return 0;
    return std::nullopt;
  }
  const bool whole = value == ValueClass::kWhole;
  const bool number = whole || value == ValueClass::kFraction;
  const bool empty = value == ValueClass::kEmptyList;
  const auto fits = [](bool fits, int cost = 0) { return fits ? std::optional<int>(cost) : std::nullopt; };
  switch (parameter.kind) {
    case ParameterKind::kTensor:
      return value == ValueClass::kTensor ? fits(true) : fits(number, 4);
    case ParameterKind::kTensors:
      return fits(value == ValueClass::kTensors || empty);
    case ParameterKind::kOptionalTensors:
      return fits(value == ValueClass::kTensors || empty);
    case ParameterKind::kScalar:
      return number ? fits(true) : fits(value == ValueClass::kBoolean, 1);
    case ParameterKind::kScalars:
    case ParameterKind::kFloats:
      return fits(value == ValueClass::kWholes || value == ValueClass::kNumbers || empty);
    case ParameterKind::kInteger:
      return fits(whole);
    case ParameterKind::kIntegers:
      return value == ValueClass::kWholes || empty ? fits(true) : fits(whole && parameter.spreads, 1);
    case ParameterKind::kFloat:
      return fits(number, whole ? 1 : 0);
    case ParameterKind::kBoolean:
      return fits(value == ValueClass::kBoolean);
    case ParameterKind::kBooleans:
      return fits(value == ValueClass::kBooleans || empty);
    case ParameterKind::kString:
    case ParameterKind::kDevice:
    case ParameterKind::kLayout:
    case ParameterKind::kMemoryFormat:
      return fits(value == ValueClass::kString);
    case ParameterKind::kDtype:
      return fits(value == ValueClass::kDtype);
    case ParameterKind::kGenerator:
    case ParameterKind::kOther:
      return std::nullopt;
  }
  return std::nullopt;
}

c10::IValue Convert(lua_State* state, int index, const Parameter& parameter) {
  if (lua_isnoneornil(state, index)) return parameter.default_value.value_or(c10::IValue());
  switch (parameter.kind) {
    case ParameterKind::kTensor:
      return ConvertTensor(state, index);
    case ParameterKind::kTensors:
      return ConvertList(state, index, parameter, c10::List<at::Tensor>(), [&](const std::string& name) {
        return ReadTensor(state, -1, name.c_str());
      });
    case ParameterKind::kOptionalTensors:
      return ConvertList(state, index, parameter, c10::List<std::optional<at::Tensor>>(),
                         [&](const std::string& name) -> std::optional<at::Tensor> {
                           if (!lua_toboolean(state, -1)) return std::nullopt;
                           return ReadTensor(state, -1, name.c_str());
                         });
    case ParameterKind::kScalar:
      return ReadScalar(state, index);
    case ParameterKind::kScalars: {
      c10::impl::GenericList list(c10::NumberType::get());
      return ConvertList(state, index, parameter, list,
                         [&](const std::string&) { return c10::IValue(ReadScalar(state, -1)); });
    }
    case ParameterKind::kInteger:
      return static_cast<int64_t>(lua_tonumber(state, index));
    case ParameterKind::kIntegers:
      return ConvertIntegers(state, index, parameter);
    case ParameterKind::kFloat:
      return lua_tonumber(state, index);
    case ParameterKind::kFloats:
      return ConvertList(state, index, parameter, c10::List<double>(), [&](const std::string& name) {
        return ReadNumber(state, -1, name.c_str());
      });
    case ParameterKind::kBoolean:
      return lua_toboolean(state, index) != 0;
    case ParameterKind::kBooleans:
      return ConvertList(state, index, parameter, c10::List<bool>(), [&](const std::string& name) {
        return ReadBoolean(state, -1, name.c_str());
      });
    case ParameterKind::kString:
    case ParameterKind::kDevice:
    case ParameterKind::kLayout:
    case ParameterKind::kMemoryFormat:
      return ConvertString(lua_tostring(state, index), parameter);
    case ParameterKind::kDtype: {
      at::ScalarType dtype = at::kFloat;
      DtypeAt(state, index, &dtype);
      return dtype;
    }
    case ParameterKind::kGenerator:
    case ParameterKind::kOther:
      break;
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
    const c10::ArrayRef<c10::IValue> elements = value.toListRef();
    lua_createtable(state, static_cast<int>(elements.size()), 0);
    for (size_t i = 0; i < elements.size(); ++i) {
      PushValue(state, elements[i]);
      lua_rawseti(state, -2, static_cast<int>(i + 1));
    }
  } else {
    throw Error(absl::StrCat("a result of type ", value.tagKind(), " has no form in Lua"));
  }
}

std::string Expected(const Parameter& parameter) {
  switch (parameter.kind) {
    case ParameterKind::kTensor:
      return "a tensor";
    case ParameterKind::kTensors:
    case ParameterKind::kOptionalTensors:
      return "an array of tensors";
    case ParameterKind::kScalar:
      return "a number";
    case ParameterKind::kScalars:
    case ParameterKind::kFloats:
      return "an array of numbers";
    case ParameterKind::kInteger:
      return "a whole number";
    case ParameterKind::kIntegers:
      return parameter.spreads ? "a whole number or an array of them" : "an array of whole numbers";
    case ParameterKind::kFloat:
      return "a number";
    case ParameterKind::kBoolean:
      return "true or false";
    case ParameterKind::kBooleans:
      return "an array of booleans";
    case ParameterKind::kDtype:
      return "a dtype, as torch.float32";
    case ParameterKind::kDevice:
      return "a device, as \"cuda:0\"";
    case ParameterKind::kString:
    case ParameterKind::kLayout:
    case ParameterKind::kMemoryFormat:
      return "a string";
    case ParameterKind::kGenerator:
    case ParameterKind::kOther:
      return "something that Lua cannot give";
  }
  return "";
}

std::string DescribeValue(lua_State* state, int index) {
  if (const at::Tensor* tensor = TensorAt(state, index)) {
    return absl::StrCat("tensor ", Describe(*tensor));
  }
  at::ScalarType dtype;
  if (DtypeAt(state, index, &dtype)) return absl::StrCat("torch.", DtypeName(dtype));
  if (lua_type(state, index) == LUA_TNUMBER) return absl::StrCat(lua_tonumber(state, index));
  if (lua_type(state, index) == LUA_TSTRING) return absl::StrCat("\"", lua_tostring(state, index), "\"");
  if (lua_type(state, index) != LUA_TTABLE) return TypeName(state, index);
  constexpr int kShown = 4;
  const int size = static_cast<int>(lua_objlen(state, index));
  std::string text = "{";
  for (int i = 1; i <= size && i <= kShown; ++i) {
    lua_rawgeti(state, index, i);
    absl::StrAppend(&text, i > 1 ? ", " : "",
                    lua_istable(state, -1) ? "a table" : DescribeValue(state, lua_gettop(state)));
    lua_pop(state, 1);
  }
  return absl::StrCat(text, size > kShown ? absl::StrCat(", ... ", size, " in all") : "", "}");
}

}  // namespace lockstep::lua
