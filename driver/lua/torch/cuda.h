// torch.cuda: devices, memory, streams and events, through c10's device-generic interfaces; and
// require "lockstep.core.graph": CUDA graphs for lockstep/graph.lua.

#ifndef LOCKSTEP_DRIVER_LUA_TORCH_CUDA_H_
#define LOCKSTEP_DRIVER_LUA_TORCH_CUDA_H_

#include "lua.hpp"

namespace lockstep::lua {

// Pushes the table torch.cuda.
void PushCuda(lua_State* state);

// Leaves lockstep.core.graph on the stack: a package.preload function.
int OpenGraph(lua_State* state);

// Throws Error if a graph is being recorded on this thread. `what` needs a value that no kernel has
// computed yet.
void CheckNotRecording(const char* what);

// Returns whether a graph is being recorded on this thread.
bool IsGraphRecording();

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_TORCH_CUDA_H_
