// Plain Lua values as bytes, for other ranks and for files.

#ifndef LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_SERIALIZE_H_
#define LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_SERIALIZE_H_

#include <string>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "lua.hpp"

namespace lockstep::lua {

// Returns the bytes of nil, a boolean, a number, a string, JSON's null or a table of these. Equal
// content gives equal bytes, whatever order `pairs` has. Appends tensors to `tensors`, if given, in
// the order in which the bytes refer to them.
//
// Throws Error, which begins with `caller` and has the path, for other values (functions; tensors
// without `tensors`), for a table inside itself and for nesting deeper than 64.
std::string Serialize(lua_State* state, int index, const std::string& caller,
                      std::vector<at::Tensor>* tensors = nullptr);

// Pushes the value. `bytes` must come from Serialize; otherwise throws Error, which begins with
// `caller`.
int PushSerialized(lua_State* state, const std::string& bytes, const std::string& caller,
                   const std::vector<at::Tensor>& tensors = {});

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_SERIALIZE_H_
