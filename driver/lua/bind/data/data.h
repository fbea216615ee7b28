// lockstep.core.data: sources, mixes and workers for lockstep.data.

#ifndef LOCKSTEP_DRIVER_LUA_BIND_DATA_DATA_H_
#define LOCKSTEP_DRIVER_LUA_BIND_DATA_DATA_H_

#include "lua.hpp"

namespace lockstep::lua {

int OpenData(lua_State* state);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_DATA_DATA_H_
