#include "driver/lua/bind/sharding/sharding_guard.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "driver/lua/bind/sharding/distributed.h"
#include "driver/lua/vm/object.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/vm.h"
#include "driver/ranks/context.h"
#include "driver/ranks/control.h"
#include "driver/ranks/world.h"
#include "sharding/agreement/c10d_collective.h"
#include "sharding/agreement/gather_texts.h"
#include "sharding/agreement/guard.h"

namespace lockstep::lua {

struct GuardObject {  // null pointers in a group of one rank
  std::unique_ptr<sharding::Collective> collective;
  std::unique_ptr<sharding::StoreNotes> notes;
  std::unique_ptr<sharding::Guard> guard;
};
using GuardPointer = std::unique_ptr<GuardObject>;
template <>
inline constexpr const char* kObjectName<GuardPointer> = "guard";
struct GatheringObject {
  std::unique_ptr<sharding::Collective> collective;  // null in a run of one rank
};
template <>
inline constexpr const char* kObjectName<GatheringObject> = "gathering";

namespace {

using driver::GetContext;

// --- guard ---------------------------------------------------------------------------------------

int NewGuard(lua_State* state) {
  const OptionTable table(state, 1, "sharding.guard", {"group", "timeout_s"});
  const driver::Context& context = GetContext(state);
  const double timeout_s =
      table.Number("timeout_s", std::chrono::duration<double>(context.timeout).count());
  constexpr double kLongest = 604800;  // as of --timeout
  if (!(timeout_s >= 0.001 && timeout_s <= kLongest)) {
    throw Error(absl::StrCat("sharding.guard: timeout_s must be from 0.001 to ", kLongest, ", not ",
                             timeout_s));
  }
  const Group& group = ReadGroup(state, table);
  // Guards are made alike on every rank: their count names their notes.
  static auto* const counts = new std::map<std::vector<int>, int>();
  const std::string prefix =
      absl::StrCat("guard/", absl::StrJoin(group.ranks, ","), "/", (*counts)[group.ranks]++);
  auto guard = std::make_unique<GuardObject>();
  if (group.ranks.size() > 1) {
    const auto timeout = std::chrono::milliseconds(static_cast<int64_t>(1000 * timeout_s));
    guard->collective = driver::NewControlCollective(context.world, group.ranks, timeout,
                                                     {"sharding.guard", /*watched=*/false});
    guard->notes = std::make_unique<sharding::StoreNotes>(context.world.store, prefix,
                                                          guard->collective->rank());
    guard->guard = std::make_unique<sharding::Guard>(guard->collective.get(), guard->notes.get(),
                                                     timeout_s, group.ranks);
  }
  PushObject<GuardPointer>(state, std::move(guard));
  return 1;
}

// check(label, fingerprint): texts
int CheckGuard(lua_State* state) {
  GuardObject& object = *ReadObject<GuardPointer>(state, 1, "sharding.guard");
  const std::string label = ReadString(state, 2, "guard:check: the label");
  const std::string fingerprint = ReadString(state, 3, "guard:check: the fingerprint");
  if (object.guard == nullptr) return 0;  // one rank agrees with itself
  GetContext(state).world.activity->SetLabel(label);
  const absl::Status status = object.guard->Check(label, fingerprint, RunningScriptLine());
  if (!status.ok()) throw Error(std::string(status.message()));
  return 0;
}

// --- gathering -----------------------------------------------------------------------------------

// gathering(purpose): texts of all ranks of the run, apart from the training's collectives.
// Collective.
int NewGathering(lua_State* state) {
  const std::string purpose = ReadString(state, 1, "gathering: purpose");
  const driver::Context& context = GetContext(state);
  GatheringObject gathering;
  const int world_size = context.world.environment.world_size;
  if (world_size > 1) {
    std::vector<int> ranks(static_cast<size_t>(world_size));
    std::iota(ranks.begin(), ranks.end(), 0);
    gathering.collective =
        driver::NewControlCollective(context.world, ranks, context.timeout, {purpose});
  }
  PushObject(state, std::move(gathering));
  return 1;
}

// gather(text) -> array of texts, by rank. gather_flags: in half the time, where the texts are of
// one length on every rank. Collective.
template <bool kFlags>
int Gather(lua_State* state) {
  const auto& collective = ReadObject<GatheringObject>(state, 1, "gathering").collective;
  const std::string text = ReadString(state, 2, "gathering: text");
  absl::StatusOr<std::vector<std::string>> texts = std::vector<std::string>{text};
  if (collective != nullptr) {
    texts = kFlags ? collective->StartAllGather(text)->Wait()
                   : sharding::GatherTexts(*collective, text);
  }
  if (!texts.ok()) throw Error(std::string(texts.status().message()));
  lua_createtable(state, static_cast<int>(texts->size()), 0);
  for (size_t i = 0; i < texts->size(); ++i) {
    PushString(state, (*texts)[i]);
    lua_rawseti(state, -2, static_cast<int>(i + 1));
  }
  return 1;
}

}  // namespace

void SetGuardFunctions(lua_State* state) {
  RegisterObject<GuardPointer>(state, {{"check", CheckGuard}});
  RegisterObject<GatheringObject>(state,
                                  {{"gather", Gather<false>}, {"gather_flags", Gather<true>}});
  SetFunctions(state, {{"guard", NewGuard}, {"gathering", NewGathering}});
}

}  // namespace lockstep::lua
