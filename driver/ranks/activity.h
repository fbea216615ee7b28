// Records what this rank is doing, for the report of a hang: step, label, script line, last
// collectives.
//
//    Activity activity;
//    const int64_t id = activity.Start({"world", 41, "all_reduce float32 {4}", "train.lua:12",
//                                       /*limit=*/std::chrono::seconds(120)});
//    activity.SetWork(id, group->allreduce(...));
//    ...
//    if (auto overdue = activity.FindOverdue()) std::puts(activity.Describe().c_str());
//
// It is like c10d's flight recorder, but works for every backend and has the script's lines.
// Thread-safe: the script's thread writes, and the thread that watches for hangs reads.

#ifndef LOCKSTEP_DRIVER_RANKS_ACTIVITY_H_
#define LOCKSTEP_DRIVER_RANKS_ACTIVITY_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "c10/util/intrusive_ptr.h"
#include "driver/ranks/waits.h"
#include "torch/csrc/distributed/c10d/Work.hpp"

namespace lockstep::driver {

struct CollectiveCall {
  std::string group;                   // "world", "ranks 0, 1", "ranks 0, 1 (sharding.lockstep)"
  int64_t number = 0;                  // from 1, counted in its group
  std::string what;                    // "all_reduce float32 {4, 8}"
  std::string place;                   // "train.lua:12"; "" if the script did not call it
  std::chrono::milliseconds limit{0};  // to wait for the other ranks; 0: not watched here
  int sequence = -1;                   // of Activity::AddSequence; -1: never compared with others
  // Whether the work completes only while the script waits for it, as Gloo's messages do. Until the
  // script waits, this rank may be computing: it waits for no other rank.
  bool ends_in_wait = false;
};

// Calls that the ranks number alike: see waits.h.
struct CallSequence {
  std::string key;             // the same on all ranks
  std::string awaited, known;  // keys: see RankWait
  std::vector<int> ranks;      // of the run, that must come to end a wait
};

// A collective that has exceeded its limit.
struct OverdueCall {
  CollectiveCall call;
  std::chrono::milliseconds waited{0};  // since it began
};

class Activity {
 public:
  // Sets the function that returns the script's present line. Start and SetLabel call it on their
  // thread.
  void set_find_place(std::function<std::string()> find_place);
  // Sets the function that asks the script's thread for its present line, from another thread.
  // Describe calls it; "" stands for no answer.
  void set_ask_place(std::function<std::string()> ask_place);

  // Returns the script's line if the calling thread runs the script, otherwise "".
  std::string FindPlace() const;

  void SetStep(int64_t step);
  // Keeps up to 200 bytes, escaped.
  void SetLabel(const std::string& label);

  // Start records that a collective begins, and returns its id. SetWork records that it is in
  // progress, or that it has ended if `work` is null. Keeps `work`, and the tensors that it holds,
  // until the script has waited for it, or a later call finds that it is done.
  int64_t Start(CollectiveCall call);
  void SetWork(int64_t id, c10::intrusive_ptr<c10d::Work> work);

  // Returns the number of a new sequence, for CollectiveCall. NoteCome records that this rank has
  // begun the call `number` of one; Start does so, too.
  int AddSequence(CallSequence sequence);
  // Adds the sequence of the calls that all ranks of a group make.
  int AddGroupSequence(const std::string& key, std::vector<int> ranks);
  void NoteCome(int sequence, int64_t number);

  // Records that the script's thread begins, or ends, to wait in a collective. Waits may nest.
  void NoteBlocked(int64_t id, bool is_blocked);

  // Returns the collective in which the script's thread has waited for `at_least`, if other ranks
  // can be compared with it.
  std::optional<RankWait> FindWait(std::chrono::milliseconds at_least);

  // Returns whether a collective is in progress.
  bool IsWaiting();

  // Returns the oldest collective that has exceeded its limit.
  std::optional<OverdueCall> FindOverdue();

  // Returns some lines for a report: collectives in progress, then earlier ones, newest first.
  //
  //    step 7, label "batch 7", in a collective at train.lua:12
  //      waits 120.0 s  world #41  all_reduce float32 {4}  (train.lua:12)
  //      done           world #40  broadcast float32 {8}  (train.lua:9)
  //
  // "started 3.0 s" is a message that the script does not wait for yet.
  // Outside of a collective: "in no collective, now at train.lua:14; the last was at train.lua:12".
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

  struct Blocked {
    int64_t id = 0;
    Clock::time_point since;
  };

  void NoteComeLocked(int sequence, int64_t number);  // under the mutex
  // Returns when this rank began to wait for the call, or nothing. Under the mutex.
  std::optional<Clock::time_point> WaitsSince(const Record& record) const;
  bool IsWaitingNow() const;  // under the mutex
  // Asks the `most` oldest works in progress whether they are done, and drops old records. Under
  // the mutex.
  void Refresh(size_t most = std::numeric_limits<size_t>::max());

  mutable std::mutex mutex_;
  std::function<std::string()> find_place_;
  std::function<std::string()> ask_place_;
  std::optional<int64_t> step_;
  std::string label_;
  std::string place_;  // the last line of the script that is known
  int64_t next_id_ = 0;
  std::deque<Record> records_;  // by id
  std::vector<CallSequence> sequences_;
  std::vector<int64_t> come_;     // by sequence: the highest number, or -1
  std::vector<Blocked> blocked_;  // the innermost wait is the last
};

// While this object lives, the script's thread waits in a collective.
class BlockedIn {
 public:
  BlockedIn(Activity& activity, int64_t id) : activity_(activity), id_(id) {
    activity_.NoteBlocked(id_, true);
  }
  BlockedIn(const BlockedIn&) = delete;
  BlockedIn& operator=(const BlockedIn&) = delete;
  ~BlockedIn() { activity_.NoteBlocked(id_, false); }

 private:
  Activity& activity_;
  int64_t id_;
};

// Records a collective without a Work as in progress, and waited for, while this object lives.
class UnderWay {
 public:
  UnderWay(Activity& activity, CollectiveCall call)
      : activity_(activity), id_(activity.Start(std::move(call))) {
    activity_.NoteBlocked(id_, true);
  }
  UnderWay(const UnderWay&) = delete;
  UnderWay& operator=(const UnderWay&) = delete;
  ~UnderWay() {
    activity_.NoteBlocked(id_, false);
    activity_.SetWork(id_, nullptr);
  }

 private:
  Activity& activity_;
  int64_t id_;
};

// Describes the next collectives of this thread while it lives, for a collective that moves a
// tensor's bytes and so does not show its dtype and shape.
class CollectiveSubject {
 public:
  explicit CollectiveSubject(std::string text);
  CollectiveSubject(const CollectiveSubject&) = delete;
  CollectiveSubject& operator=(const CollectiveSubject&) = delete;
  ~CollectiveSubject();

  // Returns the present text, or "".
  static const std::string& Current();
};

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_RANKS_ACTIVITY_H_
