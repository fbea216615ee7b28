// One Lua value as one argument of an ATen operator: the parameters that it fits, and at what cost.

#ifndef LOCKSTEP_DRIVER_LUA_OPERATORS_ARGUMENTS_H_
#define LOCKSTEP_DRIVER_LUA_OPERATORS_ARGUMENTS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "ATen/core/function_schema.h"
#include "ATen/core/ivalue.h"
#include "lua.hpp"

namespace lockstep::lua {

// The type of an operator's parameter.
enum class ParameterKind : uint8_t {
  kTensor,
  kTensors,          // Tensor[]
  kOptionalTensors,  // Tensor?[]
  kScalar,
  kScalars,
  kInteger,
  kReduction,  // an integer that may be given as "none", "mean" or "sum"
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
  bool optional = false;  // nil is a value of its own: `Tensor?`
  bool keyword_only = false;
  bool written = false;  // the operator writes into it: `Tensor(a!)`
  size_t list_size = 0;  // `int[2]`: a single whole number stands for a list of 2
  std::optional<c10::IValue> default_value;
};

Parameter DescribeParameter(const c10::Argument& argument);

// The class of a Lua value for overload resolution. Fits in four bits.
enum class ValueClass : uint8_t {
  kNil,
  kBoolean,
  kWhole,      // a number without a fraction, and not -0
  kMinusZero,  // 0 for an integer, and a float elsewhere: x:roll(-i) where i is 0
  kFraction,   // any other number
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

// Returns the value's class. A table is a list only if it holds nothing else: {2, 3, dtype = d} is
// kOther.
ValueClass Classify(lua_State* state, int index);

// Returns whether an integer can be read from the value.
bool IsWhole(ValueClass value);

// Returns the cost of passing a value of this class to the parameter: 0 exact, more for
// conversions; nullopt if it does not fit.
std::optional<int> ConversionCost(ValueClass value, const Parameter& parameter);

// Returns the type that the parameter takes, for messages: "a tensor", "a whole number".
std::string Expected(const Parameter& parameter);

// Returns a number as Lua writes it, but with every digit of a whole number, for messages.
std::string NumberText(double value);

// Returns a description of the value, for messages: "tensor float32 {2, 3}", "the number 2", "{1,
// 2}".
std::string DescribeValue(lua_State* state, int index);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_OPERATORS_ARGUMENTS_H_
