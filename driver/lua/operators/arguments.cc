#include "driver/lua/operators/arguments.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "ATen/core/jit_type.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "driver/lua/tensor/tensor.h"
#include "driver/lua/vm/stack.h"

namespace lockstep::lua {
namespace {

ParameterKind KindOf(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::TensorType: return ParameterKind::kTensor;
    case c10::TypeKind::NumberType: return ParameterKind::kScalar;
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType: return ParameterKind::kInteger;
    case c10::TypeKind::FloatType: return ParameterKind::kFloat;
    case c10::TypeKind::BoolType: return ParameterKind::kBoolean;
    case c10::TypeKind::StringType: return ParameterKind::kString;
    case c10::TypeKind::ScalarTypeType: return ParameterKind::kDtype;
    case c10::TypeKind::DeviceObjType: return ParameterKind::kDevice;
    case c10::TypeKind::LayoutType: return ParameterKind::kLayout;
    case c10::TypeKind::MemoryFormatType: return ParameterKind::kMemoryFormat;
    case c10::TypeKind::GeneratorType: return ParameterKind::kGenerator;
    case c10::TypeKind::ListType: {
      const c10::TypePtr element = type.castRaw<c10::ListType>()->getElementType();
      if (element->kind() == c10::TypeKind::OptionalType) return ParameterKind::kOptionalTensors;
      switch (KindOf(*element)) {
        case ParameterKind::kTensor: return ParameterKind::kTensors;
        case ParameterKind::kScalar: return ParameterKind::kScalars;
        case ParameterKind::kInteger: return ParameterKind::kIntegers;
        case ParameterKind::kFloat: return ParameterKind::kFloats;
        case ParameterKind::kBoolean: return ParameterKind::kBooleans;
        default: return ParameterKind::kOther;
      }
    }
    default: return ParameterKind::kOther;
  }
}

ValueClass ClassifyNumber(double value) {
  // -0 is not just a whole number: as an integer it would lose its sign.
  if (value == 0 && std::signbit(value)) return ValueClass::kMinusZero;
  const bool whole =
      value == std::floor(value) && std::abs(value) <= static_cast<double>(kMaxInteger);
  return whole ? ValueClass::kWhole : ValueClass::kFraction;
}

ValueClass ClassifyElement(lua_State* state, int index) {
  switch (lua_type(state, index)) {
    case LUA_TNUMBER:
      return IsWhole(ClassifyNumber(lua_tonumber(state, index))) ? ValueClass::kWholes
                                                                 : ValueClass::kNumbers;
    case LUA_TBOOLEAN: return ValueClass::kBooleans;
    case LUA_TUSERDATA:
      return TensorAt(state, index) != nullptr ? ValueClass::kTensors : ValueClass::kOther;
    default: return ValueClass::kOther;
  }
}

// Returns the class of a list with elements of both classes: {1, 0.5} is a list of numbers. A list
// of tensors may hold false for "none": torch.index(y, {false, rows}).
ValueClass Join(ValueClass a, ValueClass b) {
  if (a == b) return a;
  const auto are = [&](ValueClass x, ValueClass y) {
    return (a == x && b == y) || (a == y && b == x);
  };
  if (are(ValueClass::kWholes, ValueClass::kNumbers)) return ValueClass::kNumbers;
  if (are(ValueClass::kBooleans, ValueClass::kTensors)) return ValueClass::kTensors;
  return ValueClass::kOther;
}

// Looks at every element, and that there is nothing but elements 1 to #t.
ValueClass ClassifyList(lua_State* state, int index) {
  const size_t size = lua_objlen(state, index);
  size_t count = 0;
  ValueClass list = ValueClass::kEmptyList;
  for (lua_pushnil(state); lua_next(state, index) != 0; lua_pop(state, 1)) {
    const ValueClass element =
        lua_type(state, -2) == LUA_TNUMBER ? ClassifyElement(state, -1) : ValueClass::kOther;
    list = ++count == 1 ? element : Join(list, element);
    if (list == ValueClass::kOther) {
      lua_pop(state, 2);
      return list;
    }
  }
  return count == size ? list : ValueClass::kOther;
}

std::string QuotedText(const std::string& text) {
  constexpr size_t kShown = 40;
  return absl::StrCat("\"", text.substr(0, kShown), text.size() > kShown ? "..." : "", "\"");
}

// "{1, 2, dtype = torch.int64}", "{1, [3] = 3}": the first of the elements and of the other keys.
std::string DescribeTable(lua_State* state, int index) {
  constexpr size_t kShown = 4;
  const size_t size = lua_objlen(state, index);
  const auto describe_top = [&] {
    return lua_istable(state, -1) ? "a table" : DescribeValue(state, lua_gettop(state));
  };
  std::vector<std::string> parts;
  for (size_t i = 1; i <= std::min(size, kShown); ++i, lua_pop(state, 1)) {
    lua_rawgeti(state, index, static_cast<int>(i));
    parts.push_back(describe_top());
  }
  if (size > kShown) parts.push_back(absl::StrCat("... ", size, " in all"));
  size_t num_fields = 0;
  for (lua_pushnil(state); lua_next(state, index) != 0; lua_pop(state, 1)) {
    const bool named = lua_type(state, -2) == LUA_TSTRING;
    const double number = lua_type(state, -2) == LUA_TNUMBER ? lua_tonumber(state, -2) : 0;
    if ((!named && number >= 1 && number <= static_cast<double>(size)) || ++num_fields > kShown)
      continue;
    const std::string key =
        named ? lua_tostring(state, -2)
              : absl::StrCat("[", number != 0 ? NumberText(number) : TypeName(state, -2), "]");
    parts.push_back(absl::StrCat(key, " = ", describe_top()));
  }
  if (num_fields > kShown) parts.emplace_back("...");
  return absl::StrCat("{", absl::StrJoin(parts, ", "), "}");
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
  if (parameter.kind == ParameterKind::kInteger && parameter.name == "reduction") {
    parameter.kind = ParameterKind::kReduction;
  }
  if (parameter.kind == ParameterKind::kIntegers) parameter.list_size = argument.N().value_or(0);
  return parameter;
}

ValueClass Classify(lua_State* state, int index) {
  switch (lua_type(state, index)) {
    case LUA_TNONE:
    case LUA_TNIL: return ValueClass::kNil;
    case LUA_TBOOLEAN: return ValueClass::kBoolean;
    case LUA_TNUMBER: return ClassifyNumber(lua_tonumber(state, index));
    case LUA_TSTRING: return ValueClass::kString;
    case LUA_TUSERDATA: {
      if (TensorAt(state, index) != nullptr) return ValueClass::kTensor;
      at::ScalarType dtype;
      return DtypeAt(state, index, &dtype) ? ValueClass::kDtype : ValueClass::kOther;
    }
    case LUA_TTABLE: return ClassifyList(state, index);
    default: return ValueClass::kOther;
  }
}

bool IsWhole(ValueClass value) {
  return value == ValueClass::kWhole || value == ValueClass::kMinusZero;
}

std::optional<int> ConversionCost(ValueClass value, const Parameter& parameter) {
  if (value == ValueClass::kNil) {
    if (parameter.optional || parameter.default_value.has_value()) return 0;
    return std::nullopt;
  }
  const bool whole = IsWhole(value);
  const bool number = whole || value == ValueClass::kFraction;
  const bool empty = value == ValueClass::kEmptyList;
  const auto fits = [](bool fits, int cost = 0) {
    return fits ? std::optional<int>(cost) : std::nullopt;
  };
  switch (parameter.kind) {
    case ParameterKind::kTensor: return value == ValueClass::kTensor ? fits(true) : fits(number, 4);
    case ParameterKind::kTensors:
    case ParameterKind::kOptionalTensors: return fits(value == ValueClass::kTensors || empty);
    case ParameterKind::kScalar:
      return number ? fits(true) : fits(value == ValueClass::kBoolean, 1);
    case ParameterKind::kScalars:
    case ParameterKind::kFloats:
      return fits(value == ValueClass::kWholes || value == ValueClass::kNumbers || empty);
    case ParameterKind::kInteger: return fits(whole);
    case ParameterKind::kReduction: return fits(whole || value == ValueClass::kString);
    case ParameterKind::kIntegers:
      return value == ValueClass::kWholes || empty ? fits(true)
                                                   : fits(whole && parameter.list_size > 0, 1);
    case ParameterKind::kFloat: return fits(number, whole ? 1 : 0);
    case ParameterKind::kBoolean: return fits(value == ValueClass::kBoolean);
    case ParameterKind::kBooleans: return fits(value == ValueClass::kBooleans || empty);
    case ParameterKind::kString:
    case ParameterKind::kDevice:
    case ParameterKind::kLayout:
    case ParameterKind::kMemoryFormat: return fits(value == ValueClass::kString);
    case ParameterKind::kDtype: return fits(value == ValueClass::kDtype);
    case ParameterKind::kGenerator:
    case ParameterKind::kOther: return std::nullopt;
  }
  return std::nullopt;
}

std::string Expected(const Parameter& parameter) {
  switch (parameter.kind) {
    case ParameterKind::kTensor: return "a tensor";
    case ParameterKind::kTensors:
    case ParameterKind::kOptionalTensors: return "an array of tensors";
    case ParameterKind::kScalar: return "a number";
    case ParameterKind::kScalars:
    case ParameterKind::kFloats: return "an array of numbers";
    case ParameterKind::kInteger: return "a whole number";
    case ParameterKind::kReduction: return "\"none\", \"mean\" or \"sum\"";
    case ParameterKind::kIntegers:
      return parameter.list_size > 0 ? "a whole number or an array of them"
                                     : "an array of whole numbers";
    case ParameterKind::kFloat: return "a number";
    case ParameterKind::kBoolean: return "true or false";
    case ParameterKind::kBooleans: return "an array of booleans";
    case ParameterKind::kDtype: return "a dtype, as torch.float32";
    case ParameterKind::kDevice: return "a device, as \"cuda:0\"";
    case ParameterKind::kString:
    case ParameterKind::kLayout:
    case ParameterKind::kMemoryFormat: return "a string";
    case ParameterKind::kGenerator:
    case ParameterKind::kOther: return "something that Lua cannot give";
  }
  return "";
}

std::string NumberText(double value) {
  if (std::isnan(value)) return "nan";
  if (IsWhole(ClassifyNumber(value))) return absl::StrCat(static_cast<int64_t>(value));
  char text[32];
  std::snprintf(text, sizeof(text), "%.14g", value);
  return text;
}

std::string DescribeValue(lua_State* state, int index) {
  if (const at::Tensor* tensor = TensorAt(state, index)) {
    return absl::StrCat("tensor ", Describe(*tensor));
  }
  at::ScalarType dtype;
  if (DtypeAt(state, index, &dtype)) return absl::StrCat("torch.", DtypeName(dtype));
  if (lua_type(state, index) == LUA_TNUMBER) return NumberText(lua_tonumber(state, index));
  if (lua_type(state, index) == LUA_TSTRING) return QuotedText(lua_tostring(state, index));
  return lua_type(state, index) == LUA_TTABLE ? DescribeTable(state, index)
                                              : TypeName(state, index);
}

}  // namespace lockstep::lua
