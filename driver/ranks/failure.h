// How a run ends: its first failure, told to every rank within moments, and which ranks are done.
//
//   ReportFailure(*store, {"rank 1: train.lua:3: ..."});          // the rank that fails
//   WatchForFailure(member, describe, [](const Member& watcher, const Failure& failure) { ... });
//
// A rank that dies alone leaves the others waiting in a collective until a timeout that names
// nothing. So the failing rank writes one key, the first writer wins, and a thread in every rank
// waits for that key. A rank whose script has ended says so: the others may still wait for it.

#ifndef LOCKSTEP_DRIVER_RANKS_FAILURE_H_
#define LOCKSTEP_DRIVER_RANKS_FAILURE_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "c10/util/intrusive_ptr.h"
#include "torch/csrc/distributed/c10d/Store.hpp"

namespace lockstep::driver {

// Exit code of a run whose ranks waited for each other for ever, and of a rank that can no longer
// reach the others.
inline constexpr int kHangExitCode = 3;

struct Failure {
  std::string text;
  int exit_code = 1;           // of the whole run
  bool is_hang = false;        // each rank says what it was doing: see ReportActivity
  bool store_is_lost = false;  // and with it the process that hosts it
};

// A rank of the run, as the others see it.
struct Member {
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0;
  int world_size = 1;
  bool hosts_store = false;
};

// Makes `failure` the run's unless one is known; returns the run's. Any thread.
Failure ReportFailure(c10d::Store& store, const Failure& failure);

// The run's failure so far.
std::optional<Failure> KnownFailure(c10d::Store& store);

// Calls `on_failure` once, on a thread of its own, when the run has failed or the store is lost.
// Where ranks wait for each other for ever, reports `describe_activity()` first. `watcher` is
// `member` with a store of that thread's own. The thread lives until the process ends.
void WatchForFailure(const Member& member, std::function<std::string()> describe_activity,
                     std::function<void(const Member& watcher, const Failure& failure)> on_failure);

// After a hang: leaves for the others what this rank was doing, in the words of Activity::Describe.
void ReportActivity(const Member& member, const std::string& activity);

// How long DescribeActivities waits where ranks may still be about to report.
inline constexpr std::chrono::milliseconds kTimeToDescribe(2000);

// Returns what all ranks were doing, one or more lines for each. Waits for ranks that have not
// reported, `time` at most.
std::string DescribeActivities(c10d::Store& store, int world_size, std::chrono::milliseconds time);

// Notes that the script has ended on this rank, and how: "", or "by os.exit(0) at train.lua:3".
void ReportEnd(const Member& member, const std::string& how);

bool HasReportedEnd(c10d::Store& store, int rank);

// "rank 1 (by os.exit(0) at train.lua:3), rank 2": where the script has ended; "" where nowhere.
std::string DescribeEnds(const Member& member);

// The timeout of what the watchdog ends: it alone knows which ranks work alone.
inline constexpr std::chrono::hours kNoTimeout(24 * 365);

// Adds to the time that ranks of the run have worked alone, while others waited for them: see
// run.alone. Returns the sum. With 0 it only reads.
std::chrono::milliseconds AddTimeAlone(c10d::Store& store, std::chrono::milliseconds time);

// While one lives, this rank works alone. Any thread.
class WorkAlone {
 public:
  WorkAlone() { ++count_; }
  WorkAlone(const WorkAlone&) = delete;
  WorkAlone& operator=(const WorkAlone&) = delete;
  ~WorkAlone() { --count_; }

  static bool IsUnderWay() { return count_ > 0; }

 private:
  static inline std::atomic<int> count_{0};
};

// All ranks agreed to end with this exit code, and each is about to: that is no failure.
void ReportAgreedEnd(c10d::Store& store, const Failure& end);
std::optional<Failure> KnownAgreedEnd(c10d::Store& store);

// The run keeps its state when it is asked to end by SIGTERM: whoever launched it passes the signal
// on, and waits.
void AnnounceSaving(c10d::Store& store);
bool IsSavingAnnounced(c10d::Store& store);

// A rank's last use of the store. The rank that hosts it goes last: it alone waits here, for the
// other ranks' last use or until `timeout`.
void LeaveStore(const Member& member, std::chrono::milliseconds timeout);

// The same after a failure: waits a second at most, for the others to read there why they end, and
// after a hang as long as one of them may take to gather what each was doing.
void LeaveFailedRun(const Member& member, const Failure& failure) noexcept;

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_RANKS_FAILURE_H_
