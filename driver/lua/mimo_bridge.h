// Bridges for `lockstep.mimo`.

#ifndef LOCKSTEP_DRIVER_LUA_MIMO_BRIDGE_H_
#define LOCKSTEP_DRIVER_LUA_MIMO_BRIDGE_H_

#include <cstdint>

#include "lua.hpp"
#include "mimo/topology.h"

namespace lockstep::lua {

// Pushes a bridge over topology.edges()[edge], a userdata with `start` and `refuse`; `dim` is that
// of the rows. Collective: every rank of both modules makes one, in the same order. Throws Error
// that names the ranks that did not within the run's timeout.
void PushBridge(lua_State* state, const mimo::Topology& topology, int edge, int64_t dim);

// Makes the types of bridges and of their calls known. Once in each state, before PushBridge.
void RegisterBridges(lua_State* state);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_MIMO_BRIDGE_H_
