// Calls operators that take a list of integers as C++ calls them: sum, mean, view, reshape.
//
// A boxed call allocates the list twice and moves each argument to another stack. An unboxed call
// of sum(x, {1}, true) takes nine tenths of the time, and of view(x, {2, 8}) eight tenths.
// Operators without a list, such as transpose and unsqueeze, would gain 2 %, so they stay boxed.

#ifndef LOCKSTEP_DRIVER_LUA_OPERATORS_UNBOXED_H_
#define LOCKSTEP_DRIVER_LUA_OPERATORS_UNBOXED_H_

#include "driver/lua/operators/overloads.h"

namespace lockstep::lua {

// Returns the function that calls the overload, or an empty one if it must be called boxed.
UnboxedCall FindUnboxedCall(const Overload& overload);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_OPERATORS_UNBOXED_H_
