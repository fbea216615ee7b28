// lockstep.core: JSON to and from Lua values.

#ifndef LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_JSON_H_
#define LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_JSON_H_

#include "absl/strings/string_view.h"
#include "lua.hpp"

namespace lockstep::lua {

// json_encode(value: any, indent?: integer, strict?: boolean) -> string
// Returns a text on one line, or indented by `indent` spaces. Tables with a value at 1 are arrays,
// others objects. An empty table is an object, unless it is marked as an array. Keys come in the
// order of the table's shape, then sorted. JSON lacks NaN and the infinities: they become the
// strings "NaN", "Infinity" and "-Infinity", or an error if `strict`.
//
// Throws Error, with the path, for values that JSON cannot hold or would not give back: functions,
// tensors, text that is not UTF-8, mixed tables and arrays with holes.
int JsonEncode(lua_State* state);

// json_decode(text: string, name?: string) -> any
// null becomes the light userdata `null`. An integer that a Lua number would round is an error; all
// up to 2^53 are exact. Throws Error, which begins with `name` ("json"), with the line and the
// offset of the first mistake.
int JsonDecode(lua_State* state);

// The part of a JSON text that a Lua table cannot hold. `floats` are the whole numbers that the
// file writes as 1.0 or 1e3; true: all of an array's.
//
// ---@class lockstep.core.JsonShape
// ---@field keys string[]? of an object, in the file's order
// ---@field array true? of an array, if it is empty or holds such numbers
// ---@field floats true|table<any, boolean>?

// json_shapes() -> table<table, JsonShape>
// Returns the shapes of decoded tables: a table that is weak in its keys. Shapes may be shared;
// they are never changed.
int JsonShapes(lua_State* state);

// Pushes the value of a JSON text, as decode returns it. Throws Error with the mistake and its
// offset.
void PushJson(lua_State* state, absl::string_view text);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_JSON_H_
