// mimo.slice for Lua, whose tables are trees of values.

#ifndef LOCKSTEP_DRIVER_LUA_MIMO_SLICE_H_
#define LOCKSTEP_DRIVER_LUA_MIMO_SLICE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "lua.hpp"

namespace lockstep::lua {

// An array of whole numbers, or a 1-D tensor of them.
std::vector<int64_t> ReadCounts(lua_State* state, int index, const std::string& name);

// slice(batch, dp_rank, dp_size, options) -> this rank's part
int SliceBatch(lua_State* state);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_MIMO_SLICE_H_
