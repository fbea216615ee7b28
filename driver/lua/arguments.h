// One Lua value as one argument of an ATen operator: which parameters it fits, and as what.

#ifndef LOCKSTEP_DRIVER_LUA_ARGUMENTS_H_
#define LOCKSTEP_DRIVER_LUA_ARGUMENTS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "ATen/core/function_schema.h"
#include "ATen/core/ivalue.h"
#include "lua.hpp"

namespace lockstep::lua {

// What an operator's parameter takes.
enum class ParameterKind : uint8_t {
  kTensor,
  kTensors,          // Tensor[]
  kOptionalTensors,  // Tensor?[]
  kScalar,
  kScalars,
  kInteger,
  kIntegers,
  kFloat,
  kFloats,
  kBoolean,
  kBooleans,
  kString,
  kDtype,
  kDevice,
  kLayout,
  kMemoryFormat,
  kGenerator,
  kOther,  // storages, streams: not reachable from Lua
};

struct Parameter {
  std::string name;
  ParameterKind kind;
  bool optional = false;      // nil is a value of its own: `Tensor?`
  bool keyword_only = false;
  bool written = false;       // the operator writes into it: `Tensor(a!)`
  bool spreads = false;       // a single whole number stands for a list: `int[1]`, `int[2]`
  std::optional<c10::IValue> default_value;
};

Parameter DescribeParameter(const c10::Argument& argument);

// What a Lua value is, as far as overload resolution looks. Fits in four bits.
enum class ValueClass : uint8_t {
  kNil,
  kBoolean,
  kWhole,     // a number without a fraction, and not -0
  kFraction,  // any other number
  kString,
  kTensor,
  kDtype,
  kEmptyList,
  kWholes,
  kNumbers,
  kBooleans,
  kTensors,
  kOther,
};

ValueClass Classify(lua_State* state, int index);

// What it costs to pass a value of this class to the parameter: 0 exact, more for conversions;
// nullopt where it does not fit.
std::optional<int> ConversionCost(ValueClass value, const Parameter& parameter);

// The value as the parameter's type. Throws Error where an element of a list does not fit.
c10::IValue Convert(lua_State* state, int index, const Parameter& parameter);

// Pushes one result: a tensor, number, boolean, string, nil, or an array of these.
void PushValue(lua_State* state, const c10::IValue& value);

// "a tensor", "a whole number": what the parameter takes, for messages.
std::string Expected(const Parameter& parameter);

// "tensor float32 {2, 3}", "the number 2", "{1, 2}": a value that was given, for messages.
std::string DescribeValue(lua_State* state, int index);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_ARGUMENTS_H_
