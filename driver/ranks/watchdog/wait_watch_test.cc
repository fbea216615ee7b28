#include "driver/ranks/watchdog/wait_watch.h"

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "driver/ranks/activity.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/csrc/distributed/c10d/HashStore.hpp"

namespace lockstep::driver {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using Clock = WaitWatch::Clock;

// Ranks whose scripts wait where this test says so. The calls in `world` and `model` have numbers
// from 1.
struct WaitWatchTest : ::testing::Test {
  static constexpr int kRanks = 3;

  struct Rank {
    std::optional<RankWait> wait;
    bool is_stopped = false;  // its process
    std::unique_ptr<WaitWatch> watch;
  };

  WaitWatchTest() : ranks(kRanks) {
    for (int r = 0; r < kRanks; ++r) {
      Rank& rank = ranks[static_cast<size_t>(r)];
      rank.watch = std::make_unique<WaitWatch>(store, r, kRanks, [&rank] { return rank.wait; });
    }
  }

  static RankWait WaitIn(const std::string& group, int64_t number, int64_t world, int64_t model) {
    return {group, number, group, {0, 1, 2}, group + " here", {{"world", world}, {"model", model}}};
  }

  // Returns what rank 0 reports, and after how many milliseconds.
  std::optional<std::string> LookFor(milliseconds time) {
    for (const Clock::time_point end = now + time; now < end; now += WaitWatch::kBetweenLooks) {
      for (size_t r = ranks.size(); r-- > 0;) {
        if (ranks[r].is_stopped) continue;
        const std::optional<std::string> text = ranks[r].watch->Look(now);
        if (text.has_value()) {
          EXPECT_EQ(r, 0u);
          return text;
        }
      }
    }
    return std::nullopt;
  }

  c10::intrusive_ptr<c10d::HashStore> store = c10::make_intrusive<c10d::HashStore>();
  std::vector<Rank> ranks;
  Clock::time_point now{std::chrono::hours(1)};
};

TEST_F(WaitWatchTest, TwoRanksInTwoGroupsAreNamedWithinASecond) {
  ranks[1].wait = WaitIn("world", 2, 2, 7);
  ranks[2].wait = WaitIn("model", 8, 1, 8);

  const std::optional<std::string> text = LookFor(milliseconds(1000));

  ASSERT_TRUE(text.has_value());
  EXPECT_THAT(*text, HasSubstr("rank 1 waits for rank 2 in world here; rank 2 waits for rank 1 in "
                               "model here"));
}

TEST_F(WaitWatchTest, RanksThatWaitForOneThatComputesAreNot) {
  ranks[1].wait = ranks[2].wait = WaitIn("world", 2, 2, 7);

  EXPECT_EQ(LookFor(milliseconds(5000)), std::nullopt);
}

// The store holds the wait of a process that has left it, or is stopped and will leave it.
TEST_F(WaitWatchTest, AWaitThatIsNotConfirmedIsNot) {
  ranks[1].wait = WaitIn("world", 2, 2, 7);
  EXPECT_EQ(LookFor(milliseconds(500)), std::nullopt);
  ranks[1].is_stopped = true;
  ranks[2].wait = WaitIn("model", 8, 1, 8);

  EXPECT_EQ(LookFor(milliseconds(5000)), std::nullopt);

  ranks[1].is_stopped = false;
  EXPECT_TRUE(LookFor(milliseconds(1000)).has_value());
}

TEST_F(WaitWatchTest, AWaitThatEndsIsForgotten) {
  ranks[1].wait = WaitIn("world", 2, 2, 7);
  ranks[2].wait = WaitIn("model", 8, 1, 8);
  EXPECT_EQ(LookFor(milliseconds(200)), std::nullopt);
  ranks[2].wait.reset();

  EXPECT_EQ(LookFor(milliseconds(5000)), std::nullopt);

  ranks[2].wait = WaitIn("model", 9, 2, 9);  // it has come to rank 1's call meanwhile
  EXPECT_EQ(LookFor(milliseconds(5000)), std::nullopt);
}

// --- What Activity tells it ----------------------------------------------------------------------

TEST(FindWait, IsTheCallInWhichTheScriptsThreadIs) {
  Activity activity;
  const int world = activity.AddGroupSequence("world", {0, 1});
  const int model = activity.AddGroupSequence("model", {0, 1});
  const int unused = activity.AddGroupSequence("unused", {0, 1});
  const milliseconds now(0);
  // One that goes on in the background is no wait.
  const int64_t reduction = activity.Start({"world", 4, "all_reduce {3}", "a:1", {}, world});
  activity.NoteCome(model, 6);
  EXPECT_EQ(activity.FindWait(now), std::nullopt);

  {
    const UnderWay gathering(activity, {"model", 6, "agreement", "a:2", milliseconds(9), model});
    const std::optional<RankWait> wait = activity.FindWait(now);
    ASSERT_TRUE(wait.has_value());
    EXPECT_EQ(wait->awaited, "model");
    EXPECT_EQ(wait->number, 6);
    EXPECT_EQ(wait->ranks, (std::vector<int>{0, 1}));
    EXPECT_EQ(wait->text, "agreement of model (a:2)");
    const std::map<std::string, int64_t> come = {{"model", 6}, {"unused", -1}, {"world", 4}};
    EXPECT_EQ(wait->come, come);
    EXPECT_EQ(activity.FindWait(std::chrono::hours(1)), std::nullopt);

    // A guard inside, which nobody compares: the outer wait is the one to tell.
    const UnderWay guard(activity, {"guard", 1, "check", "a:2"});
    EXPECT_EQ(activity.FindWait(now)->awaited, "model");
  }
  EXPECT_EQ(activity.FindWait(now), std::nullopt);

  activity.NoteBlocked(reduction, true);
  EXPECT_EQ(activity.FindWait(now)->awaited, "world");
  activity.SetWork(reduction, nullptr);  // an error has left the wait without its end
  EXPECT_EQ(activity.FindWait(now), std::nullopt);
  static_cast<void>(unused);
}

}  // namespace
}  // namespace lockstep::driver
