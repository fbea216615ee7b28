// require "lockstep.core.state": functions for run:save() that do not concern files. Scripts use
// lockstep.run.

#ifndef LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_STATE_H_
#define LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_STATE_H_

#include "lua.hpp"

namespace lockstep::lua {

// Leaves the module on the stack: a package.preload function.
int OpenState(lua_State* state);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_STATE_H_
