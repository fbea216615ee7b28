// Loops and means over shards, on two to eight real processes.

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/match.h"
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

using ::testing::EndsWith;

Ended RunScript(const std::string& script, int nproc, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"--nproc", absl::StrCat(nproc), "--timeout", "30",
                                       DataFile(absl::StrCat("tests/scripts/", script))});
  return RunOne(Lockstep(Folder(), arguments));
}

// 200 random schedules in all; the script prints the seed of one that fails.
TEST(Schedules, EveryRankLeavesTheLoopAtTheSameStep) {
  constexpr int kCount = 50;
  int first_seed = 1;
  for (const int nproc : {2, 3, 5, 8}) {
    const Ended ended =
        RunScript("schedules.lua", nproc, {absl::StrCat(first_seed), absl::StrCat(kCount)});
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_THAT(ended.out,
                EndsWith(absl::StrCat(kCount, " schedules on ", nproc, " ranks, 0 failed\n")));
    first_seed += kCount;
  }
}

struct Means {
  double exact = 0;
  double of_means = 0;
};

// Reads the line "rank 0: mean 1.5, mean of means 1.6", which is the same on every rank.
Means MeansOf(const Ended& ended) {
  Means means;
  for (absl::string_view line : absl::StrSplit(ended.out, '\n')) {
    if (!absl::StartsWith(line, "rank 0: ")) continue;
    const std::vector<absl::string_view> parts = absl::StrSplit(line.substr(8), ", ");
    EXPECT_TRUE(parts.size() == 2 && absl::SimpleAtod(parts[0].substr(5), &means.exact) &&
                absl::SimpleAtod(parts[1].substr(14), &means.of_means))
        << line;
  }
  return means;
}

TEST(Evaluation, GivesTheSameMeanOnAnyNumberOfRanks) {
  const Means one = MeansOf(RunScript("evaluation.lua", 1, {}));
  EXPECT_GT(one.exact, 0);
  for (const int nproc : {2, 3, 8}) {
    const Means means = MeansOf(RunScript("evaluation.lua", nproc, {}));
    EXPECT_NEAR(means.exact, one.exact, 1e-12 * one.exact) << nproc;
    // Without weighted_mean the number depends on who had which samples.
    EXPECT_GT(std::abs(means.of_means - one.exact), 1e-6) << nproc;
  }
}

}  // namespace
}  // namespace lockstep::tests
