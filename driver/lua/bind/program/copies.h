// Copies of tensors in the background, for Lua: `background_copies` of lockstep.core.state.

#ifndef LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_COPIES_H_
#define LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_COPIES_H_

#include <memory>

#include "driver/lua/tensor/background_copies.h"
#include "lua.hpp"

namespace lockstep::lua {

// background_copies({{from, to, is_summed}, ...}) -> copies: see BackgroundCopies. `to` may be
// false.
int StartCopies(lua_State* state);

// Reads the object of StartCopies.
std::shared_ptr<BackgroundCopies> ReadCopies(lua_State* state, int index);

// Makes the methods of copies: is_read(); release() -> seconds; sums() -> bytes, eight for each
// tensor that is summed, after the end.
void RegisterCopies(lua_State* state);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_COPIES_H_
