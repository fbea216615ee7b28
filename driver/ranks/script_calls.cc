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
thread_local int64_t num_calls = 0;

// Those that live, in the order in which they were made. Used by the thread that runs the script.
std::vector<CallComparison*>& Comparisons() {
  static auto* const comparisons = new std::vector<CallComparison*>();
  return *comparisons;
}

}  // namespace

ScriptCall::ScriptCall() {
  ++script_calls;
  ++num_calls;
}

ScriptCall::~ScriptCall() { --script_calls; }

struct CallComparison::State {
  State(std::vector<int> members, std::unique_ptr<sharding::Collective> all,
        const std::string& group)
      : ranks(std::move(members)), collective(std::move(all)), order(collective.get(), group) {}

  const std::vector<int> ranks;
  const std::unique_ptr<sharding::Collective> collective;
  sharding::CallOrder order;
};

CallComparison::CallComparison(const World& world, const std::vector<int>& ranks,
                               std::chrono::milliseconds timeout, const std::string& title) {
  auto collective = NewUnwatchedCollective(world, ranks, timeout, {"order of collectives"});
  state_ = std::make_shared<State>(ranks, std::move(collective), title);
  Comparisons().push_back(this);
}

CallComparison::~CallComparison() { std::erase(Comparisons(), this); }

void CallComparison::Compare(const std::string& what, const std::string& place, bool is_one_place) {
  const absl::Status status = script_calls > 0
                                  ? state_->order.Check({what, place, is_one_place})
                                  : state_->order.Announce({what, place, /*is_one_place=*/false});
  TORCH_CHECK(status.ok(), std::string(status.message()));
}

void CallComparison::Refuse(const std::string& what, const std::string& place) {
  ++num_calls;
  state_->order.Refuse({what, place, /*is_one_place=*/false});
}

void CallComparison::TellEnd() {
  // A rank that differs detects that itself; this rank has ended and ignores it.
  static_cast<void>(state_->order.Announce({"the end of its script", "", false}));
}

// Long messages follow a short one of the same call: the second round of GatherTexts. They are not
// compared again.
class CallComparison::Gatherings : public sharding::Collective {
 public:
  Gatherings(std::shared_ptr<State> state, std::string what, std::shared_ptr<Activity> activity)
      : state_(std::move(state)), what_(std::move(what)), activity_(std::move(activity)) {}

  int rank() const override { return state_->collective->rank(); }
  int size() const override { return state_->collective->size(); }
  int WorldRank(int position) const override { return state_->collective->WorldRank(position); }

  std::unique_ptr<Pending> StartAllGather(const std::string& bytes) override {
    if (bytes.size() > sharding::CallOrder::kMaxGatheredBytes)
      return state_->collective->StartAllGather(bytes);
    ++num_calls;
    const std::string& subject = CollectiveSubject::Current();
    return state_->order.StartGather(
        {subject.empty() ? what_ : subject, activity_->FindPlace(), /*is_one_place=*/false}, bytes);
  }

 private:
  const std::shared_ptr<State> state_;
  const std::string what_;
  const std::shared_ptr<Activity> activity_;
};

std::unique_ptr<sharding::Collective> CallComparison::NewGatherings(
    const std::string& what, std::shared_ptr<Activity> activity) {
  return std::make_unique<Gatherings>(state_, what, std::move(activity));
}

CallComparison* CallComparison::OfWorld(const std::vector<int>& ranks) {
  // A run makes its world's group first, and keeps it.
  const auto& comparisons = Comparisons();
  if (comparisons.empty() || comparisons.front()->state_->ranks != ranks) return nullptr;
  return comparisons.front();
}

int64_t NumScriptCalls() { return num_calls; }

void TellEndOfScript() {
  for (CallComparison* comparison : Comparisons()) comparison->TellEnd();
}

}  // namespace lockstep::driver
