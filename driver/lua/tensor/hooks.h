// x:register_hook(fn): Lua functions that see, and may replace, the gradient of a tensor.
//
// A hook that captures its own tensor is a cycle that no collector sees completely: Lua's value
// keeps the C++ tensor, which keeps the hook, which keeps Lua's function, which keeps the value. So
// the tensor's hooks are held in one of two ways:
//
//    rooted    by the registry: Lua never collects them while the C++ hook exists.
//    unrooted  by the environment of the tensor's Lua value: Lua collects them together.
//
// Hooks begin rooted. In each cycle the collector unroots the hooks of tensors that only one Lua
// value holds. Reading that value from C++ may let others hold the tensor, so it roots them again.
// The next cycle finds an unrooted tensor that Lua no longer reaches, with its hooks.
//
// Thread: the thread that owns the state.

#ifndef LOCKSTEP_DRIVER_LUA_TENSOR_HOOKS_H_
#define LOCKSTEP_DRIVER_LUA_TENSOR_HOOKS_H_

#include "ATen/core/TensorBody.h"
#include "lua.hpp"

namespace lockstep::lua {

// x:register_hook(fn) -> handle. fn(grad) returns another gradient, or nil. handle:remove().
int RegisterHook(lua_State* state);

// Roots the unrooted hooks of the tensor at `index`.
void RootHooks(lua_State* state, int index);

// The two functions that follow are in tensor.cc. They read a tensor's value and leave its hooks as
// they are.

// Returns the tensor at `index`, or nullptr if the value is not a tensor.
const at::Tensor* PeekTensor(lua_State* state, int index);

// Records whether the tensor at `index` has unrooted hooks, which TensorAt then roots. Returns the
// old value.
bool SetUnrootedHooks(lua_State* state, int index, bool unrooted);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_TENSOR_HOOKS_H_
