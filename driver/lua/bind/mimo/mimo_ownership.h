// Ownership tables for `lockstep.mimo`: what mimo.slice, the bridge and mimo.reorder all follow.

#ifndef LOCKSTEP_DRIVER_LUA_BIND_MIMO_MIMO_OWNERSHIP_H_
#define LOCKSTEP_DRIVER_LUA_BIND_MIMO_MIMO_OWNERSHIP_H_

#include <cstdint>
#include <string>
#include <vector>

#include "lua.hpp"
#include "mimo/batch/slice.h"

namespace lockstep::lua {

// The table at `index`, or null where the value is of another type.
mimo::Table TableAt(lua_State* state, int index);
void PushTable(lua_State* state, mimo::Table table);

// What the rows of a tensor belong to: a table (its tokens), a table's path in a batch, or
// {table or path, "samples"|"items"|"tokens"}. Throws Error that begins with `name`.
mimo::OwnedRows ReadOwnedRows(lua_State* state, int index, const std::string& name);

// An array of whole numbers, or a tensor of them with `dims` dims.
std::vector<int64_t> ReadCounts(lua_State* state, int index, const std::string& name, int dims = 1);

// A permutation of `num_samples` samples, from 1 in Lua; the result counts from 0.
std::vector<int64_t> ReadOrder(lua_State* state, int index, const std::string& name,
                               int64_t num_samples);

// An array of numbers.
std::vector<double> ReadCosts(lua_State* state, int index, const std::string& name);

// Makes the type of tables known, and sets in the table on top of the stack what makes them,
// ownership(options), and group_costs. Once in each state.
void OpenOwnership(lua_State* state);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_MIMO_MIMO_OWNERSHIP_H_
