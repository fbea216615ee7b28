// JSON to and from Lua values.

#ifndef LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_JSON_H_
#define LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_JSON_H_

#include "lua.hpp"

namespace lockstep::lua {

// encode(value [, indent]) -> text on one line, or indented by `indent` spaces. Tables with a value
// at 1 are arrays, others objects with sorted keys; an empty table is an object. NaN and the
// infinities, which JSON lacks, become the strings "NaN", "Infinity" and "-Infinity". Throws Error,
// naming the path, for what JSON cannot say or would not give back: functions, tensors, text that
// is not UTF-8, a table that is array and object at once or has holes.
int JsonEncode(lua_State* state);

// decode(text [, name]) -> value. null becomes the light userdata `null`; whole numbers beyond 2^53
// are an error, since a Lua number would round them. Throws Error, which begins with `name`
// ("json"), with the offset of the first mistake.
int JsonDecode(lua_State* state);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_JSON_H_
