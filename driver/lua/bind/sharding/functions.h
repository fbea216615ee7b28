// Parts of the modules lockstep.core.sharding and lockstep.distributed. Each function adds to the
// module on top of the stack, and registers the types that it needs. Call each once in a state.

#ifndef LOCKSTEP_DRIVER_LUA_BIND_SHARDING_FUNCTIONS_H_
#define LOCKSTEP_DRIVER_LUA_BIND_SHARDING_FUNCTIONS_H_

#include "lua.hpp"

namespace lockstep::lua {

void SetDataFunctions(lua_State* state);        // dataset, packer
void SetGuardFunctions(lua_State* state);       // guard, gathering
void SetFullyShardFunctions(lua_State* state);  // fully_shard
void SetRingFunctions(lua_State* state);        // shift, node
void SetLinkFunctions(lua_State* state);        // link
void SetFunctional(lua_State* state);           // functional: collectives with gradients

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_SHARDING_FUNCTIONS_H_
