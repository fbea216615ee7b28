// lockstep.core.sharding: links between two ranks.

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "driver/lua/bind/sharding/distributed.h"
#include "driver/lua/bind/sharding/functions.h"
#include "driver/lua/tensor/tensor.h"
#include "driver/lua/vm/object.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/vm.h"
#include "driver/ranks/activity.h"
#include "sharding/point_to_point/link.h"

namespace lockstep::lua {

using LinkPointer = std::unique_ptr<sharding::Link>;
using BatchPointer = std::unique_ptr<sharding::MessageBatch>;
template <>
inline constexpr const char* kObjectName<LinkPointer> = "link";
template <>
inline constexpr const char* kObjectName<BatchPointer> = "batch of messages";

namespace {

// link(group: dist.Group) -> Link
// Connects this rank with the other one of a group of two.
int NewLink(lua_State* state) {
  const Group& group = ReadObject<Group>(state, 1, "sharding: group");
  const int own = group.process_group->getRank();
  if (group.ranks.size() != 2 || own < 0) {
    throw Error(absl::StrCat("sharding: a link needs a group of two ranks, this one and another, ",
                             "not one of ", group.ranks.size()));
  }
  const int other = 1 - own;
  return PushObject(state,
                    std::make_unique<sharding::Link>(group.process_group, other,
                                                     group.ranks[static_cast<size_t>(other)]));
}

// Link:start(sends: torch.Tensor[], receives: torch.Tensor[], subject: string) -> MessageBatch
// Starts to send tensors to the other rank, and to receive others, which both know beforehand.
// receives: contiguous; subject: what they are, for reports.
int Start(lua_State* state) {
  sharding::Link& link = *ReadObject<LinkPointer>(state, 1, "sharding: link");
  const driver::CollectiveSubject subject(ReadString(state, 4, "sharding: subject"));
  return PushObject(state, link.Start(ReadTensors(state, 2, "sharding: tensors to send"),
                                      ReadTensors(state, 3, "sharding: tensors to receive")));
}

// MessageBatch:wait()
// Waits until all tensors are sent and received.
int Wait(lua_State* state) {
  ReadObject<BatchPointer>(state, 1, "sharding: batch of messages")->Wait();
  return 0;
}

}  // namespace

void SetLinkFunctions(lua_State* state) {
  RegisterObject<LinkPointer>(state, {{"start", Start}});
  RegisterObject<BatchPointer>(state, {{"wait", Wait}});
  SetFunctions(state, {{"link", NewLink}});
}

}  // namespace lockstep::lua
