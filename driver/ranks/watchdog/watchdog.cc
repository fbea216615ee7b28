#include "driver/ranks/watchdog/watchdog.h"

#include <exception>
#include <utility>

#include "driver/ranks/watchdog/time_alone.h"
#include "driver/ranks/watchdog/time_stopped.h"

namespace lockstep::driver {
namespace {

using Clock = WatchedRank::Clock;

constexpr std::chrono::milliseconds kBetweenLooks(100);
constexpr std::chrono::seconds kTimeToCatchUp(2);

// Returns whether the collective is overdue, without the time that others worked alone. A store
// that is lost or silent reports no such time.
bool IsHung(TimeAlone& alone, const OverdueCall& overdue, Clock::time_point start,
            Clock::duration waited) {
  if (waited <= overdue.call.limit) return false;
  try {
    return waited - alone.Since(start) > overdue.call.limit;
  } catch (const std::exception&) {
    return true;
  }
}

}  // namespace

OverdueCall WaitForHang(const c10::intrusive_ptr<c10d::Store>& store,
                        std::chrono::milliseconds timeout, const WatchedRank& rank) {
  TimeStopped stopped(rank.now());
  TimeAlone alone(store, timeout / 10, stopped);
  Clock::time_point caught_up = rank.now();
  bool is_stop = false;   // in this round of the loop
  bool was_stop = false;  // in the last one: if the store is slow, each round looks like a stop
  const auto look = [&] {
    const Clock::time_point now = rank.now();
    is_stop = stopped.Look(now) || is_stop;
    if (is_stop && !was_stop) caught_up = now + kTimeToCatchUp;
    return now;
  };
  for (;;) {
    was_stop = std::exchange(is_stop, false);
    rank.sleep(kBetweenLooks);
    try {
      alone.Look(look(), rank.is_alone());
    } catch (const std::exception&) {
      // The store is lost or silent: that is said where a rank waits, or fails. It took time.
      stopped.Skip(rank.now());
    }
    const std::optional<OverdueCall> overdue = rank.find_overdue();
    // After FindOverdue: all stops that are in its time are found.
    const Clock::time_point now = look();
    if (!overdue.has_value() || now < caught_up) continue;
    const Clock::time_point start = now - overdue->waited;
    if (IsHung(alone, *overdue, start, overdue->waited - stopped.Since(start))) return *overdue;
  }
}

}  // namespace lockstep::driver
