// Converts Lua values to ATen's boxed values, and back.

#ifndef LOCKSTEP_DRIVER_LUA_OPERATORS_CONVERSION_H_
#define LOCKSTEP_DRIVER_LUA_OPERATORS_CONVERSION_H_

#include "ATen/core/ivalue.h"
#include "driver/lua/operators/arguments.h"
#include "lua.hpp"

namespace lockstep::lua {

// Returns the value as the parameter's type, if ConversionCost accepts it, and the default for nil.
// Throws Error if a name (of a device, a layout) is unknown.
c10::IValue Convert(lua_State* state, int index, const Parameter& parameter);

// Pushes one result: a tensor, number, boolean, string, nil, or an array of these.
void PushValue(lua_State* state, const c10::IValue& value);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_OPERATORS_CONVERSION_H_
