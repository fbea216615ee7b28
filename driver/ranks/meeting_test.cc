#include "driver/ranks/meeting.h"

#include <chrono>
#include <future>
#include <vector>

#include "c10/util/intrusive_ptr.h"
#include "driver/ranks/failure.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/csrc/distributed/c10d/HashStore.hpp"

namespace lockstep::driver {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::chrono::seconds kLong(30);
constexpr std::chrono::milliseconds kShort(1);

TEST(MeetInStore, ReturnsTheValueOfEachRank) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const std::vector<int> ranks = {5, 2};
  auto other = std::async(std::launch::async,
                          [&] { return MeetInStore(*store, "here", 2, ranks, "two", kLong); });

  const Meeting meeting = MeetInStore(*store, "here", 5, ranks, "five", kLong);

  EXPECT_THAT(meeting.absent, IsEmpty());
  EXPECT_THAT(meeting.values, ElementsAre("five", "two"));
  EXPECT_THAT(other.get().values, ElementsAre("five", "two"));
}

TEST(MeetInStore, NamesTheRanksThatStayAway) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  store->set("here/2", std::vector<uint8_t>{});

  const Meeting meeting = MeetInStore(*store, "here", 5, {5, 2, 7, 0}, "", kShort);

  EXPECT_THAT(meeting.absent, ElementsAre(7, 0));
  EXPECT_THAT(meeting.values, IsEmpty());
}

// One that has left must not be taken for one that waits.
TEST(MeetInStore, ARankThatComesAfterTheOthersHaveLeftIsAlone) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  EXPECT_THAT(MeetInStore(*store, "here", 0, {0, 1}, "", kShort).absent, ElementsAre(1));

  EXPECT_THAT(MeetInStore(*store, "here", 1, {0, 1}, "", kShort).absent, ElementsAre(0));

  auto again = std::async(std::launch::async, [&] {
    return MeetInStore(*store, "here", 0, {0, 1}, "", kLong);
  });
  EXPECT_THAT(MeetInStore(*store, "here", 1, {0, 1}, "", kLong).absent, IsEmpty());
  EXPECT_THAT(again.get().absent, IsEmpty());
}

// A rank that has come may end while others are still on their way.
TEST(MeetInStore, DoesNotWaitForARankWhoseScriptHasEnded) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  store->set("here/1", std::vector<uint8_t>{});
  ReportEnd({store, 1, 3}, "");
  EXPECT_THAT(MeetInStore(*store, "here", 0, {0, 1, 2}, "", kShort).ended, IsEmpty());

  ReportEnd({store, 2, 3}, "");
  const Meeting meeting = MeetInStore(*store, "here", 0, {0, 1, 2}, "", kLong);

  EXPECT_THAT(meeting.absent, ElementsAre(2));
  EXPECT_THAT(meeting.ended, ElementsAre(2));
  EXPECT_EQ(DescribeAbsence("meeting of world", meeting, kLong),
            "meeting of world: rank 2 does not come, because its script has ended");
}

}  // namespace
}  // namespace lockstep::driver
