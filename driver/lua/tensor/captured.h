// The local variables that a function of the script has captured (Lua's upvalues). Finds those that
// have changed when the function runs again in backward.
//
// The failure this prevents:
//
//    for i = 1, 4 do h = ckpt(function(x) return f(x) * h end, h) end
//
// Forward reads four values of h. Backward runs the four functions again, and all of them read the
// last value: a wrong gradient, with no error.
//
//    CapturedVariables captured(state, 2);  // before the first run of the function at index 2
//    ...
//    captured.EndFirstRun();
//    ...
//    captured.Check("checkpoint: region train.lua:9: ");  // before another run; throws
//
// A variable has changed if it holds another value, or a tensor that was modified in place since. A
// parameter's memory is not compared: a region compares what it saves of one. Changes by the first
// run itself are no errors: a counter, a cache that it fills, running statistics. They are errors
// if gradients pass through the old or the new tensor.
//
// Functions that the function has captured count too, and those that they have captured. The
// library's functions do not: what they keep is theirs. Globals, and fields of tables and modules,
// do not count.
//
// Thread: the thread that owns the state.

#ifndef LOCKSTEP_DRIVER_LUA_TENSOR_CAPTURED_H_
#define LOCKSTEP_DRIVER_LUA_TENSOR_CAPTURED_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "driver/lua/vm/vm.h"
#include "lua.hpp"

namespace lockstep::lua {

class CapturedVariables {
 public:
  // If the value at `function` is not a function of the script, there is nothing to compare.
  CapturedVariables(lua_State* state, int function);

  // Call it after the first run. Check does nothing before.
  void EndFirstRun();

  // Throws Error if a variable has changed. `where` begins the message.
  void Check(const std::string& where) const;

 private:
  struct Variable {
    int closure;       // the index in `kept_` of the function
    int number;        // of the variable in the function, from 1
    int value;         // the index in `kept_` of the value
    uint32_t version;  // of a tensor's memory
  };
  std::vector<Variable> variables_;
  std::optional<LuaReference> kept_;  // an array of functions and values; none: no variables
  bool first_run_has_ended_ = false;
};

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_TENSOR_CAPTURED_H_
