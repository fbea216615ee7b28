// Sources of samples as Lua values: `#source`, `source[i]` from 1, `source:place(i)`.

#ifndef LOCKSTEP_DRIVER_LUA_BIND_DATA_SOURCE_H_
#define LOCKSTEP_DRIVER_LUA_BIND_DATA_SOURCE_H_

#include <memory>

#include "driver/data/source.h"
#include "lua.hpp"

namespace lockstep::lua {

using SharedSource = std::shared_ptr<const data::Source>;

// Makes the metatable. Once per state, before PushSource.
void RegisterSource(lua_State* state);

// States share the source.
int PushSource(lua_State* state, SharedSource source);

// The source at `index`, or nullptr where the value is something else.
SharedSource SourceAt(lua_State* state, int index);

// source({path, ...}, format, cache_folder, {column, ...}) -> source
int NewSource(lua_State* state);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_DATA_SOURCE_H_
