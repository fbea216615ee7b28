// ATen's operators as Lua functions, found through the dispatcher and called by schema.
//
//    const Operator* add = FindOperator("add");
//    return CallOperator(state, *add);   // in a lua_CFunction: the stack holds the arguments
//
// From Lua: torch.add(x, 2), torch.sum(x, {dim = {1}, keepdim = true}), x:view(2, -1).
//
// A table with string keys in last place holds keyword arguments. overloads.h chooses the overload.
// The choice is cached by the classes of the arguments. Overloads for named
// dimensions are left out.

#ifndef LOCKSTEP_DRIVER_LUA_OPERATORS_OPERATORS_H_
#define LOCKSTEP_DRIVER_LUA_OPERATORS_OPERATORS_H_

#include <string>
#include <vector>

#include "lua.hpp"

namespace lockstep::lua {

struct Operator;

// Returns the operator aten::<name>, or nullptr. The operator lockstep::swiglu of another library
// has the name "ops.lockstep.swiglu". The result belongs to the calling thread, for the thread's
// life.
Operator* FindOperator(const std::string& name);

// Calls the overload that fits the arguments, which are the whole stack, and returns the number of
// results. If no overload fits, throws Error with the operator, its schemas and the given
// arguments. If the kernel fails, throws its message with the operator's name before it.
int CallOperator(lua_State* state, Operator& op);

// While it lives, operators that draw random numbers throw Error on this thread, and name `where`.
// Torch's generator belongs to the run: if several threads drew from it, its numbers would depend
// on time.
class RandomRefused {
 public:
  explicit RandomRefused(const char* where);
  RandomRefused(const RandomRefused&) = delete;
  RandomRefused& operator=(const RandomRefused&) = delete;
  ~RandomRefused();

 private:
  const char* before_;
};

// Throws Error if random numbers are refused on this thread.
void CheckRandomAllowed(const std::string& function);

// Pushes the operator as a function value.
void PushOperator(lua_State* state, Operator& op);

// Return the names of ATen's operators, sorted, and the schemas of one operator as people read
// them: "torch.add(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor".
std::vector<std::string> OperatorNames();
std::vector<std::string> OperatorSchemas(const std::string& name);

// Returns whether x:name() makes sense: the first parameter of some overload is a tensor.
bool IsMethod(const Operator& op);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_OPERATORS_OPERATORS_H_
