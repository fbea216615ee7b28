// Lua values as ATen's boxed ones, and back.

#ifndef LOCKSTEP_DRIVER_LUA_OPERATORS_CONVERSION_H_
#define LOCKSTEP_DRIVER_LUA_OPERATORS_CONVERSION_H_

#include "ATen/core/ivalue.h"
#include "driver/lua/operators/arguments.h"
#include "lua.hpp"

namespace lockstep::lua {

// The value as the parameter's type, for a value that ConversionCost accepts; nil as the default.
// Throws Error where a name (of a device, a layout) is unknown.
c10::IValue Convert(lua_State* state, int index, const Parameter& parameter);

// Pushes one result: a tensor, number, boolean, string, nil, or an array of these.
void PushValue(lua_State* state, const c10::IValue& value);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_OPERATORS_CONVERSION_H_
