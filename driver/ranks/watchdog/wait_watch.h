// Finds ranks that wait for each other in different groups: on up to 50 ranks within two seconds.
//
//    WaitWatch watch(store, rank, world_size, [activity] {
//      return activity->FindWait(WaitWatch::kOldEnough);
//    });
//    while (...) {  // on a thread of its own
//      if (const auto text = watch.Look(Clock::now())) EndRun(*text);
//      sleep_for(WaitWatch::kBetweenLooks);
//    }
//
// A rank whose script has waited for a second writes that wait to the store, and a new number with
// it a few times a second. The rank that reads (rank 0) looks for a circle of waits: see waits.h.
// It trusts a circle that it has seen twice, with a new number from each of its ranks in between.
// At the first look every one of them was then in its wait, and could not have gone on since.
//
// Cost: a wait of less than a second costs nothing. Rank 0 reads one number of the store every
// 200 ms. With more than 50 ranks, ranks read and write every 4 ms * world size instead, and rank 0
// finds a circle later.

#ifndef LOCKSTEP_DRIVER_RANKS_WATCHDOG_WAIT_WATCH_H_
#define LOCKSTEP_DRIVER_RANKS_WATCHDOG_WAIT_WATCH_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "c10/util/intrusive_ptr.h"
#include "driver/ranks/waits.h"
#include "torch/csrc/distributed/c10d/Store.hpp"

namespace lockstep::driver {

// One rank's part of it. Not thread-safe.
class WaitWatch {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr std::chrono::milliseconds kOldEnough{900};
  static constexpr std::chrono::milliseconds kBetweenLooks{100};

  // `find_wait` returns the wait of this rank that is older than kOldEnough.
  WaitWatch(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size,
            std::function<std::optional<RankWait>()> find_wait);

  // Call it every kBetweenLooks. On rank 0 returns a sentence that names the ranks that wait for
  // each other; nullopt if no ranks do, and on other ranks. Throws if the store does not answer.
  std::optional<std::string> Look(Clock::time_point now);

 private:
  struct Seen {
    std::vector<int> circle;
    std::vector<std::string> waits;  // of its ranks, without what they have come to
    std::vector<int64_t> beats;
  };

  void Publish(Clock::time_point now);
  std::optional<std::string> Read();

  const c10::intrusive_ptr<c10d::Store> store_;
  const int rank_;
  const int world_size_;
  const std::function<std::optional<RankWait>()> find_wait_;
  const std::chrono::milliseconds between_;  // two publications of a wait, and two readings
  bool is_published_ = false;
  int64_t beat_ = 0;
  Clock::time_point published_, read_;
  std::optional<Seen> suspected_;
};

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_RANKS_WATCHDOG_WAIT_WATCH_H_
