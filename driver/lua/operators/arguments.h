// One Lua value as one argument of an ATen operator: which parameters it fits, at what cost.

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
  bool optional = false;  // nil is a value of its own: `Tensor?`
  bool keyword_only = false;
  bool written = false;  // the operator writes into it: `Tensor(a!)`
  size_t list_size = 0;  // `int[2]`: a single whole number stands for a list of 2
  std::optional<c10::IValue> default_value;
};

Parameter DescribeParameter(const c10::Argument& argument);

// What a Lua value is, as far as overload resolution looks. Fits in four bits.
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

// A table is a list only where it holds nothing else: {2, 3, dtype = d} is kOther.
ValueClass Classify(lua_State* state, int index);

// Whether an integer can be read from it.
bool IsWhole(ValueClass value);

// What it costs to pass a value of this class to the parameter: 0 exact, more for conversions;
// nullopt where it does not fit.
std::optional<int> ConversionCost(ValueClass value, const Parameter& parameter);

// "a tensor", "a whole number": what the parameter takes, for messages.
std::string Expected(const Parameter& parameter);

// A number as Lua writes it, but with every digit of a whole one: for messages.
std::string NumberText(double value);

// "tensor float32 {2, 3}", "the number 2", "{1, 2}": a value that was given, for messages.
std::string DescribeValue(lua_State* state, int index);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_OPERATORS_ARGUMENTS_H_
