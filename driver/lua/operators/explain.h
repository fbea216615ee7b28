// Adds to an operator's error which element of its arguments is wrong.

#ifndef LOCKSTEP_DRIVER_LUA_OPERATORS_EXPLAIN_H_
#define LOCKSTEP_DRIVER_LUA_OPERATORS_EXPLAIN_H_

#include <string>
#include <vector>

#include "ATen/core/ivalue.h"

namespace lockstep::lua {

// Returns `message`, the error that the operator raised for `arguments`. If it says that a target
// or an index is out of range, adds the value, its position and the range.
std::string Explain(std::string message, const std::vector<c10::IValue>& arguments);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_OPERATORS_EXPLAIN_H_
