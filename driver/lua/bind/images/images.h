// require "lockstep.core.images": //driver/images for lockstep/images.lua.

#ifndef LOCKSTEP_DRIVER_LUA_BIND_IMAGES_IMAGES_H_
#define LOCKSTEP_DRIVER_LUA_BIND_IMAGES_IMAGES_H_

#include "lua.hpp"

namespace lockstep::lua {

// Leaves the module on the stack: a package.preload function.
int OpenImages(lua_State* state);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_IMAGES_IMAGES_H_
