// Dataset shards and packing for `lockstep.core.sharding`.

#ifndef LOCKSTEP_DRIVER_LUA_BIND_SHARDING_SHARDING_DATA_H_
#define LOCKSTEP_DRIVER_LUA_BIND_SHARDING_SHARDING_DATA_H_

#include "lua.hpp"

namespace lockstep::lua {

// Adds "dataset" and "packer" to the module on top of the stack, and registers their types. Call it
// once in each state.
void SetDataFunctions(lua_State* state);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_SHARDING_SHARDING_DATA_H_
