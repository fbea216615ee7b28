// require "lockstep.core.text": //driver/text for lockstep/text.lua.

#ifndef LOCKSTEP_DRIVER_LUA_BIND_TEXT_TEXT_H_
#define LOCKSTEP_DRIVER_LUA_BIND_TEXT_TEXT_H_

#include "lua.hpp"

namespace lockstep::lua {

// Leaves the module on the stack: a package.preload function.
int OpenText(lua_State* state);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_TEXT_TEXT_H_
