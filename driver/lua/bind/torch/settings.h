// Functions of lockstep.torch that set how ATen computes, in the whole process: the precision of
// float32 products, and whether operators must repeat their bits. The same as in PyTorch.

#ifndef LOCKSTEP_DRIVER_LUA_BIND_TORCH_SETTINGS_H_
#define LOCKSTEP_DRIVER_LUA_BIND_TORCH_SETTINGS_H_

#include "lua.hpp"

namespace lockstep::lua {

// set_float32_matmul_precision("highest" | "high" | "medium"). Another name is an error.
int SetFloat32MatmulPrecision(lua_State* state);
// get_float32_matmul_precision() -> the name.
int GetFloat32MatmulPrecision(lua_State* state);
// use_deterministic_algorithms(mode, {warn_only =}). Where there is a GPU it also gives cuBLAS the
// workspace that this needs, or raises an error if that is too late; with warn_only libtorch warns.
int UseDeterministicAlgorithms(lua_State* state);
// are_deterministic_algorithms_enabled() -> boolean.
int AreDeterministicAlgorithmsEnabled(lua_State* state);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_TORCH_SETTINGS_H_
