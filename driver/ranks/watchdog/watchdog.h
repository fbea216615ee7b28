// Finds a collective of this rank that has waited for other ranks for longer than its limit.
//
//    WatchedRank rank;
//    rank.find_overdue = [activity] { return activity->FindOverdue(); };
//    rank.is_alone = [] { return WorkAlone::IsUnderWay(); };
//    const OverdueCall overdue = WaitForHang(store, timeout, rank);  // on a thread of its own
//
// Two times do not count as waiting. Other ranks may work alone (run.alone, run:save), and tell so
// in the store. And this process may have been stopped, with the whole run perhaps: a scheduler
// suspends it, and it goes on hours later.

#ifndef LOCKSTEP_DRIVER_RANKS_WATCHDOG_WATCHDOG_H_
#define LOCKSTEP_DRIVER_RANKS_WATCHDOG_WATCHDOG_H_

#include <chrono>
#include <functional>
#include <optional>
#include <thread>

#include "c10/util/intrusive_ptr.h"
#include "driver/ranks/activity.h"
#include "torch/csrc/distributed/c10d/Store.hpp"

namespace lockstep::driver {

// The rank that the watchdog looks at, and its clock.
struct WatchedRank {
  using Clock = std::chrono::steady_clock;

  std::function<std::optional<OverdueCall>()> find_overdue;
  std::function<bool()> is_alone;  // whether this rank works alone now
  std::function<Clock::time_point()> now = Clock::now;
  std::function<void(Clock::duration)> sleep = std::this_thread::sleep_for<int64_t, std::nano>;
};

// Blocks until a collective is overdue, and returns it. `waited` in it is the time since it began.
// Looks ten times a second, and also tells the other ranks how long this rank works alone.
// `timeout` is the usual limit of a collective. A store that is lost or silent tells nothing: then
// no rank works alone. After a stop, the ranks have two seconds to go on.
OverdueCall WaitForHang(const c10::intrusive_ptr<c10d::Store>& store,
                        std::chrono::milliseconds timeout, const WatchedRank& rank);

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_RANKS_WATCHDOG_WATCHDOG_H_
