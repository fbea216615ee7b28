// Compares how long the ranks work, so that the step line can name the slowest one.
//
// The failure this prevents. One rank is slower than the others in every step: its disk, its CPU,
// or its longer samples. All ranks wait for it, and their times are equal. No number names it.
//
//    // On each rank, when the ranks connect:
//    auto collective = CarryOwnWork(std::move(sockets), /*world_size=*/4);
//    // From here on every all-gather carries the rank's clock in its message:
//    collective->StartAllGather("b")->Wait();
//    Train();
//    collective->StartAllGather("b")->Wait();
//    std::vector<double> seconds = OwnWork::OfThisThread().TakeSeconds();  // {0.21, 0.20, ...}
//
// The clock of a rank's own work stands still while the rank waits for others. It waits in
// all-gathers, in the collectives that MeasureWait marks, and at the end of a backward pass whose
// gradients the Reducer averages. Only differences of one rank's clock are compared, so the
// machines' clocks need not agree. On a GPU collectives do not block the CPU. There a rank waits
// for others as it reads a value from its device, and that time counts as work.
//
// It costs 8 bytes in each message and two reads of the clock. There is no further message.
// Thread: each thread has its own OwnWork; the script's thread calls the collectives.

#ifndef LOCKSTEP_DRIVER_WATCHING_OWN_WORK_H_
#define LOCKSTEP_DRIVER_WATCHING_OWN_WORK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "c10/util/intrusive_ptr.h"
#include "sharding/agreement/collective.h"
#include "torch/csrc/distributed/c10d/Work.hpp"

namespace lockstep::driver {

class OwnWork {
 public:
  // Returns nanoseconds that never go back.
  using Clock = std::function<int64_t()>;

  static OwnWork& OfThisThread();

  // Replaces the clock, which is std::chrono::steady_clock.
  void set_clock(Clock clock) { clock_ = std::move(clock); }

  // Returns the nanoseconds of this rank's own work, from any beginning.
  int64_t Now() const;

  // The time between BeginWait and EndWait does not count as work. Pairs may be nested.
  void BeginWait();
  void EndWait();
  // Ends all waits that are open. An error may skip an EndWait; the next all-gather calls this
  // before it reads the clock, because a rank that sends a message is not waiting.
  void EndAllWaits();

  // Stores the clocks of all ranks, in rank order, as one all-gather returned them. Ignores the
  // clocks of an all-gather that began before the newest one stored.
  void Note(const std::vector<int64_t>& clocks);

  // Returns the seconds that each rank worked since the last call, in rank order. Time is measured
  // from all-gather to all-gather: from the newest one at the last call (at first: from the very
  // first one) to the newest one now. Returns an empty vector if none has ended in between.
  std::vector<double> TakeSeconds();

  // Returns each rank's seconds of own work at the newest all-gather, in rank order, from
  // beginnings of their own. The same on every rank. Empty before the first.
  std::vector<double> Seconds() const;

 private:
  int64_t Time() const;

  Clock clock_;
  int depth_ = 0;                // of waits
  int64_t wait_began_ = 0;       // the outermost
  int64_t waited_ = 0;           // in waits that have ended
  std::vector<int64_t> newest_;  // clocks by rank
  std::vector<int64_t> taken_;   // those of the last TakeSeconds
};

// While this object lives, this thread waits.
class Waiting {
 public:
  Waiting() : work_(OwnWork::OfThisThread()) { work_.BeginWait(); }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;
  ~Waiting() { work_.EndWait(); }

 private:
  OwnWork& work_;
};

// Returns a collective whose all-gathers do not count as work. If it has all ranks of the run, its
// messages carry the ranks' clocks. Thread: as for `collective`.
std::unique_ptr<sharding::Collective> CarryOwnWork(std::unique_ptr<sharding::Collective> collective,
                                                   int world_size);

// Called with true as a wait begins, and with false as it ends.
using OnWait = std::function<void(bool waits)>;

// Returns a Work that does the same as `work`. It is completed once its wait has returned, also if
// `work` never says that it is. Its wait does not count as this rank's work. If its
// future is asked for in a backward pass, as the Reducer does, neither does the end of that pass,
// where the Reducer waits for it. `on_wait` is called for both, on the thread that waits. At the
// end of a backward pass the newest such Work calls it.
c10::intrusive_ptr<c10d::Work> MeasureWait(
    c10::intrusive_ptr<c10d::Work> work, OnWait on_wait = [](bool) {});

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_WATCHING_OWN_WORK_H_
