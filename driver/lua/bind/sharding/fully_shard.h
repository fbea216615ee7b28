// Sharded models, for `lockstep.core.sharding`.

#ifndef LOCKSTEP_DRIVER_LUA_BIND_SHARDING_FULLY_SHARD_H_
#define LOCKSTEP_DRIVER_LUA_BIND_SHARDING_FULLY_SHARD_H_

#include "lua.hpp"

namespace lockstep::lua {

// Adds "fully_shard" to the module on top of the stack, and makes its type known. Once in each
// state.
void SetFullyShardFunctions(lua_State* state);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_SHARDING_FULLY_SHARD_H_
