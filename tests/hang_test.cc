// The two hangs that the libraries began with: stopped with an error without them, and gone with
// them.

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/program.h"
#include "tests/support/ranks.h"

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

// No rank reaches the end. In PyTorch this is a hang. Here ranks compare the collectives that a
// script calls, and the error names each rank's collective.
void ExpectStopped(const Ended& ended, const std::string& script) {
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.out, Not(HasSubstr("is done")));
  EXPECT_THAT(ended.err, ContainsRegex("^lockstep: rank [01]: [^ ]*" + script +
                                       ":[0-9]+: the ranks call different collectives, each as its "
                                       "collective [0-9]+ of world:\n"
                                       "  rank 0: all_[^\n]* \\([^\n]*" +
                                       script +
                                       ":[0-9]+\\)\n"
                                       "  rank 1: [^\n]*(all_|barrier)"));
  EXPECT_EQ(Count("\n" + ended.err, "\nlockstep: "), 1) << ended.err;
}

// Reads rank 0's line of each step: "step 1: loss 2.155845 over 49 tokens".
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

TEST(MultimodalHang, RanksThatTakeTheirSamplesAsTheyComeGatherOtherLayersAndAreStopped) {
  const Ended ended = RunScript("multimodal.lua", "round_robin");

  ExpectStopped(ended, "multimodal.lua");
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

// 338 and 327 batches, as in prime-rl's issue 2515.
TEST(ValidationHang, APlainLoopOverShardsOfUnequalLengthIsStopped) {
  const Ended ended = RunScript("validation.lua", "plain");

  ExpectStopped(ended, "validation.lua");
}

// "rank 0 is done: <what>; loss 4.123456789012345" -> what, and the loss.
std::pair<std::string, double> ResultOf(const Ended& ended, int rank) {
  const std::string start = absl::StrCat("rank ", rank, " is done: ");
  for (absl::string_view line : absl::StrSplit(ended.out, '\n')) {
    const size_t at = line.find(start);
    if (at == absl::string_view::npos) continue;
    const std::vector<std::string> parts =
        absl::StrSplit(line.substr(at + start.size()), "; loss ");
    double loss = 0;
    if (parts.size() == 2 && absl::SimpleAtod(parts[1], &loss)) return {parts[0], loss};
  }
  ADD_FAILURE() << ended.out << ended.err;
  return {"", 0};
}

TEST(ValidationHang, UntilFirstLeavesTheLoopAtTheShortestRank) {
  const Ended ended = RunScript("validation.lua", "until_first");
  const auto [one_rank, loss] = ResultOf(RunScript("validation.lua", "until_first", 1), 0);

  EXPECT_EQ(one_rank, "327 steps of 654 batches, 0 dropped, 0 filled");
  for (const int rank : {0, 1}) {
    const auto [what, loss_of_two] = ResultOf(ended, rank);
    EXPECT_EQ(what, rank == 0 ? "327 steps of 327 batches, 11 dropped, 0 filled"
                              : "327 steps of 327 batches, 0 dropped, 0 filled");
    EXPECT_NEAR(loss_of_two, loss, 1e-12);
  }
}

TEST(ValidationHang, UntilLastSeesEveryBatchOnce) {
  const Ended ended = RunScript("validation.lua", "until_last");
  const auto [one_rank, loss] = ResultOf(RunScript("validation.lua", "until_last", 1), 0);

  EXPECT_EQ(one_rank, "338 steps of 665 batches, 0 dropped, 0 filled");
  for (const int rank : {0, 1}) {
    const auto [what, loss_of_two] = ResultOf(ended, rank);
    EXPECT_EQ(what, rank == 0 ? "338 steps of 338 batches, 0 dropped, 0 filled"
                              : "338 steps of 327 batches, 0 dropped, 11 filled");
    EXPECT_NEAR(loss_of_two, loss, 1e-12);
  }
}

}  // namespace
}  // namespace lockstep::tests
