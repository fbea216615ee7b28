// The time that ranks work alone (run.alone, run:save) while others wait for them.

#ifndef LOCKSTEP_DRIVER_RANKS_WATCHDOG_TIME_ALONE_H_
#define LOCKSTEP_DRIVER_RANKS_WATCHDOG_TIME_ALONE_H_

#include <chrono>
#include <deque>
#include <utility>

#include "c10/util/intrusive_ptr.h"
#include "driver/ranks/failure.h"
#include "driver/ranks/watchdog/time_stopped.h"
#include "torch/csrc/distributed/c10d/Store.hpp"

namespace lockstep::driver {

// Measures the time that other ranks have worked alone, which does not count as waiting, and tells
// them this rank's own at each look. Not thread-safe.
class TimeAlone {
 public:
  using Clock = std::chrono::steady_clock;

  // Reads the others' time once in `between_reads` only: a wait begins at any time. This rank does
  // not work while it is `stopped`.
  TimeAlone(c10::intrusive_ptr<c10d::Store> store, std::chrono::milliseconds between_reads,
            const TimeStopped& stopped)
      : store_(std::move(store)), between_reads_(between_reads), stopped_(stopped) {}

  // Call this at each look. Throws where the store does not answer.
  void Look(Clock::time_point now, bool is_alone) {
    if (is_alone_) {
      const auto time = std::chrono::duration_cast<std::chrono::milliseconds>(
          now - last_look_ - stopped_.Since(last_look_));
      AddTimeAlone(*store_, time);
      own_ += time;
    }
    is_alone_ = is_alone;
    last_look_ = now;
    if (reads_.empty() || now - reads_.back().when >= between_reads_) {
      // One that is older than any wait is enough; waits that go on keep all.
      if (!is_asked_ && reads_.size() > kKept) reads_.pop_front();
      reads_.push_back({now, Others()});
    }
    is_asked_ = false;
  }

  // Returns how long other ranks have worked alone since `start`, or a little more.
  std::chrono::milliseconds Since(Clock::time_point start) {
    is_asked_ = true;
    std::chrono::milliseconds before = reads_.empty() ? Others() : reads_.front().time;
    for (const Read& read : reads_) {
      if (read.when <= start) before = read.time;
    }
    return Others() - before;
  }

 private:
  struct Read {
    Clock::time_point when;
    std::chrono::milliseconds time;
  };
  static constexpr size_t kKept = 12;

  std::chrono::milliseconds Others() {
    return AddTimeAlone(*store_, std::chrono::milliseconds(0)) - own_;
  }

  const c10::intrusive_ptr<c10d::Store> store_;
  const std::chrono::milliseconds between_reads_;
  const TimeStopped& stopped_;
  std::deque<Read> reads_;
  std::chrono::milliseconds own_{0};
  Clock::time_point last_look_;
  bool is_alone_ = false;
  bool is_asked_ = false;
};

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_RANKS_WATCHDOG_TIME_ALONE_H_
