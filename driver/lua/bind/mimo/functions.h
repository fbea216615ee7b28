// lockstep.core.mimo: batches, schedules and bridges.

#ifndef LOCKSTEP_DRIVER_LUA_BIND_MIMO_FUNCTIONS_H_
#define LOCKSTEP_DRIVER_LUA_BIND_MIMO_FUNCTIONS_H_

#include "lua.hpp"
#include "mimo/bridge/bridge.h"
#include "mimo/topology/topology.h"

namespace lockstep::lua {

// slice(batch: table, dp_rank: integer, dp_size: integer, options?: table<string, any>) -> table
// Returns a replica's part of the batch.
int SliceBatch(lua_State* state);

// pack(batch: table, options?: {mask: string?, whole: string[]?}) -> table
// The tokens of padded samples in one row.
int PackBatch(lua_State* state);

// reorder(batch: table, order: integer[], options: table<string, any>) -> table
// The whole batch in another order. order: samples, from 1.
int ReorderBatch(lua_State* state);

// check_schedule(topology, {micro_batches=, micro_batch_size=, order=}) -> operations, transfers,
// collectives. The topology is argument 1.
int CheckSchedule(lua_State* state, const mimo::Topology& topology);

// simulate_messages(names: string[], operations: integer[][][]) -> operations: integer,
//     transfers: integer
// Proves that the sends and receives of all ranks match and end if nothing buffers a message.
// Raises with those that do not match, or with the ranks that wait for each other. names: of
// stages; operations: of each rank: {kind, gradient, with_previous, partner, subject, micro_batch},
// whole numbers from 0; kind: 0 sends, 1 receives.
int SimulateMessages(lua_State* state);

// Pushes a bridge over topology.edges()[edge], a userdata with `start` and `refuse`. Throws Error
// with the ranks that did not come within the run's timeout. Collective: every rank of both modules
// makes one, in the same order.
int PushBridge(lua_State* state, const mimo::Topology& topology, int edge,
               mimo::BridgeOptions options);

// Registers the types of bridges and of their calls. Call it once in each state, before PushBridge.
void RegisterBridges(lua_State* state);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_MIMO_FUNCTIONS_H_
