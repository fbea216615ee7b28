// What scripts/reward.lua learns, shortened.

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/learning/learning.h"
#include "tests/support/program.h"
#include "tests/support/ranks.h"

namespace lockstep::tests {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

TEST(Reward, AModelComesToScoreTheChosenAnswersHigher) {
  const Folder folder;

  const Ended ended =
      RunOne(Train(folder, "reward.lua", 2, {"steps=60", "lr=0.004", "held_out=64"}));

  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const std::vector<double> losses = Values(folder, "loss");
  ASSERT_THAT(losses, SizeIs(60));
  EXPECT_LT(Mean(losses, 50, 10), Mean(losses, 0, 10) - 0.01);
  EXPECT_GT(Mean(Values(folder, "accuracy"), 50, 10), 0.55);
}

TEST(Reward, AdaptersOfASplitModelAreMergedIntoItsFolder) {
  std::vector<double> first;
  for (const char* parallel : {"parallel=data_parallel", "parallel=fully_shard", "parallel.tp=2"}) {
    SCOPED_TRACE(parallel);
    const Folder folder;

    const Ended ended =
        RunOne(Train(folder, "reward.lua", 2, {"steps=4", "held_out=64", "lora.r=8", parallel}));

    ASSERT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_THAT(folder.Read("out/result/config.json"), HasSubstr("ForSequenceClassification"));
    const std::vector<double> losses = Values(folder, "loss");
    ASSERT_THAT(losses, SizeIs(4));
    if (first.empty()) first = losses;
    for (size_t step = 0; step < 4; ++step) EXPECT_NEAR(losses[step], first[step], 1e-4);
  }
}

}  // namespace
}  // namespace lockstep::tests
