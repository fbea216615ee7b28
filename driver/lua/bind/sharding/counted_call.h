// Counts collectives that fail before they begin.
//
//    SetFunctions(state, {{"all_reduce", CountedCall<AllReduce>}});
//
// The failure this prevents. On one rank all_reduce has an invalid argument. The script catches the
// error and goes on, and its next all_reduce meets the others' previous one: all later values are
// of different steps. See CallOrder::Refuse.

#ifndef LOCKSTEP_DRIVER_LUA_BIND_SHARDING_COUNTED_CALL_H_
#define LOCKSTEP_DRIVER_LUA_BIND_SHARDING_COUNTED_CALL_H_

#include <cstdint>
#include <exception>
#include <string>

#include "driver/ranks/script_calls.h"
#include "lua.hpp"

namespace lockstep::lua {

// Counts a call that this rank has refused to make, in the group that the arguments name.
void RefuseCall(lua_State* state, const std::string& reason);

// Calls `function`. If it throws before it has come to its collective, the call counts as refused.
template <lua_CFunction function>
int CountedCall(lua_State* state) {
  const int64_t calls = driver::NumScriptCalls();
  try {
    return function(state);
  } catch (const std::exception& error) {
    if (driver::NumScriptCalls() == calls) RefuseCall(state, error.what());
    throw;
  }
}

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_SHARDING_COUNTED_CALL_H_
