// Ownership tables for `lockstep.mimo`, which mimo.slice, the bridge and mimo.reorder follow.

#ifndef LOCKSTEP_DRIVER_LUA_BIND_MIMO_MIMO_OWNERSHIP_H_
#define LOCKSTEP_DRIVER_LUA_BIND_MIMO_MIMO_OWNERSHIP_H_

#include <cstdint>
#include <string>
#include <vector>

#include "lua.hpp"
#include "mimo/batch/slice.h"

namespace lockstep::lua {

// Returns the table at `index`, or null if the value has another type.
mimo::Table TableAt(lua_State* state, int index);
int PushTable(lua_State* state, mimo::Table table);

// Reads the owners of a tensor's rows: a table (its tokens), a table's path in a batch, or {table
// or path, "samples"|"items"|"tokens"}. Throws Error that begins with `name`.
mimo::OwnedRows ReadOwnedRows(lua_State* state, int index, const std::string& name);

// Reads an array of whole numbers, or a tensor of them with `dims` dims.
std::vector<int64_t> ReadCounts(lua_State* state, int index, const std::string& name, int dims = 1);

// Reads a permutation of `num_samples` samples, from 1 in Lua; the result counts from 0.
std::vector<int64_t> ReadOrder(lua_State* state, int index, const std::string& name,
                               int64_t num_samples);

// Reads an array of numbers.
std::vector<double> ReadCosts(lua_State* state, int index, const std::string& name);

// Registers the type of tables, and adds ownership(options) and group_costs to the table on top of
// the stack. Call it once in each state.
void OpenOwnership(lua_State* state);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_MIMO_MIMO_OWNERSHIP_H_
