// require "lockstep.core.terminal": functions for the interactive session and for help.

#ifndef LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_TERMINAL_H_
#define LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_TERMINAL_H_

#include "lua.hpp"

namespace lockstep::lua {

// Leaves the module on the stack: a package.preload function.
int OpenTerminal(lua_State* state);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_TERMINAL_H_
