#include "driver/ranks/circle.h"

#include <string>
#include <vector>

#include "driver/ranks/activity.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::driver {
namespace {

using ::testing::StartsWith;

// A rank's report with these collectives, the last of which it waits in.
std::string ReportOf(const std::vector<CollectiveCall>& calls) {
  Activity activity;
  for (size_t i = 0; i < calls.size(); ++i) {
    const int64_t id = activity.Start(calls[i]);
    if (i + 1 < calls.size()) activity.SetWork(id, nullptr);
  }
  return activity.Describe();
}

TEST(DescribeCircle, HeaderExample) {
  EXPECT_THAT(DescribeCircle({ReportOf({{"world", 1, "barrier", "train.lua:2"},
                                        {"ranks 0, 1", 1, "barrier", "train.lua:7"}}),
                              ReportOf({{"world", 1, "barrier", "train.lua:2"},
                                        {"world", 2, "all_reduce {3}", "train.lua:9"}})}),
              StartsWith("Ranks wait for each other in a circle: rank 0 waits for rank 1 in "
                         "barrier of ranks 0, 1 (train.lua:7), rank 1 waits for rank 0 in "
                         "all_reduce {3} of world (train.lua:9). "));
}

TEST(DescribeCircle, ACircleOfThreeGroupsIsFoundBehindARankThatWaitsForOneOfIt) {
  const std::vector<std::string> reports = {
      ReportOf({{"ranks 0, 3", 4, "barrier", "a:1"}}),
      ReportOf({{"ranks 1, 2", 1, "barrier", "a:2"}}),
      ReportOf({{"ranks 2, 3 (sharding.pack)", 1, "agreement", "a:3"}}),
      ReportOf({{"ranks 1, 3", 7, "recv float32 {1} from rank 1, tag 0", "a:4"}}),
  };

  EXPECT_THAT(DescribeCircle(reports),
              StartsWith("Ranks wait for each other in a circle: rank 3 waits for rank 1 in recv "
                         "float32 {1} from rank 1, tag 0 of ranks 1, 3 (a:4), rank 1 waits for "
                         "rank 2 in barrier of ranks 1, 2 (a:2), rank 2 waits for rank 3 in "
                         "agreement of ranks 2, 3 (sharding.pack) (a:3). "));
}

// A rank sends, and computes meanwhile. Gloo ends the message only once the script waits for it.
TEST(DescribeCircle, AMessageThatIsNotWaitedForIsNoWait) {
  Activity activity;
  CollectiveCall send = {"ranks 0, 1", 1, "send float32 {1} to rank 0, tag 0", "a:1"};
  send.ends_in_wait = true;
  const int64_t id = activity.Start(send);
  const std::string other =
      ReportOf({{"ranks 0, 1", 1, "recv float32 {1} from rank 1, tag 0", ""}});

  EXPECT_FALSE(activity.IsWaiting());
  EXPECT_EQ(DescribeCircle({other, activity.Describe()}), "");

  activity.NoteBlocked(id, true);
  EXPECT_TRUE(activity.IsWaiting());
  EXPECT_THAT(DescribeCircle({other, activity.Describe()}), StartsWith("Ranks wait"));
}

TEST(DescribeCircle, RanksThatWaitForOneThatIsBusyAreNoCircle) {
  const std::string waits = ReportOf({{"world", 3, "barrier", "a:1"}});

  EXPECT_EQ(DescribeCircle({waits, waits, "in no collective, now at train.lua:14"}), "");
  EXPECT_EQ(DescribeCircle({waits, waits, ""}), "");
  // A slow all_reduce that all are in, and one that this rank has ended.
  EXPECT_EQ(DescribeCircle({waits, waits, waits}), "");
  EXPECT_EQ(DescribeCircle({waits, ReportOf({{"world", 3, "barrier", "a:1"},
                                             {"ranks 0, 1", 1, "barrier", "a:2"}})}),
            "");
}

TEST(DescribeCircle, TextThatIsNoReportIsNone) {
  EXPECT_EQ(DescribeCircle({}), "");
  EXPECT_EQ(DescribeCircle({"  waits", "  waits 3 s         #x", "  done          a #1",
                            "  waits 1.0 s    ranks 99, -1, 0 #1  send"}),
            "");
}

}  // namespace
}  // namespace lockstep::driver
