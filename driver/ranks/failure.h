// Ends a run: reports its first failure to every rank within moments, and records which ranks are
// done.
//
//    ReportFailure(*store, {"rank 1: train.lua:3: ..."});          // the rank that fails
//    WatchForFailure(member, describe, [](const Member& watcher, const Failure& failure) { ... });
//
// A rank that dies silently leaves the others waiting in a collective, until a timeout that names
// no cause. So the failing rank writes one key of the store; the first writer wins. A thread in
// every rank waits for that key. A rank whose script has ended records it, because others may still
// wait for it.

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

// The exit code of a run whose ranks waited for each other forever, and of a rank that can no
// longer reach the others.
inline constexpr int kHangExitCode = 3;

struct Failure {
  std::string text;
  int exit_code = 1;           // exit code of the whole run
  bool is_hang = false;        // each rank reports its activity: see ReportActivity
  bool store_is_lost = false;  // the process that hosts the store is lost
};

// A rank of the run, and its connection to the store.
struct Member {
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0;
  int world_size = 1;
  bool hosts_store = false;
};

// Records `failure` unless the run has failed before. Returns the run's first failure. Any thread.
Failure ReportFailure(c10d::Store& store, const Failure& failure);

// Returns the run's first failure, if it has failed.
std::optional<Failure> KnownFailure(c10d::Store& store);

// Calls `on_failure` once, on its own thread, when the run has failed or the store is lost. If
// ranks wait for each other forever, it first reports `describe_activity()`. `watcher` is `member`
// with that thread's own store. The thread lives until the process ends.
void WatchForFailure(const Member& member, std::function<std::string()> describe_activity,
                     std::function<void(const Member& watcher, const Failure& failure)> on_failure);

// Calls `on_silence` once, on its own thread, with a message that names the ranks that have not
// left the run and have given no sign of life for `limit`: see signs_of_life.h. For the rank that
// hosts the store. Does not look any more once the run has failed.
void WatchForSilence(
    const Member& member, std::chrono::milliseconds limit,
    std::function<void(const Member& watcher, const std::string& message)> on_silence);

// Writes this rank's activity to the store after a hang, as Activity::Describe returns it.
void ReportActivity(const Member& member, const std::string& activity);

// The time that DescribeActivities waits for ranks that may still report.
inline constexpr std::chrono::milliseconds kTimeToDescribe(3000);

// Returns the activity of all ranks, one or more lines for each. Waits at most `time` for ranks
// that have not reported.
std::string DescribeActivities(c10d::Store& store, int world_size, std::chrono::milliseconds time);

// Records that the script has ended on this rank, and how: "", or "by os.exit(0) at train.lua:3".
// Returns when the store has it.
void ReportEnd(const Member& member, const std::string& how);

bool HasReportedEnd(c10d::Store& store, int rank);

// Returns the ranks on which the script has ended, as "rank 1 (by os.exit(0) at train.lua:3), rank
// 2", or "".
std::string DescribeEnds(const Member& member);

// The timeout of collectives that the watchdog ends. Only the watchdog knows which ranks work
// alone.
inline constexpr std::chrono::hours kNoTimeout(24 * 365);

// Adds to the time that ranks of the run have worked alone while others waited for them
// (run.alone, run:save). Returns the sum. With 0 it only reads.
std::chrono::milliseconds AddTimeAlone(c10d::Store& store, std::chrono::milliseconds time);

// This rank works alone while an object of this class lives, for `longest` at most: a disk may
// never answer. Create them on one thread; they may nest. Any thread may call IsUnderWay.
class WorkAlone {
 public:
  using Clock = std::chrono::steady_clock;

  explicit WorkAlone(Clock::duration longest) : outer_(until_.exchange(Clock::now() + longest)) {}
  WorkAlone(const WorkAlone&) = delete;
  WorkAlone& operator=(const WorkAlone&) = delete;
  ~WorkAlone() { until_ = outer_; }

  static bool IsUnderWay() { return Clock::now() < until_.load(); }

 private:
  static inline std::atomic<Clock::time_point> until_{Clock::time_point::min()};

  const Clock::time_point outer_;
};

// Records that all ranks have agreed to end with this exit code, which is not a failure.
void ReportAgreedEnd(c10d::Store& store, const Failure& end);
std::optional<Failure> KnownAgreedEnd(c10d::Store& store);

// Records that the run saves its state on SIGTERM. The launcher then passes the signal on and
// waits.
void AnnounceSaving(c10d::Store& store);
bool IsSavingAnnounced(c10d::Store& store);

// Ends this rank's use of the store. Only the rank that hosts the store waits here, for the other
// ranks' last use or until `timeout`.
void LeaveStore(const Member& member, std::chrono::milliseconds timeout);

// Does the same after a failure. Waits at most a second, while the others read the cause from the
// store. After a hang every rank first waits until all have reported their activities, at most a
// second. Then the host waits until a rank could gather them.
void LeaveFailedRun(const Member& member, const Failure& failure) noexcept;

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_RANKS_FAILURE_H_
