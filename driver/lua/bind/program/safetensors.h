// require "lockstep.core.safetensors": binds driver/files/safetensors.h. Scripts use lockstep.data.

#ifndef LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_SAFETENSORS_H_
#define LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_SAFETENSORS_H_

#include "lua.hpp"

namespace lockstep::lua {

// Leaves the module on the stack: a package.preload function.
int OpenSafetensors(lua_State* state);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_SAFETENSORS_H_
