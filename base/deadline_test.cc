#include "base/deadline.h"

#include <poll.h>

#include <algorithm>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

TEST(Deadline, HeaderExample) {
  const Deadline deadline(absl::Milliseconds(20));

  EXPECT_FALSE(deadline.has_passed());
  while (!deadline.has_passed()) poll(nullptr, 0, deadline.MillisecondsLeft());
  EXPECT_EQ(deadline.left(), absl::ZeroDuration());
  EXPECT_EQ(deadline.MillisecondsLeft(), 0);
}

TEST(Deadline, TheTimeLeftIsRoundedUp) {
  const Deadline deadline(absl::Hours(1));

  const int left = deadline.MillisecondsLeft();

  EXPECT_LE(absl::Milliseconds(left), absl::Hours(1));
  EXPECT_GE(absl::Milliseconds(left), deadline.left());
}

TEST(Deadline, FarAndPastOnesAreNoOverflow) {
  EXPECT_FALSE(Deadline(absl::InfiniteDuration()).has_passed());
  EXPECT_EQ(Deadline(absl::InfiniteDuration()).MillisecondsLeft(), 1 << 30);
  EXPECT_EQ(Deadline(absl::Hours(24 * 365)).MillisecondsLeft(), 1 << 30);
  for (const absl::Duration past :
       {absl::ZeroDuration(), -absl::Seconds(1), -absl::InfiniteDuration()})
    EXPECT_TRUE(Deadline(past).has_passed());
}

TEST(Deadline, TheEarlierIsLess) {
  const Deadline soon(absl::Seconds(1));
  const Deadline late(absl::Seconds(2));

  EXPECT_LE(std::min(soon, late).left(), absl::Seconds(1));
  EXPECT_LE(std::min(late, soon).left(), absl::Seconds(1));
}

}  // namespace
}  // namespace lockstep
