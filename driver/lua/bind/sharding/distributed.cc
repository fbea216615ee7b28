#include "driver/lua/bind/sharding/distributed.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/empty_like.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/torch/element_bytes.h"
#include "driver/lua/bind/context.h"
#include "driver/lua/bind/open.h"
#include "driver/lua/bind/program/serialize.h"
#include "driver/lua/bind/sharding/counted_call.h"
#include "driver/lua/bind/sharding/functions.h"
#include "driver/lua/tensor/graph.h"
#include "driver/lua/tensor/tensor.h"
#include "driver/lua/vm/status.h"
#include "driver/lua/vm/vm.h"
#include "driver/ranks/activity.h"
#include "driver/ranks/script_calls.h"
#include "driver/ranks/watched_backend.h"
#include "driver/ranks/world.h"
#include "sharding/agreement/c10d_collective.h"
#include "sharding/agreement/gather_texts.h"
#include "sharding/point_to_point/point_to_point.h"
#include "torch/csrc/autograd/variable.h"

namespace lockstep::lua {
namespace {

using driver::GetContext;
using driver::RankEnvironment;
using driver::World;

// --- Who -----------------------------------------------------------------------------------------

int Rank(lua_State* state) { return PushInteger(state, GetContext(state).world.environment.rank); }

int WorldSize(lua_State* state) {
  return PushInteger(state, GetContext(state).world.environment.world_size);
}

int LocalRank(lua_State* state) {
  return PushInteger(state, GetContext(state).world.environment.local_rank);
}

int Backend(lua_State* state) { return PushString(state, GetContext(state).world.backend); }

int Device(lua_State* state) { return PushString(state, GetContext(state).world.device.str()); }

// --- Groups --------------------------------------------------------------------------------------

int NewGroup(lua_State* state) {
  if (lua_istable(state, 1)) {
    lua_rawgeti(state, 1, 1);
    if (!lua_isnil(state, -1)) {
      throw Error("dist.group: the ranks are an option, as in dist.group { ranks = {0, 1} }");
    }
    lua_pop(state, 1);
  }
  const OptionTable options(state, 1, "dist.group", {"ranks"});
  if (!options.Push("ranks"))
    throw Error("dist.group: ranks is missing: dist.group { ranks = {0, 1} }");
  std::vector<int> ranks;
  const driver::Context& context = GetContext(state);
  const RankEnvironment& environment = context.world.environment;
  for (const int64_t rank : ReadIntegers(state, lua_gettop(state), "dist.group: ranks")) {
    if (rank < 0 || rank >= environment.world_size) {
      throw Error(absl::StrCat("dist.group: rank ", rank, " is not one of the ranks 0 to ",
                               environment.world_size - 1));
    }
    if (std::find(ranks.begin(), ranks.end(), rank) != ranks.end()) {
      throw Error(absl::StrCat("dist.group: rank ", rank, " is named twice"));
    }
    ranks.push_back(static_cast<int>(rank));
  }
  if (ranks.empty()) throw Error("dist.group: ranks is empty");
  if (std::find(ranks.begin(), ranks.end(), environment.rank) == ranks.end()) {
    throw Error(absl::StrCat(
        "dist.group: rank ", environment.rank, " is not one of {", absl::StrJoin(ranks, ", "),
        "}; only the members of a group make it, the other ranks leave the call out"));
  }
  return PushObject(state, Group{driver::NewGroup(context.world, ranks, context.timeout), ranks});
}

int GroupRank(lua_State* state) {
  return PushInteger(state,
                     ReadObject<Group>(state, 1, "group:rank: group").process_group->getRank());
}

int GroupSize(lua_State* state) {
  return PushInteger(state,
                     ReadObject<Group>(state, 1, "group:size: group").process_group->getSize());
}

int GroupRanks(lua_State* state) {
  const Group& group = ReadObject<Group>(state, 1, "group:ranks: group");
  return PushIntegers(state, std::vector<int64_t>(group.ranks.begin(), group.ranks.end()));
}

// --- Collectives ---------------------------------------------------------------------------------

c10d::ReduceOp::RedOpType ReadOp(lua_State* state, int index, const char* name) {
  if (lua_isnoneornil(state, index)) return c10d::ReduceOp::SUM;
  const std::string op = ReadString(state, index, name);
  if (op == "sum") return c10d::ReduceOp::SUM;
  if (op == "avg") return c10d::ReduceOp::AVG;
  if (op == "min") return c10d::ReduceOp::MIN;
  if (op == "max") return c10d::ReduceOp::MAX;
  throw Error(
      absl::StrCat(name, " must be \"sum\", \"avg\", \"min\" or \"max\", not \"", op, "\""));
}

// The values in memory of their own order, without autograd: the tensor's own memory where it is
// so.
at::Tensor Dense(const at::Tensor& tensor) {
  return tensor.detach().resolve_conj().resolve_neg().contiguous();
}

// Throws where a change in place would leave the tensor's gradient as if nothing had happened.
// `instead`: what to call in its place.
void CheckNoGradient(const at::Tensor& tensor, const char* name, const char* instead) {
  if (!at::GradMode::is_enabled() || !tensor.requires_grad()) return;
  throw Error(absl::StrCat(name, ": x requires a gradient, and a change in place would make it ",
                           "wrong; use ", instead, ", or x:detach() where no gradient shall pass"));
}

// Runs `collective` on dense memory with the tensor's values, and gives the tensor what it left
// there. Autograd then knows that the values are others than those that it has saved.
void InPlace(const at::Tensor& tensor,
             const std::function<void(const at::Tensor& dense)>& collective) {
  const at::NoGradGuard no_grad;
  const at::Tensor dense = Dense(tensor);
  collective(dense);
  if (dense.data_ptr() != tensor.data_ptr()) {
    tensor.copy_(dense);
  } else {
    torch::autograd::impl::bump_version(tensor);
  }
}

// Gloo has no mean: a sum, divided afterwards. Whole numbers have no exact mean.
c10d::ReduceOp::RedOpType SumForAverage(c10d::ReduceOp::RedOpType op, const at::Tensor& tensor,
                                        const char* name) {
  if (op != c10d::ReduceOp::AVG) return op;
  if (!at::isFloatingType(tensor.scalar_type())) {
    throw Error(absl::StrCat(name, ": \"avg\" of ", Describe(tensor),
                             " would be rounded; convert the tensor to a floating-point dtype"));
  }
  return c10d::ReduceOp::SUM;
}

int AllReduce(lua_State* state) {
  const at::Tensor& tensor = ReadTensor(state, 1, "dist.all_reduce: x");
  const auto op = ReadOp(state, 2, "dist.all_reduce: op");
  const Group group = ReadGroup(state, OptionTable(state, 3, "dist.all_reduce", {"group"}));
  CheckReducible(tensor, "dist.all_reduce");
  CheckNoGradient(tensor, "dist.all_reduce",
                  "dist.functional.all_reduce, which returns a new tensor");
  c10d::AllreduceOptions options;
  options.reduceOp = SumForAverage(op, tensor, "dist.all_reduce");
  const driver::ScriptCall script_call;
  InPlace(tensor, [&](const at::Tensor& dense) {
    std::vector<at::Tensor> tensors = {dense};
    group.process_group->allreduce(tensors, options)->wait();
    if (op == c10d::ReduceOp::AVG) dense.div_(group.process_group->getSize());
  });
  lua_pushvalue(state, 1);
  return 1;
}

int Broadcast(lua_State* state) {
  const at::Tensor& tensor = ReadTensor(state, 1, "dist.broadcast: x");
  const int64_t source = ReadInteger(state, 2, "dist.broadcast: src");
  const Group group = ReadGroup(state, OptionTable(state, 3, "dist.broadcast", {"group"}));
  c10d::BroadcastOptions options;
  options.rootRank = PositionOf(group, source, "dist.broadcast: src");
  CheckNoGradient(tensor, "dist.broadcast",
                  "dist.functional.broadcast, which returns a new tensor");
  const driver::ScriptCall script_call;
  InPlace(tensor, [&](const at::Tensor& dense) {
    const driver::CollectiveSubject subject(Describe(tensor));
    std::vector<at::Tensor> tensors = {base::ElementBytes(dense)};
    group.process_group->broadcast(tensors, options)->wait();
  });
  lua_pushvalue(state, 1);
  return 1;
}

std::vector<at::Tensor> Gather(const Group& group, const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  const at::Tensor dense = Dense(tensor);
  std::vector<at::Tensor> gathered;
  std::vector<at::Tensor> inputs = {base::ElementBytes(dense)};
  std::vector<std::vector<at::Tensor>> outputs(1);
  for (int i = 0; i < group.process_group->getSize(); ++i) {
    gathered.push_back(at::empty_like(dense));
    outputs[0].push_back(base::ElementBytes(gathered.back()));
  }
  const driver::ScriptCall script_call;
  const driver::CollectiveSubject subject(Describe(tensor));
  group.process_group->allgather(outputs, inputs)->wait();
  return gathered;
}

int AllGather(lua_State* state) {
  const at::Tensor& tensor = ReadTensor(state, 1, "dist.all_gather: x");
  const Group group = ReadGroup(state, OptionTable(state, 2, "dist.all_gather", {"group"}));
  return PushTensors(state, Gather(group, tensor));
}

int ReduceScatter(lua_State* state) {
  std::vector<at::Tensor> parts = ReadTensors(state, 1, "dist.reduce_scatter: parts");
  const auto op = ReadOp(state, 2, "dist.reduce_scatter: op");
  const Group group = ReadGroup(state, OptionTable(state, 3, "dist.reduce_scatter", {"group"}));
  const size_t size = static_cast<size_t>(group.process_group->getSize());
  if (parts.size() != size) {
    throw Error(
        absl::StrCat("dist.reduce_scatter: parts must hold one tensor for each rank of the group, ",
                     size, " in all, not ", parts.size()));
  }
  const at::NoGradGuard no_grad;
  for (at::Tensor& part : parts) {
    if (part.scalar_type() != parts[0].scalar_type() || part.sizes() != parts[0].sizes()) {
      throw Error(absl::StrCat("dist.reduce_scatter: parts must be alike, but hold ",
                               Describe(parts[0]), " and ", Describe(part)));
    }
    part = Dense(part);
  }
  CheckReducible(parts[0], "dist.reduce_scatter");
  c10d::ReduceScatterOptions options;
  options.reduceOp = SumForAverage(op, parts[0], "dist.reduce_scatter");
  std::vector<at::Tensor> outputs = {at::empty_like(parts[0])};
  std::vector<std::vector<at::Tensor>> inputs = {parts};
  const driver::ScriptCall script_call;
  group.process_group->reduce_scatter(outputs, inputs, options)->wait();
  if (op == c10d::ReduceOp::AVG) outputs[0].div_(static_cast<int64_t>(size));
  return PushTensor(state, outputs[0]);
}

// --- Send and receive ----------------------------------------------------------------------------

// Returns the other rank of a message between two.
sharding::Peer ReadPeer(lua_State* state, const std::string& function, const char* argument) {
  const std::string name = absl::StrCat(function, ": ", argument);
  const int64_t rank = ReadInteger(state, 2, name.c_str());
  const OptionTable options(state, 3, function.c_str(), {"group", "tag"});
  const Group group = ReadGroup(state, options);
  const int position = PositionOf(group, rank, name.c_str());
  if (position == group.process_group->getRank()) {
    throw Error(
        absl::StrCat(name, " is rank ", rank, " itself, and a rank cannot wait for itself"));
  }
  return {group.process_group, position, static_cast<int>(rank),
          static_cast<int>(options.Integer("tag", 0))};
}

// Calls `message`, which sends to a rank or receives from it. The error of a lost connection then
// names the function and the rank; Gloo's own has neither.
void NamingPeer(const char* function, const sharding::Peer& peer,
                const std::function<void()>& message) {
  PrefixErrors(function, [&] {
    try {
      message();
    } catch (const c10::Error&) {
      throw;
    } catch (const std::exception& error) {
      TORCH_CHECK(false, "the connection to rank ", peer.rank, " has failed: ", error.what());
    }
  });
}

int Send(lua_State* state) {
  const at::Tensor& tensor = ReadTensor(state, 1, "dist.send: x");
  const sharding::Peer peer = ReadPeer(state, "dist.send", "dst");
  const driver::CollectiveSubject subject(Describe(tensor));
  NamingPeer("dist.send", peer, [&] { sharding::SendTensor(tensor, peer, RunningScriptLine()); });
  return 0;
}

int Receive(lua_State* state) {
  const at::Tensor& tensor = ReadTensor(state, 1, "dist.recv: x");
  const sharding::Peer peer = ReadPeer(state, "dist.recv", "src");
  CheckNoGradient(tensor, "dist.recv", "mimo.bridge, whose gradient travels back");
  const driver::CollectiveSubject subject(Describe(tensor));
  InPlace(tensor, [&](const at::Tensor& dense) {
    NamingPeer("dist.recv", peer, [&] { sharding::ReceiveTensor(dense, peer); });
  });
  lua_pushvalue(state, 1);
  return 1;
}

int Barrier(lua_State* state) {
  const Group group = ReadGroup(state, OptionTable(state, 1, "dist.barrier", {"group"}));
  // Through Gloo: a barrier is between hosts, and NCCL's would occupy the device.
  c10d::BarrierOptions options;
  options.device = at::kCPU;
  const driver::ScriptCall script_call;
  group.process_group->barrier(options)->wait();
  return 0;
}

int AllGatherObject(lua_State* state) {
  if (lua_gettop(state) == 0) lua_pushnil(state);
  const std::string bytes = Serialize(state, 1, "all_gather_object");
  const Group group = ReadGroup(state, OptionTable(state, 2, "dist.all_gather_object", {"group"}));
  sharding::C10dCollective collective(group.process_group, group.ranks);
  const driver::ScriptCall script_call;
  const driver::CollectiveSubject subject("object");
  return PushArray(
      state, ValueOrThrow(sharding::GatherTexts(collective, bytes)),
      [&](const std::string& value) { PushSerialized(state, value, "all_gather_object"); });
}

}  // namespace

Group ReadGroup(lua_State* state, const OptionTable& options) {
  CheckNotRecording("a collective");  // its threads are no operators
  if (!options.Push("group")) {
    const World& world = GetContext(state).world;
    if (world.group == nullptr) throw Error(driver::kNoRanks);
    std::vector<int> ranks(static_cast<size_t>(world.environment.world_size));
    std::iota(ranks.begin(), ranks.end(), 0);
    return {world.group, ranks};
  }
  Group group = ReadObject<Group>(state, lua_gettop(state), "group");
  lua_pop(state, 1);
  return group;
}

void RefuseCall(lua_State* state, const std::string& reason) {
  c10::intrusive_ptr<c10d::ProcessGroup> group = GetContext(state).world.group;
  for (int index = lua_gettop(state); index > 0; --index) {
    if (!lua_istable(state, index)) continue;
    lua_pushliteral(state, "group");
    lua_rawget(state, index);
    const Group* const named = ObjectAt<Group>(state, lua_gettop(state));
    if (named != nullptr) group = named->process_group;
    lua_pop(state, 1);
  }
  if (group != nullptr)
    driver::RefuseCall(*group, absl::StrCat("refused: ", reason), RunningScriptLine());
}

int PositionOf(const Group& group, int64_t rank, const char* name) {
  const auto it = std::find(group.ranks.begin(), group.ranks.end(), rank);
  if (it == group.ranks.end()) {
    throw Error(absl::StrCat(name, " must be one of the group's ranks {",
                             absl::StrJoin(group.ranks, ", "), "}, not ", rank));
  }
  return static_cast<int>(it - group.ranks.begin());
}

std::vector<sharding::NamedTensor> ReadNamedTensors(lua_State* state, int index,
                                                    const std::string& caller) {
  ReadTable(state, index, (caller + ": tensors").c_str());
  std::vector<sharding::NamedTensor> tensors;
  ForEachElement(state, index, [&](int) {
    lua_rawgeti(state, -1, 1);
    lua_rawgeti(state, -2, 2);
    tensors.push_back({ReadString(state, -2, (caller + ": name").c_str()),
                       ReadTensor(state, lua_gettop(state), (caller + ": tensor").c_str())});
    lua_pop(state, 2);
  });
  return tensors;
}

void CheckReducible(const at::Tensor& tensor, const char* name) {
  // Both backends add up these. Others would fail within the collective, in words of its own.
  constexpr at::ScalarType kReducible[] = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16,
                                           at::kByte,  at::kChar,   at::kInt,  at::kLong};
  for (const at::ScalarType dtype : kReducible) {
    if (tensor.scalar_type() == dtype) return;
  }
  throw Error(absl::StrCat(name, ": ", Describe(tensor),
                           " cannot be reduced over ranks; convert it to float32 or int32"));
}

int OpenDistributed(lua_State* state) {
  RegisterObject<Group>(state, {{"rank", GroupRank}, {"size", GroupSize}, {"ranks", GroupRanks}});
  lua_newtable(state);
  SetFunctions(state, {{"rank", Rank},
                       {"world_size", WorldSize},
                       {"local_rank", LocalRank},
                       {"backend", Backend},
                       {"device", Device},
                       {"group", NewGroup},
                       {"all_reduce", CountedCall<AllReduce>},
                       {"broadcast", CountedCall<Broadcast>},
                       {"all_gather", CountedCall<AllGather>},
                       {"reduce_scatter", CountedCall<ReduceScatter>},
                       {"send", Send},
                       {"recv", Receive},
                       {"barrier", CountedCall<Barrier>},
                       {"all_gather_object", CountedCall<AllGatherObject>}});
  SetFunctional(state);
  return 1;
}

}  // namespace lockstep::lua
