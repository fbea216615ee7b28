#include "driver/ranks/failure.h"

#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "driver/network/bounded_store.h"
#include "driver/network/printable.h"
#include "driver/ranks/circle.h"
#include "driver/ranks/signs_of_life.h"

namespace lockstep::driver {
namespace {

constexpr char kFailureKey[] = "lockstep/failure";  // "<exit code> <hang or -> <text>"

constexpr char kAgreedEndKey[] = "lockstep/agreed_end";  // as kFailureKey
constexpr char kSavesKey[] = "lockstep/saves_on_sigterm";
constexpr char kTimeAloneKey[] = "lockstep/time_alone_ms";

// For the host of the store to wait until the others have read there why they end.
constexpr std::chrono::milliseconds kTimeToHear(1000);
// For all ranks to say what they were doing. A script's line may take a second.
constexpr std::chrono::milliseconds kTimeToSay(2000);

constexpr std::chrono::milliseconds kBetweenLooks(20);

std::string EndedKey(int rank) { return absl::StrCat("lockstep/ended/", rank); }
std::string ActivityKey(int rank) { return absl::StrCat("lockstep/activity/", rank); }
std::string GoneKey(int rank) { return absl::StrCat("lockstep/gone/", rank); }

std::string Format(const Failure& failure) {
  return absl::StrCat(failure.exit_code, failure.is_hang ? " hang " : " - ", failure.text);
}

Failure Parse(const std::string& value) {
  const std::vector<std::string> parts = absl::StrSplit(value, absl::MaxSplits(' ', 2));
  Failure failure;
  if (!absl::SimpleAtoi(parts[0], &failure.exit_code)) failure.exit_code = 1;
  failure.is_hang = parts.size() > 1 && parts[1] == "hang";
  failure.text = parts.size() > 2 ? parts[2] : "";
  return failure;
}

}  // namespace

Failure ReportFailure(c10d::Store& store, const Failure& failure) {
  return Parse(store.compareSet(kFailureKey, "", Format(failure)));
}

std::optional<Failure> KnownFailure(c10d::Store& store) {
  if (!store.check({kFailureKey})) return std::nullopt;
  return Parse(store.get_to_str(kFailureKey));
}

void WatchForFailure(
    const Member& member, std::function<std::string()> describe_activity,
    std::function<void(const Member& watcher, const Failure& failure)> on_failure) {
  // A connection of its own: a client that waits blocks all others that share it.
  Member watcher = member;
  watcher.store = member.store->clone();
  std::thread([watcher = std::move(watcher), describe_activity = std::move(describe_activity),
               on_failure = std::move(on_failure)] {
    Failure failure;
    try {
      watcher.store->wait({kFailureKey}, std::chrono::hours(24 * 365));
      failure = Parse(watcher.store->get_to_str(kFailureKey));
    } catch (const StoreIsSilent& error) {
      failure.text = error.what_without_backtrace();
    } catch (const std::exception&) {
      failure.text = "the store was lost: its host (the launcher, or rank 0) is gone";
      failure.store_is_lost = true;
    }
    try {
      if (failure.is_hang) ReportActivity(watcher, describe_activity());
    } catch (const std::exception&) {
      // The store was lost after it gave the cause, which is told all the same.
    }
    on_failure(watcher, failure);
  }).detach();
}

void WatchForSilence(
    const Member& member, std::chrono::milliseconds limit,
    std::function<void(const Member& watcher, const std::string& message)> on_silence) {
  Member watcher = member;
  watcher.store = member.store->clone();
  std::thread([watcher = std::move(watcher), limit, on_silence = std::move(on_silence)] {
    Silence silence(limit);
    try {
      while (!KnownFailure(*watcher.store).has_value()) {
        std::vector<int> ranks;
        for (int rank = 0; rank < watcher.world_size; ++rank) {
          if (!watcher.store->check({GoneKey(rank)})) ranks.push_back(rank);
        }
        const auto message = silence.Look(*watcher.store, ranks, Silence::Clock::now());
        if (message.has_value()) return on_silence(watcher, *message);
        std::this_thread::sleep_for(silence.between_looks());
      }
    } catch (const std::exception&) {
      // The store is lost: WatchForFailure reports it.
    }
  }).detach();
}

void ReportActivity(const Member& member, const std::string& activity) {
  member.store->set(ActivityKey(member.rank), activity);
}

std::string DescribeActivities(c10d::Store& store, int world_size, std::chrono::milliseconds time) {
  const auto deadline = std::chrono::steady_clock::now() + time;
  std::vector<std::string> lines;
  std::vector<std::string> activities(static_cast<size_t>(world_size));
  for (int rank = 0; rank < world_size; ++rank) {
    bool reported = store.check({ActivityKey(rank)});
    const bool ended = HasReportedEnd(store, rank);
    while (!reported && !ended && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(kBetweenLooks);
      reported = store.check({ActivityKey(rank)});
    }
    std::string activity;
    if (reported) {
      activity = store.get_to_str(ActivityKey(rank));
      activities[static_cast<size_t>(rank)] = activity;
    } else {
      const std::string process = DescribeProcessOf(store, rank);
      activity = absl::StrCat("no answer: it is dead, stopped, or its machine is lost",
                              process.empty() ? "" : absl::StrCat(" (", process, ")"));
    }
    if (ended) activity = reported ? "its script had ended; " + activity : "its script had ended";
    lines.push_back(absl::StrCat("  rank ", rank, ": ",
                                 absl::StrReplaceAll(Printable(activity), {{"\n", "\n  "}})));
  }
  const std::string circle = DescribeCircle(activities);
  if (!circle.empty()) lines.push_back(Printable(circle));
  return absl::StrJoin(lines, "\n");
}

void ReportEnd(const Member& member, const std::string& how) {
  member.store->set(EndedKey(member.rank), how);
  // `set` expects no answer. Another rank may ask for this key as soon as it sees what follows.
  member.store->check({EndedKey(member.rank)});
}

bool HasReportedEnd(c10d::Store& store, int rank) { return store.check({EndedKey(rank)}); }

std::string DescribeEnds(const Member& member) {
  std::vector<std::string> ends;
  for (int rank = 0; rank < member.world_size; ++rank) {
    if (!HasReportedEnd(*member.store, rank)) continue;
    const std::string how = member.store->get_to_str(EndedKey(rank));
    ends.push_back(absl::StrCat("rank ", rank, how.empty() ? "" : absl::StrCat(" (", how, ")")));
  }
  return absl::StrJoin(ends, ", ");
}

std::chrono::milliseconds AddTimeAlone(c10d::Store& store, std::chrono::milliseconds time) {
  return std::chrono::milliseconds(store.add(kTimeAloneKey, time.count()));
}

void ReportAgreedEnd(c10d::Store& store, const Failure& end) {
  store.set(kAgreedEndKey, Format(end));
}

std::optional<Failure> KnownAgreedEnd(c10d::Store& store) {
  if (!store.check({kAgreedEndKey})) return std::nullopt;
  return Parse(store.get_to_str(kAgreedEndKey));
}

void AnnounceSaving(c10d::Store& store) { store.set(kSavesKey, std::string("1")); }

bool IsSavingAnnounced(c10d::Store& store) { return store.check({kSavesKey}); }

void LeaveStore(const Member& member, std::chrono::milliseconds timeout) {
  member.store->set(GoneKey(member.rank), std::string("1"));
  if (!member.hosts_store) return;
  std::vector<std::string> keys;
  for (int rank = 0; rank < member.world_size; ++rank) keys.push_back(GoneKey(rank));
  member.store->wait(keys, timeout);
}

namespace {

// Waits until all ranks have said what they were doing, at most kTimeToSay. A rank that ends
// before breaks the connections in which others wait, and so changes what they say.
void WaitForActivities(const Member& member) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < member.world_size; ++rank) keys.push_back(ActivityKey(rank));
  try {
    member.store->wait(keys, kTimeToSay);
  } catch (const std::exception&) {
    // Some are dead or stopped, or their scripts have ended.
  }
}

}  // namespace

void LeaveFailedRun(const Member& member, const Failure& failure) noexcept {
  try {
    if (failure.is_hang) WaitForActivities(member);
    LeaveStore(member, failure.is_hang ? kTimeToDescribe + kTimeToHear : kTimeToHear);
  } catch (const std::exception&) {
    // The rank or the store is dead: there is nothing to wait for.
  }
}

}  // namespace lockstep::driver
