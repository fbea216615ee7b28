// torch.autocast(options, fn, ...): operators of fn compute in a lower precision if that is safe.
//
// Thread: the one that owns the state. The settings are the thread's; they are restored when fn
// returns, and when it fails.

#ifndef LOCKSTEP_DRIVER_LUA_TENSOR_AUTOCAST_H_
#define LOCKSTEP_DRIVER_LUA_TENSOR_AUTOCAST_H_

#include "lua.hpp"

namespace lockstep::lua {

// torch.autocast({dtype =, device =, enabled =, cache_enabled =}, fn, ...) -> what fn returns.
int Autocast(lua_State* state);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_TENSOR_AUTOCAST_H_
