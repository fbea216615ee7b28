// x:register_hook(fn): Lua functions that see, and may replace, the gradient of a tensor.
//
// A hook that captures its own tensor is a cycle that no collector sees whole: Lua's value keeps
// the C++ tensor, which keeps the hook, which keeps Lua's function, which keeps the value. So the
// tensor's hooks are held in one of two ways:
//   rooted    by the registry: Lua never collects them while the C++ hook exists.
//   unrooted  by the environment of the tensor's Lua value: Lua collects them together.
// Hooks begin rooted. Each cycle of the collector unroots those whose tensor nothing but one Lua
// value holds. Reading that value from C++, which may make others hold the tensor, roots them
// again. The cycle after finds an unrooted tensor that Lua no longer reaches, with its hooks.
//
// Thread: the one that owns the state.

#ifndef LOCKSTEP_DRIVER_LUA_TORCH_HOOKS_H_
#define LOCKSTEP_DRIVER_LUA_TORCH_HOOKS_H_

#include "ATen/core/TensorBody.h"
#include "lua.hpp"

namespace lockstep::lua {

// x:register_hook(fn) -> handle. fn(grad) returns another gradient, or nil. handle:remove().
int RegisterHook(lua_State* state);

// Roots the hooks of the tensor at `index`, which were unrooted.
void RootHooks(lua_State* state, int index);

// The two functions that follow are in tensor.cc. They read a tensor's value and leave its hooks as
// they are.

// Returns the tensor at `index`, or nullptr where the value is something else.
const at::Tensor* PeekTensor(lua_State* state, int index);

// Notes whether the tensor at `index` has unrooted hooks, which TensorAt then roots. Returns
// whether it had.
bool SetUnrootedHooks(lua_State* state, int index, bool unrooted);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_TORCH_HOOKS_H_
