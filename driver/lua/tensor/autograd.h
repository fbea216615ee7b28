// Gradients from Lua: backward, grad, grad mode.
//
// The driver turns multithreaded backward off, so hooks that are Lua functions run on the thread
// that owns the state.

#ifndef LOCKSTEP_DRIVER_LUA_TENSOR_AUTOGRAD_H_
#define LOCKSTEP_DRIVER_LUA_TENSOR_AUTOGRAD_H_

#include "lua.hpp"

namespace lockstep::lua {

int Backward(
    lua_State* state);         // x:backward([gradient] [, {retain_graph=, create_graph=, inputs=}])
int Grad(lua_State* state);    // torch.grad(outputs, inputs, {grad_outputs=, allow_unused=, ...})
int NoGrad(lua_State* state);  // torch.no_grad(fn, ...)
int InferenceMode(lua_State* state);  // torch.inference_mode(fn, ...)
int EnableGrad(lua_State* state);     // torch.enable_grad(fn, ...)
int IsGradEnabled(lua_State* state);  // torch.is_grad_enabled()

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_TENSOR_AUTOGRAD_H_
