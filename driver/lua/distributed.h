// require "lockstep.distributed": ranks and collectives over c10d's process groups.

#ifndef LOCKSTEP_DRIVER_LUA_DISTRIBUTED_H_
#define LOCKSTEP_DRIVER_LUA_DISTRIBUTED_H_

#include <vector>

#include "c10/util/intrusive_ptr.h"
#include "driver/lua/object.h"
#include "driver/lua/stack.h"
#include "lua.hpp"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace lockstep::lua {

struct Group {
  c10::intrusive_ptr<c10d::ProcessGroup> process_group;
  std::vector<int> ranks;  // of the world, in the group's order
};
template <>
inline constexpr const char* kObjectName<Group> = "group";

// The group given as the option "group", or that of all ranks.
Group ReadGroup(lua_State* state, const OptionTable& options);

// Leaves the module on the stack: a package.preload function.
int OpenDistributed(lua_State* state);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_DISTRIBUTED_H_
