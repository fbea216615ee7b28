// The modules that are C++, by the names that `require` knows them.

#ifndef LOCKSTEP_DRIVER_LUA_BIND_MODULES_H_
#define LOCKSTEP_DRIVER_LUA_BIND_MODULES_H_

#include "driver/lua/vm/vm.h"

namespace lockstep::lua {

// Makes them known to the state; each is opened when it is first required.
void PreloadModules(LuaVm& vm);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_MODULES_H_
