// Runs that go on with another number of ranks, and the same global batches: run.elastic.

#include <signal.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/program.h"
#include "tests/support/rank_script.h"
#include "tests/support/ranks.h"

namespace lockstep::tests {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

constexpr int kSteps = 12;
constexpr int kRowsPerStep = 12;

Command Train(const Folder& folder, int nproc, const std::vector<std::string>& options,
              const std::vector<std::string>& settings) {
  return TrainCommand(folder, {"tests/scripts/elastic.lua", nproc, settings, options});
}

// "step 3 took 17 and 4": which samples each step has taken, without the rank.
std::multiset<std::string> Taken(const std::string& out) {
  const std::vector<std::string> lines = LinesWith(out, "step ");
  std::multiset<std::string> taken;
  for (const std::string& line : lines) {
    if (line.find(" took ") != std::string::npos) taken.insert(line);
  }
  return taken;
}

// The samples of dataset and loader are independent, so the pairs differ where ranks do.
std::set<std::pair<std::string, std::string>> Samples(const std::multiset<std::string>& taken) {
  std::set<std::pair<std::string, std::string>> samples;
  for (const std::string& line : taken) {
    const size_t took = line.find(" took ");
    const size_t both = line.find(" and ");
    const std::string step = line.substr(0, took);
    samples.emplace(step, "dataset " + line.substr(took + 6, both - took - 6));
    samples.emplace(step, "loader " + line.substr(both + 5));
  }
  return samples;
}

std::vector<double> Losses(const Folder& folder) {
  std::vector<double> losses;
  for (const auto& record : ReadMetrics(folder, "out/metrics.jsonl")) {
    if (record.count("event") > 0) continue;
    EXPECT_EQ(record.at("step"), absl::StrCat(losses.size()));
    losses.emplace_back();
    EXPECT_TRUE(absl::SimpleAtod(record.at("loss"), &losses.back()));
  }
  return losses;
}

class Elastic : public ::testing::TestWithParam<const char*> {};

TEST_P(Elastic, ARunOnOtherNumbersOfRanksTakesTheBatchesAndTheCurveOfOneRank) {
  const std::string parallel = absl::StrCat("parallel=", GetParam());
  const Folder alone;
  const Ended expected = RunOne(Train(alone, 1, {}, {parallel}));
  ASSERT_EQ(expected.exit_code, 0) << expected.err;
  ASSERT_THAT(Taken(expected.out), SizeIs(kSteps * kRowsPerStep));
  const auto samples = Samples(Taken(expected.out));
  const Folder folder;

  // Two ranks are killed twice and started again once; three are killed; one goes on to the end.
  const Ended two = RunOne(Train(folder, 2, {"--restarts", "1"}, {parallel, "kill_steps=2,5"}));
  const Ended three = RunOne(Train(folder, 3, {}, {parallel, "kill_steps=9"}));
  const Ended one = RunOne(Train(folder, 1, {}, {parallel}));

  EXPECT_EQ(two.exit_code, 128 + SIGKILL) << two.err;
  EXPECT_EQ(three.exit_code, 128 + SIGKILL) << three.err;
  EXPECT_EQ(one.exit_code, 0) << one.err;
  // A step that was done again on other ranks took the same samples.
  EXPECT_EQ(Samples(Taken(two.out + three.out + one.out)), samples);
  EXPECT_THAT(Taken(three.out), SizeIs(::testing::Ge(kRowsPerStep)));
  const std::vector<double> losses = Losses(alone);
  EXPECT_THAT(losses, SizeIs(kSteps));
  EXPECT_THAT(Losses(folder), ::testing::Pointwise(::testing::DoubleNear(1e-12), losses));
}

INSTANTIATE_TEST_SUITE_P(All, Elastic, ::testing::Values("data_parallel", "fully_shard"),
                         [](const auto& info) { return info.param; });

// A script for two ranks that does not ask run.elastic.
TEST(ElasticRuns, AShareThatIsNotComputedAnewChangesTheGlobalBatch) {
  const Folder alone;
  const Folder folder;
  const Ended expected = RunOne(Train(alone, 1, {}, {}));
  ASSERT_EQ(expected.exit_code, 0) << expected.err;

  const Ended ended = RunOne(Train(folder, 1, {}, {"elastic=false"}));

  EXPECT_NE(ended.exit_code, 0);  // sharding.accumulate compares the counts
  EXPECT_NE(Samples(Taken(ended.out)), Samples(Taken(expected.out)));
}

TEST(ElasticRuns, AWorldThatDoesNotDoIsOneErrorAndIsNotStartedAgain) {
  struct Case {
    int nproc;
    std::vector<std::string> settings;
    std::string message;
  };
  const Case cases[] = {
      {3, {"max=2"}, "run.elastic: the run has 3 ranks, and the script takes 1 to 2; start it "},
      {1, {"min=2"}, "run.elastic: the run has 1 rank, and the script takes 2 to 3; start it "},
      {3,
       {"batch=16"},
       "elastic:share: 16 rows in micro-batches of 2 cannot be shared out evenly "
       "over 3 ranks; the numbers of ranks that can: 1, 2\n"}};
  for (const Case& one : cases) {
    SCOPED_TRACE(one.message);
    const Folder folder;
    const Ended ended = RunOne(Train(folder, one.nproc, {"--restarts", "3"}, one.settings));

    EXPECT_EQ(ended.exit_code, 2) << ended.err;
    ExpectOneComplaint(ended, one.message);
    EXPECT_THAT(ended.err, Not(HasSubstr("; restart ")));
    EXPECT_THAT(Taken(ended.out), SizeIs(0));
  }
}

TEST(ElasticRuns, UnderTorchrunEveryRankEndsWithTheCodeAndOneSaysWhy) {
  const Folder folder;
  const std::vector<Ended> ranks = RunRanks(
      2, Lockstep(folder,
                  {"--run-dir", "out", DataFile("tests/scripts/elastic.lua"), "--set", "min=3"}));

  std::string all;
  for (const Ended& rank : ranks) {
    EXPECT_EQ(rank.exit_code, 2) << rank.err;
    all += rank.err;
  }
  EXPECT_EQ(Count(all, "the run has 2 ranks, and the script takes 3 to 3"), 1) << all;
}

}  // namespace
}  // namespace lockstep::tests
