// lockstep.core.mimo: bridges.

#include <chrono>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "driver/lua/bind/context.h"
#include "driver/lua/bind/mimo/functions.h"
#include "driver/lua/bind/mimo/mimo_ownership.h"
#include "driver/lua/tensor/tensor.h"
#include "driver/lua/vm/object.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/status.h"
#include "driver/lua/vm/vm.h"
#include "driver/ranks/failure.h"
#include "driver/ranks/meeting.h"
#include "driver/ranks/world.h"
#include "mimo/batch/ownership.h"
#include "mimo/bridge/bridge.h"
#include "mimo/bridge/routes.h"

namespace lockstep::lua {

using BridgePointer = std::unique_ptr<mimo::Bridge>;
template <>
inline constexpr const char* kObjectName<BridgePointer> = "bridge";
template <>
inline constexpr const char* kObjectName<mimo::Bridge::Pending> = "call of a bridge";

namespace {

using driver::GetContext;

// "rank 2 (language)", "ranks 2 (vision, audio), 3 (language)".
std::string Describe(const mimo::Topology& topology, const std::vector<int>& ranks) {
  std::vector<std::string> parts;
  for (const int rank : ranks) {
    std::vector<std::string> names;
    for (const int32_t module : topology.modules_of(rank))
      names.push_back(topology.modules()[static_cast<size_t>(module)].name);
    parts.push_back(absl::StrCat(rank, " (", absl::StrJoin(names, ", "), ")"));
  }
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(parts, ", "));
}

// Blocks until all of `ranks` have come to make the same group of the same bridge. Without this a
// bridge that one side alone makes is a timeout of the backend's, which names a key of its store.
void MeetFor(const driver::Context& context, const mimo::Topology& topology,
             const std::vector<int>& ranks, const std::string& purpose) {
  const driver::World& world = context.world;
  if (world.environment.mirrored || ranks.size() == 1) return;
  static std::map<std::string, int> times_met;
  const std::string list = absl::StrCat("mimo/", purpose, "/", absl::StrJoin(ranks, ","));
  const int own = world.environment.rank;
  const driver::Meeting meeting =
      driver::MeetInStore(*world.store, absl::StrCat(list, "/", times_met[list]), own, ranks,
                          /*value=*/"", context.timeout);
  if (!meeting.ended.empty()) {
    throw Error(absl::StrCat("mimo.bridge: ", Describe(topology, {own}), " makes the ", purpose,
                             ", which ", Describe(topology, meeting.ended),
                             " will not make, because its script has ended"));
  }
  if (!meeting.absent.empty()) {
    throw Error(absl::StrCat(
        "mimo.bridge: ", Describe(topology, {own}), " makes the ", purpose, " and has waited ",
        std::chrono::duration<double>(context.timeout).count(), " s for ",
        Describe(topology, meeting.absent), " to make it, too; every rank of both modules calls ",
        "mimo.bridge, in the same order as its other bridges (--timeout sets how long to wait)"));
  }
  ++times_met[list];
}

// Why a rank that others wait for is gone, as the run knows it; "" where it does not.
std::string WhyGone(const driver::World& world, int64_t rank) {
  try {
    if (const auto failure = driver::KnownFailure(*world.store)) {
      return absl::StrCat("the run has failed: ", failure->text);
    }
    if (driver::HasReportedEnd(*world.store, static_cast<int>(rank)))
      return "by then its script had ended";
  } catch (const std::exception&) {
    return "";  // The store is gone, too.
  }
  return "";
}

struct CallArguments {
  std::vector<at::Tensor> tensors;
  std::optional<mimo::Ownership> ownership;
  std::string samples;
  std::optional<mimo::Needs> needs;
};

// The table whose tokens are the rows.
mimo::Ownership OwnershipOf(const mimo::OwnedRows& rows) {
  if (rows.table == nullptr) {
    throw Error(
        absl::StrCat("mimo: bridge: ownership must be a table of mimo.ownership, not the name \"",
                     rows.path, "\""));
  }
  if (rows.rows_of == mimo::RowsOf::kTokens) return *rows.table;
  return ValueOrThrow(mimo::OwnershipOfRows(mimo::RowsPerSample(*rows.table, rows.rows_of)));
}

// An array with the rows of each part, each an array or a tensor.
mimo::Needs ReadNeeds(lua_State* state, int index) {
  const std::string name = "mimo: bridge: needs";
  ReadTable(state, index, name.c_str());
  mimo::Needs needs;
  ForEachElement(state, index, [&](int i) {
    const std::string part = absl::StrCat(name, "[", i, "]");
    auto ranges = mimo::RangesOfRows(ReadCounts(state, lua_gettop(state), part));
    if (!ranges.ok()) throw Error(absl::StrCat(part, ": ", ranges.status().message()));
    needs.push_back(*std::move(ranges));
  });
  return needs;
}

CallArguments ReadCall(lua_State* state) {
  CallArguments arguments;
  arguments.tensors = ReadTensors(state, 2, "mimo: bridge: x");
  if (!lua_isnil(state, 3)) {
    const std::vector<int64_t> rows = ReadCounts(state, 3, "mimo: bridge: rows_per_sample");
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i] >= 0) continue;
      throw Error(absl::StrCat("mimo: bridge: rows_per_sample holds ", rows[i], " for sample ", i,
                               "; a sample has 0 rows or more"));
    }
    arguments.ownership = ValueOrThrow(mimo::OwnershipOfRows(rows));
  }
  if (!lua_isnil(state, 4)) {
    if (arguments.ownership.has_value())
      throw Error("mimo: bridge: give ownership or rows_per_sample, not both");
    arguments.ownership = OwnershipOf(ReadOwnedRows(state, 4, "mimo: bridge: ownership"));
  }
  arguments.samples = ReadString(state, 5, "mimo: bridge: samples");
  if (!lua_isnil(state, 6)) arguments.needs = ReadNeeds(state, 6);
  return arguments;
}

// Bridge:start(tensors: torch.Tensor[], rows_per_sample: integer[]|torch.Tensor|nil,
//     ownership: mimo.OwnedRows?, samples: string) -> Pending
// tensors: none on ranks that receive; ownership: instead; samples: "" for none.
int StartCall(lua_State* state) {
  mimo::Bridge& bridge = *ReadObject<BridgePointer>(state, 1, "mimo: bridge");
  CallArguments arguments;
  try {
    arguments = ReadCall(state);
  } catch (const Error& error) {
    bridge.Refuse(error.what());
    throw;
  }
  return PushObject(state, bridge.Start(arguments.tensors, arguments.ownership, arguments.samples,
                                        arguments.needs));
}

// Bridge:refuse(text: string)
// Tells the peers of a call whose arguments could not be read; the bridge is of no more use.
int RefuseCall(lua_State* state) {
  ReadObject<BridgePointer>(state, 1, "mimo: bridge")
      ->Refuse(ReadString(state, 2, "mimo: bridge: text"));
  return 0;
}

// Bridge:check_backward()
// Raises an error where a call has had no backward here.
int CheckBackward(lua_State* state) {
  ReadObject<BridgePointer>(state, 1, "mimo: bridge")->CheckBackward();
  return 0;
}

// Bridge:failure() -> string?
// Why the bridge is of no more use on this rank; nil where it is sound.
int FailureOf(lua_State* state) {
  const std::string& failure = ReadObject<BridgePointer>(state, 1, "mimo: bridge")->failure();
  if (failure.empty()) return 0;
  return PushString(state, failure);
}

// Pending:wait() -> torch.Tensor[]
int WaitForCall(lua_State* state) {
  return PushTensors(state,
                     ReadObject<mimo::Bridge::Pending>(state, 1, "mimo: call of a bridge").Wait());
}

}  // namespace

int PushBridge(lua_State* state, const mimo::Topology& topology, int edge,
               mimo::BridgeOptions options) {
  driver::Context& context = GetContext(state);
  options.why_gone = [&context](int64_t rank) { return WhyGone(context.world, rank); };
  const auto new_group = [&](const std::vector<int>& ranks, const std::string& purpose) {
    MeetFor(context, topology, ranks, purpose);
    return driver::NewGroup(context.world, ranks, context.timeout,
                            {absl::StrCat("mimo ", purpose), /*watched=*/false});
  };
  static bool is_finished_at_end = false;
  if (!std::exchange(is_finished_at_end, true)) context.at_end.push_back(mimo::Bridge::FinishAll);
  return PushObject<BridgePointer>(
      state, std::make_unique<mimo::Bridge>(topology, edge, context.world.environment.rank,
                                            new_group, options));
}

void RegisterBridges(lua_State* state) {
  RegisterObject<BridgePointer>(state, {{"start", StartCall},
                                        {"refuse", RefuseCall},
                                        {"check_backward", CheckBackward},
                                        {"failure", FailureOf}});
  RegisterObject<mimo::Bridge::Pending>(state, {{"wait", WaitForCall}});
}

}  // namespace lockstep::lua
