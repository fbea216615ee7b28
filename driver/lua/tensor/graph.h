// require "lockstep.core.graph": recorded steps for lockstep/graph.lua, CUDA graphs on a GPU and
// tapes of operators on the CPU.

#ifndef LOCKSTEP_DRIVER_LUA_TENSOR_GRAPH_H_
#define LOCKSTEP_DRIVER_LUA_TENSOR_GRAPH_H_

#include "lua.hpp"

namespace lockstep::lua {

// Leaves lockstep.core.graph on the stack: a package.preload function.
int OpenGraph(lua_State* state);

// Throws Error if a graph is being recorded on this thread. `what` needs a value that no kernel has
// computed yet.
void CheckNotRecording(const char* what);

// Returns whether a graph is being recorded on this thread.
bool IsGraphRecording();

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_TENSOR_GRAPH_H_
