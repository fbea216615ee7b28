// The overloads of one ATen operator, and which of them a call from Lua means.
//
// Each argument is classed (tensor, whole number, list of numbers, ...). An overload accepts the
// call if every argument fits its parameter and every parameter without a default has an argument;
// the cheapest by (conversions, defaults used, name) wins. `out` overloads are looked at where
// `out=` is given, and only there.
//
// nil stands for an argument that is not given. Beyond the last parameter, nils and one empty table
// count as no keyword arguments: torch.zeros({2}, options) works whatever a caller gave as options.

#ifndef LOCKSTEP_DRIVER_LUA_OPERATORS_OVERLOADS_H_
#define LOCKSTEP_DRIVER_LUA_OPERATORS_OVERLOADS_H_

#include <cstddef>
#include <string>
#include <vector>

#include "ATen/core/dispatch/Dispatcher.h"
#include "driver/lua/operators/arguments.h"
#include "lua.hpp"

namespace lockstep::lua {

struct Overload {
  c10::OperatorHandle handle;
  std::vector<Parameter> parameters = {};
  size_t num_positional = 0;  // the others are keyword-only
  bool is_out = false;        // writes into keyword arguments: `out=`
  bool takes_spread = false;  // x:view(2, 3): the last positional is a list of any length
  std::vector<int> result_argument = {};  // result i is argument result_argument[i] itself, or -1
};

Overload DescribeOverload(const c10::OperatorHandle& handle);

// "torch.add(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"
std::string SchemaText(const Overload& overload, const std::string& name);

struct KeywordArgument {
  const char* name;  // belongs to the table of keywords
  int index;         // on the stack
};

// Positional arguments are the first of the stack.
struct Arguments {
  int num_positional = 0;
  std::vector<KeywordArgument> keywords;
};

// Where each parameter's value lies on the Lua stack; 0: the default. With `spread_from` above 0
// the last positional parameter gathers the numbers from there to `spread_to`.
struct Binding {
  const Overload* overload = nullptr;
  std::vector<int> sources;
  int spread_from = 0;
  int spread_to = 0;
};

// The binding of the cheapest overload. Throws Error, naming the operator, what was given and why
// each schema does not fit, where none does. Depends on the values' classes, never on the values.
Binding Resolve(lua_State* state, const std::string& name, const std::vector<Overload>& overloads,
                const Arguments& arguments);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_OPERATORS_OVERLOADS_H_
