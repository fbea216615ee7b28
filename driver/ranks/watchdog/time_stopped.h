// The time for which this process was stopped: by SIGSTOP or Ctrl-Z, often with the whole run.

#ifndef LOCKSTEP_DRIVER_RANKS_WATCHDOG_TIME_STOPPED_H_
#define LOCKSTEP_DRIVER_RANKS_WATCHDOG_TIME_STOPPED_H_

#include <algorithm>
#include <chrono>
#include <deque>

namespace lockstep::driver {

// Finds stops: a process that runs looks more often than once in kLongestLook. Not thread-safe.
class TimeStopped {
 public:
  using Clock = std::chrono::steady_clock;

  // A longer time between two looks was a stop, except for this part of it.
  static constexpr std::chrono::seconds kLongestLook{2};

  explicit TimeStopped(Clock::time_point now) : last_look_(now) {}

  // Returns whether the process was stopped since the last look.
  bool Look(Clock::time_point now) {
    const Clock::duration time = now - last_look_;
    last_look_ = now;
    if (time <= kLongestLook) return false;
    stops_.push_back({now, time - kLongestLook});
    if (stops_.size() > kKept) stops_.pop_front();
    return true;
  }

  // Counts the time since the last look as running.
  void Skip(Clock::time_point now) { last_look_ = now; }

  // Returns how long the process was stopped since `start`, as far as looks have found it.
  Clock::duration Since(Clock::time_point start) const {
    Clock::duration sum{0};
    for (const Stop& stop : stops_) {
      if (stop.end > start) sum += std::min(stop.time, stop.end - start);
    }
    return sum;
  }

 private:
  struct Stop {
    Clock::time_point end;
    Clock::duration time;
  };
  static constexpr size_t kKept = 1000;

  Clock::time_point last_look_;
  std::deque<Stop> stops_;
};

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_RANKS_WATCHDOG_TIME_STOPPED_H_
