// ATen's operators as Lua functions, found through the dispatcher and called by schema.
//
//   const Operator* add = FindOperator("add");
//   return CallOperator(state, *add);   // in a lua_CFunction: the stack holds the arguments
//
// From Lua: torch.add(x, 2), torch.sum(x, {dim = {1}, keepdim = true}), x:view(2, -1).
//
// A table with string keys in last place holds keyword arguments; which overload is meant, says
// overloads.h. The choice is remembered by the classes of the arguments. Overloads for named
// dimensions are left out.

#ifndef LOCKSTEP_DRIVER_LUA_OPERATORS_OPERATORS_H_
#define LOCKSTEP_DRIVER_LUA_OPERATORS_OPERATORS_H_

#include <string>
#include <vector>

#include "lua.hpp"

namespace lockstep::lua {

struct Operator;

// The operator aten::<name>, or nullptr. Belongs to the calling thread, for the thread's life.
Operator* FindOperator(const std::string& name);

// Calls the overload that fits the arguments, which are all of the stack; returns the number of
// results. Throws Error naming the operator, its schemas and what was given where none fits; where
// the kernel fails, its message with the operator's name before it.
int CallOperator(lua_State* state, Operator& op);

// The same as a function value.
void PushOperator(lua_State* state, Operator& op);

// All names, sorted, and the schemas of one as people read them:
// "torch.add(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor".
std::vector<std::string> OperatorNames();
std::vector<std::string> OperatorSchemas(const std::string& name);

// Whether x:name() makes sense: the first parameter of some overload is a tensor.
bool IsMethod(const Operator& op);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_OPERATORS_OPERATORS_H_
