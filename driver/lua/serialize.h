// Plain Lua values as bytes, to travel between ranks.

#ifndef LOCKSTEP_DRIVER_LUA_SERIALIZE_H_
#define LOCKSTEP_DRIVER_LUA_SERIALIZE_H_

#include <string>

#include "lua.hpp"

namespace lockstep::lua {

// nil, booleans, numbers, strings and tables of them. Throws Error, naming the path, for anything
// else (functions, tensors), for a table inside itself and for nesting deeper than 64.
std::string Serialize(lua_State* state, int index);

// Pushes the value. `bytes` is what Serialize returned; throws Error where it is cut short.
void PushSerialized(lua_State* state, const std::string& bytes);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_SERIALIZE_H_
