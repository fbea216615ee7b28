#include "driver/ranks/script_calls.h"

#include <utility>

#include "absl/status/status.h"
#include "c10/util/Exception.h"
#include "driver/ranks/control.h"
#include "sharding/agreement/call_order.h"
#include "sharding/agreement/collective.h"

namespace lockstep::driver {
namespace {

thread_local int script_calls = 0;  // that this thread is in

// Those that live. Used by the thread that runs the script.
std::vector<CallComparison*>& Comparisons() {
  static auto* const comparisons = new std::vector<CallComparison*>();
  return *comparisons;
}

}  // namespace

ScriptCall::ScriptCall() { ++script_calls; }

ScriptCall::~ScriptCall() { --script_calls; }

struct CallComparison::State {
  std::unique_ptr<sharding::Collective> collective;
  sharding::CallOrder order;
};

CallComparison::CallComparison(const World& world, const std::vector<int>& ranks,
                               std::chrono::milliseconds timeout) {
  auto collective = NewUnwatchedCollective(world, ranks, timeout, {"order of collectives"});
  sharding::CallOrder order(collective.get(), TitleOf(world, ranks, {}));
  state_ = std::make_unique<State>(State{std::move(collective), std::move(order)});
  Comparisons().push_back(this);
}

CallComparison::~CallComparison() { std::erase(Comparisons(), this); }

void CallComparison::Compare(const std::string& what, const std::string& place, bool is_one_place) {
  const absl::Status status = script_calls > 0
                                  ? state_->order.Check({what, place, is_one_place})
                                  : state_->order.Announce({what, place, /*is_one_place=*/false});
  TORCH_CHECK(status.ok(), std::string(status.message()));
}

void CallComparison::TellEnd() {
  // A rank that differs detects that itself; this rank has ended and ignores it.
  static_cast<void>(state_->order.Announce({"the end of its script", "", false}));
}

void TellEndOfScript() {
  for (CallComparison* comparison : Comparisons()) comparison->TellEnd();
}

}  // namespace lockstep::driver
