// mimo.slice and mimo.reorder for Lua, where a batch is a tree of tables.

#ifndef LOCKSTEP_DRIVER_LUA_BIND_MIMO_MIMO_SLICE_H_
#define LOCKSTEP_DRIVER_LUA_BIND_MIMO_MIMO_SLICE_H_

#include "lua.hpp"

namespace lockstep::lua {

// slice(batch, dp_rank, dp_size, options) -> this rank's part
int SliceBatch(lua_State* state);

// reorder(batch, order, options) -> the whole batch in that order
int ReorderBatch(lua_State* state);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_MIMO_MIMO_SLICE_H_
