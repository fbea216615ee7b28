// Chooses the overload of an ATen operator that a call from Lua means.
//
// Each argument has a class (tensor, whole number, list of numbers, ...). An overload accepts the
// call if every argument fits its parameter and every parameter without a default has an argument.
// The cheapest by (conversions, defaults used, name) wins. `out` overloads are considered only if
// `out=` is given.
//
// nil stands for an argument that is not given. Beyond the last parameter, nils count as no
// arguments. A last empty table that is no value of its parameter counts as no keyword arguments:
// torch.zeros({2}, options) and x:argmax(options) work with any options.

#ifndef LOCKSTEP_DRIVER_LUA_OPERATORS_OVERLOADS_H_
#define LOCKSTEP_DRIVER_LUA_OPERATORS_OVERLOADS_H_

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "driver/lua/operators/arguments.h"
#include "lua.hpp"

namespace lockstep::lua {

struct Binding;

// Calls an overload with arguments from the Lua stack.
using UnboxedCall = std::function<at::Tensor(lua_State*, const Binding&)>;

struct Overload {
  c10::OperatorHandle handle;
  std::vector<Parameter> parameters = {};
  size_t num_positional = 0;  // the others are keyword-only
  bool is_out = false;        // writes into keyword arguments: `out=`
  bool takes_spread = false;  // x:view(2, 3): the last positional is a list of any length
  std::vector<int> result_argument = {};  // result i is argument result_argument[i] itself, or -1
  UnboxedCall unboxed = {};               // empty: only boxed, see unboxed.h
};

Overload DescribeOverload(const c10::OperatorHandle& handle);

// "torch.add(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"
std::string SchemaText(const Overload& overload, const std::string& name);

struct KeywordArgument {
  const char* name;  // belongs to the table of keywords
  int index;         // on the stack
};

// The arguments of a call; positional arguments come first on the stack.
struct Arguments {
  int num_positional = 0;
  std::vector<KeywordArgument> keywords;
};

// The place of each parameter's value on the Lua stack; 0: the default. With `spread_from` above 0
// the last positional parameter takes the numbers from there to `spread_to`.
struct Binding {
  const Overload* overload = nullptr;
  std::vector<int> sources;
  int spread_from = 0;
  int spread_to = 0;
};

// Returns the binding of the cheapest overload. If none fits, throws Error with the operator, the
// given arguments and the reason for each schema. The result depends on the values' classes, never
// on the values.
Binding Resolve(lua_State* state, const std::string& name, const std::vector<Overload>& overloads,
                const Arguments& arguments);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_OPERATORS_OVERLOADS_H_
