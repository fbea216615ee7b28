// lockstep.core.sharding: comparisons of ranks.

#include <chrono>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "driver/lua/bind/context.h"
#include "driver/lua/bind/sharding/counted_call.h"
#include "driver/lua/bind/sharding/distributed.h"
#include "driver/lua/bind/sharding/functions.h"
#include "driver/lua/vm/object.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/status.h"
#include "driver/lua/vm/vm.h"
#include "driver/ranks/activity.h"
#include "driver/ranks/control.h"
#include "driver/ranks/script_calls.h"
#include "driver/ranks/world.h"
#include "sharding/agreement/collective.h"
#include "sharding/agreement/gather_texts.h"

namespace lockstep::lua {

using GuardPointer = std::unique_ptr<driver::RankGuard>;
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

// guard(options: {group: dist.Group?, timeout_s: number?}) -> Guard
// timeout_s: the run's --timeout unless given.
int NewGuard(lua_State* state) {
  const OptionTable table(state, 1, "sharding.guard", {"group", "timeout_s"});
  const driver::Context& context = GetContext(state);
  const double timeout_s =
      table.Number("timeout_s", std::chrono::duration<double>(context.timeout).count());
  return PushObject<GuardPointer>(
      state,
      std::make_unique<driver::RankGuard>(context.world, ReadGroup(state, table).ranks, timeout_s));
}

// Guard:check(label: string, fingerprint: string)
// Raises on every rank where the ranks' texts differ. Collective.
int CheckGuard(lua_State* state) {
  driver::RankGuard& guard = *ReadObject<GuardPointer>(state, 1, "sharding.guard");
  const std::string label = ReadString(state, 2, "guard:check: the label");
  const std::string fingerprint = ReadString(state, 3, "guard:check: the fingerprint");
  Check(guard.Check(label, fingerprint, RunningScriptLine()));
  return 0;
}

// --- gathering -----------------------------------------------------------------------------------

// gathering(purpose: string) -> Gathering
// Texts of all ranks of the run, compared with the training's collectives. Collective. purpose: as
// reports of a hang name it.
int NewGathering(lua_State* state) {
  const std::string purpose = ReadString(state, 1, "gathering: purpose");
  const driver::Context& context = GetContext(state);
  if (context.world.group == nullptr) throw Error(driver::kNoRanks);
  GatheringObject gathering;
  const int world_size = context.world.environment.world_size;
  if (world_size > 1) {
    std::vector<int> ranks(static_cast<size_t>(world_size));
    std::iota(ranks.begin(), ranks.end(), 0);
    gathering.collective =
        driver::NewComparedCollective(context.world, ranks, context.timeout, purpose);
  }
  return PushObject(state, std::move(gathering));
}

// num_calls() -> integer
// How many calls of the script this rank has begun or refused: see NumScriptCalls.
int NumCalls(lua_State* state) { return PushInteger(state, driver::NumScriptCalls()); }

// refuse_call(reason: string, options: {group: dist.Group?}?)
// Counts a call that this rank has refused to make, so that its later calls meet their own.
// options: the call's.
int RefuseScriptCall(lua_State* state) {
  RefuseCall(state, ReadString(state, 1, "refuse_call: reason"));
  return 0;
}

// Gathering:gather(text: string, call: string?) -> string[]
// The text of every rank, by rank. call: the function in reports; default: the purpose. Collective.
//
// Gathering:gather_flags(text: string, call: string?) -> string[]
// The same in half the time, for texts of one length on every rank. Collective.
template <bool kFlags>
int Gather(lua_State* state) {
  const auto& collective = ReadObject<GatheringObject>(state, 1, "gathering").collective;
  const std::string text = ReadString(state, 2, "gathering: text");
  std::optional<driver::CollectiveSubject> subject;
  if (!lua_isnoneornil(state, 3)) subject.emplace(ReadString(state, 3, "gathering: call"));
  absl::StatusOr<std::vector<std::string>> texts = std::vector<std::string>{text};
  if (collective != nullptr) {
    texts = kFlags ? collective->StartAllGather(text)->Wait()
                   : sharding::GatherTexts(*collective, text);
  }
  return PushStrings(state, ValueOrThrow(std::move(texts)));
}

}  // namespace

void SetGuardFunctions(lua_State* state) {
  RegisterObject<GuardPointer>(state, {{"check", CheckGuard}});
  RegisterObject<GatheringObject>(state,
                                  {{"gather", Gather<false>}, {"gather_flags", Gather<true>}});
  SetFunctions(state, {{"guard", NewGuard},
                       {"gathering", NewGathering},
                       {"num_calls", NumCalls},
                       {"refuse_call", RefuseScriptCall}});
}

}  // namespace lockstep::lua
