// Plain Lua values as bytes, to travel between ranks and into files.

#ifndef LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_SERIALIZE_H_
#define LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_SERIALIZE_H_

#include <string>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "lua.hpp"

namespace lockstep::lua {

// nil, booleans, numbers, strings and tables of them: the same bytes for the same content, whatever
// order `pairs` has. Tensors are appended to `tensors`, in the order in which the bytes speak of
// them, where it is given. Throws Error, which begins with `caller` and names the path, for
// anything else (functions; tensors without a place), for a table inside itself and for nesting
// deeper than 64.
std::string Serialize(lua_State* state, int index, const std::string& caller,
                      std::vector<at::Tensor>* tensors = nullptr);

// Pushes the value. `bytes` is what Serialize returned; throws Error, which begins with `caller`,
// where it is anything else.
void PushSerialized(lua_State* state, const std::string& bytes, const std::string& caller,
                    const std::vector<at::Tensor>& tensors = {});

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_SERIALIZE_H_
