// What this rank is doing, told when a run hangs: step, label, script line, last collectives.
//
//   Activity activity;
//   const int64_t id = activity.Start({"world", 41, "all_reduce float32 {4}", "train.lua:12",
//                                      /*limit=*/std::chrono::seconds(120)});
//   activity.SetWork(id, group->allreduce(...));
//   ...
//   if (auto overdue = activity.FindOverdue()) std::puts(activity.Describe().c_str());
//
// It is c10d's flight recorder for every backend alike, with the script's lines in it. Thread-safe:
// the script's thread writes, the one that watches for hangs reads.

#ifndef LOCKSTEP_DRIVER_RANKS_ACTIVITY_H_
#define LOCKSTEP_DRIVER_RANKS_ACTIVITY_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "c10/util/intrusive_ptr.h"
#include "torch/csrc/distributed/c10d/Work.hpp"

namespace lockstep::driver {

struct CollectiveCall {
  std::string group;                   // "world", "ranks 0, 1", "ranks 0, 1 (sharding.lockstep)"
  int64_t number = 0;                  // from 1, counted in its group
  std::string what;                    // "all_reduce float32 {4, 8}"
  std::string place;                   // "train.lua:12"; "" where the script did not ask for it
  std::chrono::milliseconds limit{0};  // to wait for the other ranks; 0: somebody else watches it
};

// A collective that has outlasted its limit.
struct OverdueCall {
  CollectiveCall call;
  std::chrono::milliseconds waited{0};  // since it began
};

class Activity {
 public:
  // Where the script stands now. Called by Start and SetLabel, on their thread.
  void set_find_place(std::function<std::string()> find_place);

  // The script's line where the calling thread runs the script, otherwise "".
  std::string FindPlace() const;

  void SetStep(int64_t step);
  // Kept up to 200 bytes, escaped.
  void SetLabel(const std::string& label);

  // A collective begins; returns its id. SetWork: it is under way, or, where `work` is null, over.
  // Keeps `work` until it is done, or for a few polls of FindOverdue longer.
  int64_t Start(CollectiveCall call);
  void SetWork(int64_t id, c10::intrusive_ptr<c10d::Work> work);

  // The oldest collective that has outlasted its limit.
  std::optional<OverdueCall> FindOverdue();

  // Some lines for a report: what is under way, then what came before it, newest first.
  //   step 7, label "batch 7", in a collective at train.lua:12
  //     waits 120.0 s  world #41  all_reduce float32 {4}  (train.lua:12)
  //     done           world #40  broadcast float32 {8}  (train.lua:9)
  std::string Describe();

 private:
  using Clock = std::chrono::steady_clock;
  struct Record {
    int64_t id = 0;
    CollectiveCall call;
    Clock::time_point started;
    c10::intrusive_ptr<c10d::Work> work;
    bool done = false;
  };

  void Refresh();  // finds out what is done, forgets what is old; under the mutex

  mutable std::mutex mutex_;
  std::function<std::string()> find_place_;
  std::optional<int64_t> step_;
  std::string label_;
  std::string place_;  // the last one that was passed
  int64_t next_id_ = 0;
  std::deque<Record> records_;  // by id
};

// A collective that is under way while this lives, and has no Work.
class UnderWay {
 public:
  UnderWay(Activity& activity, CollectiveCall call)
      : activity_(activity), id_(activity.Start(std::move(call))) {}
  UnderWay(const UnderWay&) = delete;
  UnderWay& operator=(const UnderWay&) = delete;
  ~UnderWay() { activity_.SetWork(id_, nullptr); }

 private:
  Activity& activity_;
  int64_t id_;
};

// What the next collectives of this thread are about, while this lives: for one whose tensors do
// not tell, since it moves their bytes.
class CollectiveSubject {
 public:
  explicit CollectiveSubject(std::string text);
  CollectiveSubject(const CollectiveSubject&) = delete;
  CollectiveSubject& operator=(const CollectiveSubject&) = delete;
  ~CollectiveSubject();

  // "" outside of any.
  static const std::string& Current();
};

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_RANKS_ACTIVITY_H_
