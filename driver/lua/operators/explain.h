// What an operator's error leaves out: which element of its arguments is the wrong one.

#ifndef LOCKSTEP_DRIVER_LUA_OPERATORS_EXPLAIN_H_
#define LOCKSTEP_DRIVER_LUA_OPERATORS_EXPLAIN_H_

#include <string>
#include <vector>

#include "ATen/core/ivalue.h"

namespace lockstep::lua {

// Returns `message`, that of an error which the operator raised for `arguments`. Where it says that
// a target or an index is out of range, names the value, its position and the range.
std::string Explain(std::string message, const std::vector<c10::IValue>& arguments);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_OPERATORS_EXPLAIN_H_
