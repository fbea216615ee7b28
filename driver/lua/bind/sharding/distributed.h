// Groups of ranks and what collectives take, for lockstep.distributed and lockstep.core.sharding.

#ifndef LOCKSTEP_DRIVER_LUA_BIND_SHARDING_DISTRIBUTED_H_
#define LOCKSTEP_DRIVER_LUA_BIND_SHARDING_DISTRIBUTED_H_

#include <cstdint>
#include <string>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "c10/util/intrusive_ptr.h"
#include "driver/lua/vm/object.h"
#include "driver/lua/vm/stack.h"
#include "lua.hpp"
#include "sharding/data_parallel/data_parallel.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace lockstep::lua {

struct Group {
  c10::intrusive_ptr<c10d::ProcessGroup> process_group;
  std::vector<int> ranks;  // of the world, in the group's order
};
template <>
inline constexpr const char* kObjectName<Group> = "group";

// Returns the group in the option "group", or the group of all ranks.
Group ReadGroup(lua_State* state, const OptionTable& options);

// Returns the position in the group of a rank of the world. Throws Error, with the argument's name,
// if the rank is not a member.
int PositionOf(const Group& group, int64_t rank, const char* name);

// Returns the tensors of {{name, tensor}, ...}. `caller` begins the messages of errors.
std::vector<sharding::NamedTensor> ReadNamedTensors(lua_State* state, int index,
                                                    const std::string& caller);

// Throws Error, with the function's name, if Gloo or NCCL cannot add tensors of this dtype.
void CheckReducible(const at::Tensor& tensor, const char* name);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_SHARDING_DISTRIBUTED_H_
