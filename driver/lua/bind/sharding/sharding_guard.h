// The guard, and texts gathered from all ranks, for `lockstep.core.sharding`.

#ifndef LOCKSTEP_DRIVER_LUA_BIND_SHARDING_SHARDING_GUARD_H_
#define LOCKSTEP_DRIVER_LUA_BIND_SHARDING_SHARDING_GUARD_H_

#include "lua.hpp"

namespace lockstep::lua {

// Adds "guard" and "gathering" to the module on top of the stack, and registers their types. Call
// it once in each state.
void SetGuardFunctions(lua_State* state);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_SHARDING_SHARDING_GUARD_H_
