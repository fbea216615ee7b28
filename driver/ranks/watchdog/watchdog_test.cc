#include "driver/ranks/watchdog/watchdog.h"

#include <chrono>
#include <functional>
#include <optional>
#include <utility>

#include "c10/util/Exception.h"
#include "driver/ranks/failure.h"
#include "gtest/gtest.h"
#include "torch/csrc/distributed/c10d/HashStore.hpp"

namespace lockstep::driver {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = WatchedRank::Clock;

constexpr seconds kLimit(10);

// A store whose calls take time.
class SlowStore : public c10d::HashStore {
 public:
  std::function<void()> before_add = [] {};
  int64_t add(const std::string& key, int64_t value) override {
    before_add();
    return HashStore::add(key, value);
  }
};

// One collective, which begins at 0 s, and a clock that only goes on where this test says so.
struct WatchdogTest : ::testing::Test {
  struct Until {};  // thrown at the end

  c10::intrusive_ptr<SlowStore> store = c10::make_intrusive<SlowStore>();
  Clock::duration now{0};
  Clock::duration done = hours(100);
  bool is_alone = false;
  std::function<void()> in_sleep = [] {};
  std::function<void()> before_finding = [] {};
  std::function<void()> after_finding = [] {};

  std::optional<OverdueCall> Find() const {
    if (now >= done || now <= kLimit) return std::nullopt;
    OverdueCall overdue;
    overdue.call.limit = kLimit;
    overdue.waited = std::chrono::duration_cast<milliseconds>(now);
    return overdue;
  }

  // Returns when the watchdog reports the collective, or nothing if it does not before `until`.
  std::optional<double> ReportedAt(Clock::duration until) {
    WatchedRank rank;
    rank.is_alone = [this] { return is_alone; };
    rank.now = [this] { return Clock::time_point() + now; };
    rank.sleep = [this, until](Clock::duration time) {
      now += time;
      in_sleep();
      if (now > until) throw Until();
    };
    rank.find_overdue = [this] {
      before_finding();
      auto overdue = Find();
      after_finding();
      return overdue;
    };
    try {
      WaitForHang(store, kLimit, rank);
      return std::chrono::duration<double>(now).count();
    } catch (const Until&) {
      return std::nullopt;
    }
  }

  // Returns a function that stops the process for an hour at its first call after `start`.
  std::function<void()> StopOnceAt(Clock::duration start) {
    return [this, start, has_stopped = false]() mutable {
      if (now < start || has_stopped) return;
      has_stopped = true;
      now += hours(1);
    };
  }

  // Calls `run` for a stop at `start` in each place of the watchdog's loop.
  void ForEachPlaceOfAStop(Clock::duration start, const std::function<void()>& run) {
    const std::pair<const char*, std::function<void()>*> places[] = {
        {"in its sleep", &in_sleep},
        {"in a call to the store", &store->before_add},
        {"before it has looked at the collective", &before_finding},
        {"after it has looked at the collective", &after_finding}};
    for (const auto& [name, place] : places) {
      SCOPED_TRACE(name);
      now = Clock::duration(0);
      *place = StopOnceAt(start);
      run();
      *place = [] {};
    }
  }
};

TEST_F(WatchdogTest, ReportsACollectiveAfterItsLimit) {
  EXPECT_NEAR(ReportedAt(hours(1)).value_or(0), 10.1, 0.01);
}

TEST_F(WatchdogTest, ReportsNoCollectiveThatIsDone) {
  done = seconds(9);

  EXPECT_EQ(ReportedAt(hours(1)), std::nullopt);
}

// The time of the stop is no time of waiting: but for two seconds.
TEST_F(WatchdogTest, AStopLeavesTheCollectiveTheRestOfItsLimit) {
  ForEachPlaceOfAStop(seconds(4),
                      [this] { EXPECT_NEAR(ReportedAt(hours(2)).value_or(0), 3608.2, 0.2); });
}

// The other ranks may go on a little later.
TEST_F(WatchdogTest, AStopJustBeforeTheLimitLeavesTimeToCatchUp) {
  done = hours(1) + seconds(11);
  ForEachPlaceOfAStop(milliseconds(9950),
                      [this] { EXPECT_EQ(ReportedAt(hours(2)), std::nullopt); });
}

TEST_F(WatchdogTest, ACollectiveThatBeginsAfterAStopHasItsWholeLimitAndNoMore) {
  in_sleep = [this, is_first = true]() mutable {
    if (std::exchange(is_first, false)) now = milliseconds(50);  // it was stopped until 0
  };
  now = -hours(1);

  EXPECT_NEAR(ReportedAt(hours(1)).value_or(0), 10.1, 0.1);
}

TEST_F(WatchdogTest, TimeThatOthersWorkAloneIsNoTimeOfWaiting) {
  in_sleep = [this] {
    if (now <= seconds(8)) AddTimeAlone(*store, milliseconds(100));
  };

  EXPECT_NEAR(ReportedAt(hours(1)).value_or(0), 18.1, 0.2);
}

// All ranks were stopped. The others find that out by themselves.
TEST_F(WatchdogTest, ARankThatIsStoppedDoesNotWorkAlone) {
  done = seconds(0);
  is_alone = true;
  ForEachPlaceOfAStop(seconds(4), [this] {
    const milliseconds before = AddTimeAlone(*store, milliseconds(0));
    EXPECT_EQ(ReportedAt(hours(1) + seconds(6)), std::nullopt);

    EXPECT_NEAR(static_cast<double>((AddTimeAlone(*store, milliseconds(0)) - before).count()), 8000,
                200);
  });
}

// A store whose every call takes longer than a look should is no run that is stopped again and
// again.
TEST_F(WatchdogTest, ReportsACollectiveThoughTheStoreIsSlow) {
  store->before_add = [this] { now += milliseconds(2500); };

  EXPECT_LT(ReportedAt(hours(1)).value_or(1e9), 40);
}

TEST_F(WatchdogTest, ReportsACollectiveThoughTheStoreIsSilent) {
  store->before_add = [this] {
    now += seconds(3);
    TORCH_CHECK(false, "no answer");
  };

  EXPECT_LT(ReportedAt(hours(1)).value_or(1e9), 17);
}

}  // namespace
}  // namespace lockstep::driver
