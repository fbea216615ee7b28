#include "driver/ranks/control.h"

#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "c10/util/Exception.h"
#include "driver/ranks/activity.h"
#include "driver/ranks/addresses.h"
#include "driver/ranks/failure.h"
#include "driver/ranks/meeting.h"
#include "driver/ranks/mirror/mirror.h"
#include "driver/ranks/script_calls.h"
#include "driver/ranks/watched_backend.h"
#include "driver/watching/own_work.h"
#include "sharding/agreement/socket_collective.h"

namespace lockstep::driver {
namespace {

// Through the run's store.
sharding::SocketCollective::Exchange ExchangeThrough(const World& world, const std::string& name,
                                                     const std::vector<int>& ranks,
                                                     const std::string& title,
                                                     std::chrono::milliseconds timeout) {
  return [store = world.store, rank = world.environment.rank, name, ranks, title, timeout](
             const std::string& own,
             const std::vector<int>& positions) -> absl::StatusOr<std::vector<std::string>> {
    std::vector<int> asked;
    for (const int position : positions) asked.push_back(ranks[static_cast<size_t>(position)]);
    Meeting meeting = MeetInStore(*store, name, rank, asked, own, timeout);
    if (meeting.absent.empty()) return std::move(meeting.values);
    return absl::DeadlineExceededError(
        DescribeAbsence(absl::StrCat("meeting of ", title), meeting, timeout));
  };
}

// Reports each gathering to the rank's activity, starting when this rank waits in it. Between its
// start and the wait there is a step of any length, and a loop that is left early never waits.
class WatchedCollective : public sharding::Collective {
 public:
  // `sequence`: of the gatherings, or -1.
  WatchedCollective(std::unique_ptr<sharding::Collective> collective, std::string title,
                    std::shared_ptr<Activity> activity, std::chrono::milliseconds limit,
                    int sequence)
      : collective_(std::move(collective)),
        title_(std::move(title)),
        activity_(std::move(activity)),
        limit_(limit),
        sequence_(sequence) {}

  int rank() const override { return collective_->rank(); }
  int size() const override { return collective_->size(); }
  int WorldRank(int position) const override { return collective_->WorldRank(position); }

  std::unique_ptr<Pending> StartAllGather(const std::string& bytes) override {
    const std::string& subject = CollectiveSubject::Current();
    activity_->NoteCome(sequence_, ++calls_);
    return std::make_unique<Watched>(
        *activity_,
        CollectiveCall{title_, calls_, subject.empty() ? "agreement" : subject, "", limit_,
                       sequence_},
        collective_->StartAllGather(bytes));
  }

  bool CanMoveParts() const override { return collective_->CanMoveParts(); }
  absl::StatusOr<std::vector<std::string>> GatherWithParts(const std::string& message,
                                                           const Parts& parts) override {
    const UnderWay waiting(
        *activity_, {title_, ++calls_, "agreement", activity_->FindPlace(), limit_, sequence_});
    return collective_->GatherWithParts(message, parts);
  }

 private:
  class Watched : public Pending {
   public:
    Watched(Activity& activity, CollectiveCall call, std::unique_ptr<Pending> pending)
        : activity_(activity), call_(std::move(call)), pending_(std::move(pending)) {}

    absl::StatusOr<std::vector<std::string>> Wait() override {
      call_.place = activity_.FindPlace();
      const UnderWay waiting(activity_, call_);
      return pending_->Wait();
    }

   private:
    Activity& activity_;
    CollectiveCall call_;
    std::unique_ptr<Pending> pending_;
  };

  std::unique_ptr<sharding::Collective> collective_;
  std::string title_;
  std::shared_ptr<Activity> activity_;
  std::chrono::milliseconds limit_;
  int sequence_;
  int64_t calls_ = 0;
};

constexpr double kLongestTimeout = 604800;  // as of --timeout

// Returns where the notes of the next guard over these ranks are. Guards are made alike on every
// rank, so their count gives all ranks the same name.
std::string NextPrefix(const std::vector<int>& ranks) {
  static auto* const times_made = new std::map<std::vector<int>, int>();
  return absl::StrCat("guard/", absl::StrJoin(ranks, ","), "/", (*times_made)[ranks]++);
}

// Returns the name under which the ranks of the next collective meet. Members alone count how often
// this list was asked for, so that others need not take part.
std::string NextName(const std::vector<int>& ranks) {
  static std::map<std::vector<int>, int> times_made;
  return absl::StrCat("control/", absl::StrJoin(ranks, ","), "/", times_made[ranks]++);
}

std::unique_ptr<sharding::Collective> Connect(const World& world, const std::vector<int>& ranks,
                                              std::chrono::milliseconds timeout,
                                              const GroupPurpose& purpose,
                                              const std::string& name) {
  const int position = PositionIn(world, ranks);
  auto collective = sharding::SocketCollective::Connect(
      position, static_cast<int>(ranks.size()), SocketAddresses(world).front(),
      ExchangeThrough(world, name, ranks, TitleOf(world, ranks, purpose), timeout),
      absl::FromChrono(timeout), ranks);
  TORCH_CHECK(collective.ok(), std::string(collective.status().message()));
  return *std::move(collective);
}

}  // namespace

std::unique_ptr<sharding::Collective> NewUnwatchedCollective(const World& world,
                                                             const std::vector<int>& ranks,
                                                             std::chrono::milliseconds timeout,
                                                             const GroupPurpose& purpose) {
  return Connect(world, ranks, timeout, purpose, NextName(ranks));
}

std::unique_ptr<sharding::Collective> NewControlCollective(const World& world,
                                                           const std::vector<int>& ranks,
                                                           std::chrono::milliseconds timeout,
                                                           const GroupPurpose& purpose) {
  if (world.environment.mirrored)
    return NewMirrorCollective(PositionIn(world, ranks), static_cast<int>(ranks.size()));
  const std::string title = TitleOf(world, ranks, purpose);
  const std::chrono::milliseconds limit = purpose.watched ? timeout : std::chrono::milliseconds(0);
  const std::chrono::milliseconds longest = purpose.watched ? kNoTimeout : timeout;
  const std::string name = NextName(ranks);
  // A guard has a limit of its own, and an error that a script may catch.
  const auto sequence = [&](int made) { return purpose.watched ? made : -1; };
  Activity& activity = *world.activity;
  const UnderWay meeting(activity, {title, 0, "meeting of the group's ranks", activity.FindPlace(),
                                    limit, sequence(AddMeetingSequence(activity, name, ranks))});
  // Watched from the wait on, by WatchedCollective, and not from the start as a group's are.
  auto collective =
      CarryOwnWork(Connect(world, ranks, longest, purpose, name), world.environment.world_size);
  return std::make_unique<WatchedCollective>(std::move(collective), title, world.activity, limit,
                                             sequence(activity.AddGroupSequence(name, ranks)));
}

namespace {

// Lets --debug-collectives compare each gathering as a call of a group, before it begins.
class DebuggedCollective : public sharding::Collective {
 public:
  DebuggedCollective(std::unique_ptr<sharding::Collective> collective, std::string name,
                     c10::intrusive_ptr<WatchedBackend> group)
      : collective_(std::move(collective)), name_(std::move(name)), group_(std::move(group)) {}

  int rank() const override { return collective_->rank(); }
  int size() const override { return collective_->size(); }
  int WorldRank(int position) const override { return collective_->WorldRank(position); }

  std::unique_ptr<Pending> StartAllGather(const std::string& bytes) override {
    const std::string& subject = CollectiveSubject::Current();
    group_->CompareCall(subject.empty() ? name_ : subject);
    return collective_->StartAllGather(bytes);
  }

 private:
  const std::unique_ptr<sharding::Collective> collective_;
  const std::string name_;
  const c10::intrusive_ptr<WatchedBackend> group_;
};

std::unique_ptr<sharding::Collective> NewGatherings(const World& world, CallComparison& calls,
                                                    const std::vector<int>& ranks,
                                                    std::chrono::milliseconds timeout,
                                                    const std::string& name) {
  auto gatherings =
      CarryOwnWork(calls.NewGatherings(name, world.activity), world.environment.world_size);
  const std::string title = TitleOf(world, ranks, {name});
  // Made by all ranks in the same order, and known by their number.
  static std::map<std::string, int> times_made;
  const int sequence =
      world.activity->AddGroupSequence(absl::StrCat(title, "/", times_made[title]++), ranks);
  return std::make_unique<WatchedCollective>(std::move(gatherings), title, world.activity, timeout,
                                             sequence);
}

}  // namespace

std::unique_ptr<sharding::Collective> NewComparedCollective(const World& world,
                                                            const std::vector<int>& ranks,
                                                            std::chrono::milliseconds timeout,
                                                            const std::string& name) {
  CallComparison* const calls = CallComparison::OfWorld(ranks);
  return calls == nullptr ? NewControlCollective(world, ranks, timeout, {name})
                          : NewGatherings(world, *calls, ranks, timeout, name);
}

std::unique_ptr<sharding::Collective> NewComparedCollective(
    const World& world, const c10::intrusive_ptr<c10d::ProcessGroup>& group,
    const std::vector<int>& ranks, std::chrono::milliseconds timeout, const std::string& name) {
  const auto backend = WatchedBackendOf(*group);
  if (backend != nullptr && backend->calls() != nullptr)
    return NewGatherings(world, *backend->calls(), ranks, timeout, name);
  auto collective = NewControlCollective(world, ranks, timeout, {name});
  if (backend == nullptr) return collective;
  return std::make_unique<DebuggedCollective>(std::move(collective), name, backend);
}

sharding::Collective* SharedControlCollective(const World& world, const std::vector<int>& ranks,
                                              std::chrono::milliseconds timeout,
                                              const std::string& name) {
  if (ranks.size() == 1) return nullptr;
  static auto* const collectives =
      new std::map<std::vector<int>, std::unique_ptr<sharding::Collective>>();
  std::unique_ptr<sharding::Collective>& collective = (*collectives)[ranks];
  if (collective == nullptr) collective = NewComparedCollective(world, ranks, timeout, name);
  return collective.get();
}

RankGuard::RankGuard(const World& world, const std::vector<int>& ranks, double timeout_s)
    : activity_(world.activity) {
  TORCH_CHECK_VALUE(timeout_s >= 0.001 && timeout_s <= kLongestTimeout,
                    "sharding.guard: timeout_s must be from 0.001 to ", kLongestTimeout, ", not ",
                    timeout_s);
  if (ranks.size() == 1) return;
  const auto timeout = std::chrono::milliseconds(static_cast<int64_t>(1000 * timeout_s));
  collective_ = NewControlCollective(world, ranks, timeout, {"sharding.guard", /*watched=*/false});
  notes_ =
      std::make_unique<sharding::StoreNotes>(world.store, NextPrefix(ranks), collective_->rank());
  guard_ = std::make_unique<sharding::Guard>(collective_.get(), notes_.get(), timeout_s, ranks);
}

absl::Status RankGuard::Check(const std::string& label, const std::string& fingerprint,
                              const std::string& place) {
  if (guard_ == nullptr) return absl::OkStatus();
  activity_->SetLabel(label);
  return guard_->Check(label, fingerprint, place);
}

}  // namespace lockstep::driver
