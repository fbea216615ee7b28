// Bridges for `lockstep.mimo`.

#ifndef LOCKSTEP_DRIVER_LUA_BIND_MIMO_MIMO_BRIDGE_H_
#define LOCKSTEP_DRIVER_LUA_BIND_MIMO_MIMO_BRIDGE_H_

#include "lua.hpp"
#include "mimo/bridge/bridge.h"
#include "mimo/topology/topology.h"

namespace lockstep::lua {

// Pushes a bridge over topology.edges()[edge], a userdata with `start` and `refuse`. Throws Error
// with the ranks that did not come within the run's timeout. Collective: every rank of both modules
// makes one, in the same order.
void PushBridge(lua_State* state, const mimo::Topology& topology, int edge,
                mimo::BridgeOptions options);

// Registers the types of bridges and of their calls. Call it once in each state, before PushBridge.
void RegisterBridges(lua_State* state);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_MIMO_MIMO_BRIDGE_H_
