// The two hangs that the libraries began with: reproduced without them, and gone with them.

#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/program.h"
#include "tests/ranks.h"

namespace lockstep::tests {
namespace {

using ::testing::ContainsRegex;
using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pointwise;

constexpr int kWatchdogSeconds = 5;

Ended RunScript(const std::string& script, const std::string& mode, int nproc = 2) {
  return RunOne(Lockstep(
      Folder(), {"--nproc", std::to_string(nproc), "--timeout", std::to_string(kWatchdogSeconds),
                 DataFile("tests/scripts/" + script), mode}));
}

// Nobody gets to the end, and nothing fails by itself: only --timeout ends it, with a rank that
// waited and the line. Gloo tells the rank whose time ran out so; its neighbour, that the
// connection closed. Either may be noticed first.
void ExpectHang(const Ended& ended, absl::Duration took, const std::string& script) {
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_GE(took, absl::Seconds(kWatchdogSeconds));
  EXPECT_LT(took, absl::Seconds(10 * kWatchdogSeconds));
  EXPECT_THAT(ended.out, Not(HasSubstr("is done")));
  EXPECT_THAT(ended.err, ContainsRegex("^lockstep: rank [01]: .*" + script +
                                       ":[0-9]+: .*([Tt]imed out|[Cc]onnection closed by peer)"));
  EXPECT_EQ(Count("\n" + ended.err, "\nlockstep: "), 1) << ended.err;
}

// What rank 0 says of each step: "step 1: loss 2.155845 over 49 tokens".
std::vector<double> LossesOf(const Ended& ended) {
  std::vector<double> losses;
  for (absl::string_view line : absl::StrSplit(ended.out, '\n')) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
    double loss = 0;
    if (words.size() > 3 && words[0] == "step" && absl::SimpleAtod(words[3], &loss))
      losses.push_back(loss);
  }
  return losses;
}

TEST(MultimodalHang, RanksThatTakeTheirSamplesAsTheyComeGatherOtherLayersAndThenHang) {
  const absl::Time start = absl::Now();
  const Ended ended = RunScript("multimodal.lua", "round_robin");

  ExpectHang(ended, absl::Now() - start, "multimodal.lua");
  EXPECT_THAT(ended.out, HasSubstr("rank 0 gathered vision.1 with language.1"));
  EXPECT_THAT(LossesOf(ended), IsEmpty());
}

TEST(MultimodalHang, PreparedMicroBatchesTrainOnWithTheLossesOfOneRank) {
  const Ended alone = RunScript("multimodal.lua", "prepared", 1);
  const Ended ended = RunScript("multimodal.lua", "prepared");

  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  for (const char* rank : {"rank 0", "rank 1"}) {
    EXPECT_THAT(ended.out, HasSubstr(std::string(rank) +
                                     " is done: 5 micro-batches a step, 10 through the vision "
                                     "tower, 0 gathers mixed\n"));
  }
  const std::vector<double> losses = LossesOf(alone);
  ASSERT_EQ(losses.size(), 5u) << alone.out << alone.err;
  EXPECT_LT(losses.back(), losses.front() / 2);
  EXPECT_THAT(LossesOf(ended), Pointwise(DoubleNear(1e-5), losses));
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
