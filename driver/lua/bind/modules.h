// The modules in C++, by the names that `require` uses.

#ifndef LOCKSTEP_DRIVER_LUA_BIND_MODULES_H_
#define LOCKSTEP_DRIVER_LUA_BIND_MODULES_H_

#include "driver/lua/vm/vm.h"

namespace lockstep::lua {

// Registers the modules in the state. Each is opened when it is first required.
void PreloadModules(LuaVm& vm);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_MODULES_H_
