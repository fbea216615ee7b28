// lockstep.core.state: copies of tensors in the background.

#ifndef LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_COPIES_H_
#define LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_COPIES_H_

#include <memory>

#include "driver/lua/tensor/background_copies.h"
#include "lua.hpp"

namespace lockstep::lua {

// background_copies(tensors: {[1]: torch.Tensor, [2]: torch.Tensor|false, [3]: boolean}[]) ->
//     Copies
// Begins to copy tensors of the CPU, {from, to, is_summed} each; without `to` one is only summed.
// An operator of this thread that writes to one of them waits until all are read: see
// driver/lua/tensor/background_copies.h.
int StartCopies(lua_State* state);

// Reads the object of StartCopies.
std::shared_ptr<BackgroundCopies> ReadCopies(lua_State* state, int index);

// Makes the methods of copies: is_read(); release() -> seconds; sums() -> bytes, eight for each
// tensor that is summed, after the end.
void RegisterCopies(lua_State* state);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_COPIES_H_
