// dist.functional: collectives that a gradient passes through, for `lockstep.distributed`.

#ifndef LOCKSTEP_DRIVER_LUA_BIND_SHARDING_SHARDING_FUNCTIONAL_H_
#define LOCKSTEP_DRIVER_LUA_BIND_SHARDING_SHARDING_FUNCTIONAL_H_

#include "lua.hpp"

namespace lockstep::lua {

// Sets the field "functional" of the module on top of the stack.
void SetFunctional(lua_State* state);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_SHARDING_SHARDING_FUNCTIONAL_H_
