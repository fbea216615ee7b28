// torch.cuda: devices, memory, streams and events, through c10's device-generic interfaces.

#ifndef LOCKSTEP_DRIVER_LUA_TENSOR_CUDA_H_
#define LOCKSTEP_DRIVER_LUA_TENSOR_CUDA_H_

#include "lua.hpp"

namespace lockstep::lua {

// Pushes the table torch.cuda.
void PushCuda(lua_State* state);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_TENSOR_CUDA_H_
