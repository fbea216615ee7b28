// An index of samples as Lua values: numbers, strings and tables of them, which JSON can hold.
//
//    { tokens = 9, loss = { 4, 9 }, kind = "image",
//      tensors = { pixel_values = { dtype = "float32", shape = { 8, 3 } } },
//      streams = { advantages = "float32" },
//      items = { image = { { 1, 3, 8 } } } }   -- begin, end, rows; only {rows} where not located

#ifndef LOCKSTEP_DRIVER_LUA_BIND_BATCHING_OUTLINE_H_
#define LOCKSTEP_DRIVER_LUA_BIND_BATCHING_OUTLINE_H_

#include <string>

#include "batching/outline.h"
#include "lua.hpp"

namespace lockstep::lua {

int PushOutline(lua_State* state, const batching::Outline& outline);

// Throws Error, whose message begins with `where`, if the value is not of this form. Ignores the
// field `id`, which is the script's.
batching::Outline ReadOutline(lua_State* state, int index, const std::string& where);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_BATCHING_OUTLINE_H_
