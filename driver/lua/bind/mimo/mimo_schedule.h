// topology:check_schedule of require "lockstep.mimo": simulates a step.

#ifndef LOCKSTEP_DRIVER_LUA_BIND_MIMO_MIMO_SCHEDULE_H_
#define LOCKSTEP_DRIVER_LUA_BIND_MIMO_MIMO_SCHEDULE_H_

#include "lua.hpp"
#include "mimo/topology/topology.h"

namespace lockstep::lua {

// check_schedule(topology, {micro_batches=, micro_batch_size=, order=}) -> operations, transfers,
// collectives. The topology is argument 1.
int CheckSchedule(lua_State* state, const mimo::Topology& topology);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_MIMO_MIMO_SCHEDULE_H_
