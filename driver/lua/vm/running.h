// The Lua state that runs on this thread.

#ifndef LOCKSTEP_DRIVER_LUA_VM_RUNNING_H_
#define LOCKSTEP_DRIVER_LUA_VM_RUNNING_H_

#include "lua.hpp"

namespace lockstep::lua {

// Returns the state or coroutine that this thread runs, through which C++ may call Lua, or nullptr
// if it runs no Lua.
lua_State* RunningState();

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_VM_RUNNING_H_
