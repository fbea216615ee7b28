// Calls operators of a few frequent signatures as C++ calls them, without boxed arguments.
//
// A boxed call allocates a list of integers twice, and moves every argument to another stack. For
// sum(x, {1}, true) that is a tenth of the instructions.

#ifndef LOCKSTEP_DRIVER_LUA_OPERATORS_UNBOXED_H_
#define LOCKSTEP_DRIVER_LUA_OPERATORS_UNBOXED_H_

#include "driver/lua/operators/overloads.h"

namespace lockstep::lua {

// Returns the function that calls the overload, or an empty one if it must be called boxed.
UnboxedCall FindUnboxedCall(const Overload& overload);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_OPERATORS_UNBOXED_H_
