// The two hangs that the libraries began with: reproduced without them, and gone with them.

#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/program.h"
#include "tests/ranks.h"

namespace lockstep::tests {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

Ended RunScript(const std::string& script, const std::string& mode) {
  return RunOne(Lockstep(
      Folder(), {"--nproc", "2", "--timeout", "2", DataFile("tests/scripts/" + script), mode}));
}

// Nobody gets to the end; only --timeout ends it, with the rank that waited and the line.
void ExpectHang(const Ended& ended, absl::Duration took, const std::string& script) {
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_GE(took, absl::Seconds(2));
  EXPECT_LT(took, absl::Seconds(20));
  EXPECT_THAT(ended.out, Not(HasSubstr("is done")));
  EXPECT_THAT(ended.err,
              ContainsRegex("^lockstep: rank [01]: .*" + script + ":[0-9]+: .*[Tt]imed out"));
  EXPECT_EQ(Count("\n" + ended.err, "\nlockstep: "), 1) << ended.err;
}

TEST(MultimodalHang, RanksThatTakeTheirSamplesAsTheyComeGatherOtherLayersAndThenHang) {
  const absl::Time start = absl::Now();
  const Ended ended = RunScript("multimodal.lua", "each_its_own");

  ExpectHang(ended, absl::Now() - start, "multimodal.lua");
  EXPECT_THAT(ended.out, HasSubstr("rank 0 gathered vision.1 with language.1"));
}

TEST(MultimodalHang, PreparedMicroBatchesRunTheSameLayersOnBothRanks) {
  const Ended ended = RunScript("multimodal.lua", "prepared");

  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  for (const char* rank : {"rank 0", "rank 1"}) {
    EXPECT_THAT(
        ended.out,
        HasSubstr(std::string(rank) +
                  " is done: 4 micro-batches, 2 through the vision tower, 0 gathers mixed\n"));
  }
}

TEST(ValidationHang, APlainLoopOverShardsOfUnequalLengthHangs) {
  const absl::Time start = absl::Now();
  const Ended ended = RunScript("validation.lua", "plain");

  ExpectHang(ended, absl::Now() - start, "validation.lua");
}

// The losses are 1 to 11 on rank 0 and 101 to 108 on rank 1.
TEST(ValidationHang, UntilFirstLeavesTheLoopAtTheShortestRank) {
  const Ended ended = RunScript("validation.lua", "until_first");

  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.out,
              HasSubstr("rank 0 is done: 8 steps, 8 real, 3 dropped, 0 filled, mean 54.5000\n"));
  EXPECT_THAT(ended.out,
              HasSubstr("rank 1 is done: 8 steps, 8 real, 0 dropped, 0 filled, mean 54.5000\n"));
}

TEST(ValidationHang, UntilLastSeesEveryBatchOnce) {
  const Ended ended = RunScript("validation.lua", "until_last");

  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.out,
              HasSubstr("rank 0 is done: 11 steps, 11 real, 0 dropped, 0 filled, mean 47.4737\n"));
  EXPECT_THAT(ended.out,
              HasSubstr("rank 1 is done: 11 steps, 8 real, 0 dropped, 3 filled, mean 47.4737\n"));
}

}  // namespace
}  // namespace lockstep::tests
