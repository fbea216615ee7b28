// The time at which a wait gives up, on a clock that never jumps.
//
//    const Deadline deadline(absl::Seconds(60));
//    while (!deadline.has_passed()) {
//      if (poll(&wanted, 1, deadline.MillisecondsLeft()) > 0) return true;
//    }
//
// Why not absl::Time: it follows the system's clock, which NTP or an administrator may set. Set
// forward by an hour, it ends every wait at once. Set back, it makes a wait of a minute take 61.
// tests/clock_test.cc runs the program while that clock jumps.
//
// Thread-safe.

#ifndef LOCKSTEP_BASE_DEADLINE_H_
#define LOCKSTEP_BASE_DEADLINE_H_

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "absl/time/time.h"

namespace lockstep {

class Deadline {
 public:
  // An infinite timeout never passes, one of zero or less has passed.
  explicit Deadline(absl::Duration timeout) : at_(Now() + timeout) {}

  // Returns the time that is left, at least 0.
  absl::Duration left() const { return std::max(at_ - Now(), absl::ZeroDuration()); }
  bool has_passed() const { return left() == absl::ZeroDuration(); }

  // Returns the time that is left for poll(2), rounded up, at most 12 days: a poll may return
  // before a deadline that is further off.
  int MillisecondsLeft() const {
    const absl::Duration whole = absl::Ceil(left(), absl::Milliseconds(1));
    return static_cast<int>(std::min<int64_t>(absl::ToInt64Milliseconds(whole), 1 << 30));
  }

  friend bool operator<(const Deadline& a, const Deadline& b) { return a.at_ < b.at_; }

 private:
  static absl::Duration Now() {
    return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
  }

  absl::Duration at_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_BASE_DEADLINE_H_
