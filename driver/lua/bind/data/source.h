// lockstep.core.data: sources, whose samples are `#source` and `source[i]` from 1.

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

// source(paths: string[], format: string, cache: string, columns: string[]) -> data.Source
// Throws an error that names the file, or says what was expected. paths: files and folders; format:
// "jsonl", "lines", "text", "tar", "parquet"; "": by the names of the files; cache: folder of
// indexes; columns: of Parquet files; empty: all.
int NewSource(lua_State* state);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_DATA_SOURCE_H_
