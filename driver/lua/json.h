// JSON to and from Lua values.

#ifndef LOCKSTEP_DRIVER_LUA_JSON_H_
#define LOCKSTEP_DRIVER_LUA_JSON_H_

#include "lua.hpp"

namespace lockstep::lua {

// encode(value [, indent]) -> text on one line, or indented by `indent` spaces. Tables with a value
// at 1 are arrays, others objects with sorted keys; an empty table is an object. NaN and the
// infinities, which JSON lacks, become "NaN", "Infinity" and "-Infinity". Throws Error for
// functions, tensors and what else JSON cannot say.
int JsonEncode(lua_State* state);

// decode(text) -> value. null becomes the light userdata `null`; whole numbers beyond 2^53 are an
// error, since a Lua number would round them. Throws Error with the offset of the first mistake.
int JsonDecode(lua_State* state);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_JSON_H_
