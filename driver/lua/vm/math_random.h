// The generator of Lua's math.random.

#ifndef LOCKSTEP_DRIVER_LUA_VM_MATH_RANDOM_H_
#define LOCKSTEP_DRIVER_LUA_VM_MATH_RANDOM_H_

#include <cstddef>

#include "lua.hpp"

namespace lockstep::lua {

inline constexpr size_t kMathRandomBytes = 32;

// Pushes the userdata that holds the generator's state, kMathRandomBytes bytes, and returns their
// address. LuaJIT keeps it as the one upvalue of math.random. If a script has put another function
// there, pushes nothing and returns nullptr: that generator is unknown.
void* PushMathRandomState(lua_State* state);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_VM_MATH_RANDOM_H_
