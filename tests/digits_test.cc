// scripts/digits_vlm.lua, the first thing that a user runs, for a few steps: the same curve on 1, 2
// and 4 ranks, and the same bits when it is run again.

#include <pwd.h>
#include <stdlib.h>
#include <unistd.h>

#include <compare>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/program.h"
#include "tests/support/ranks.h"

namespace lockstep::tests {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr int kSteps = 4;
constexpr double kTolerance = 1e-9;  // relative

// The results of a run. Runs are expensive, so tests with the same options share one.
struct Run {
  int nproc = 1;
  int seed = 1;
  int repetition = 0;
  std::string parallel = "data_parallel";
  auto operator<=>(const Run&) const = default;
};

const Folder& Train(const Run& run) {
  static auto* const folders = new std::map<Run, Folder>();
  const auto [it, is_new] = folders->try_emplace(run);
  const Folder& folder = it->second;
  if (!is_new) return folder;
  const std::string script = DataFile("scripts/digits_vlm.lua");
  Command command =
      Lockstep(folder, {"--nproc", absl::StrCat(run.nproc), "--run-dir", "out", script, "--set",
                        absl::StrCat("steps=", kSteps), "--set", absl::StrCat("seed=", run.seed),
                        "--set", absl::StrCat("parallel=", run.parallel)});
  // The digits are in ~/.cache, or in LOCKSTEP_CACHE; Bazel hides HOME from its tests.
  if (getenv("HOME") == nullptr) command.environment["HOME"] = getpwuid(getuid())->pw_dir;
  const Ended ended = RunOne(command);
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr(absl::StrCat("held out; ", run.nproc, " ranks")));
  return folder;
}

// The learnt numbers without the timed ones, as text.
std::vector<std::string> Curve(const Folder& folder) {
  std::vector<std::string> curve;
  for (const auto& object : ReadMetrics(folder, "out/metrics.jsonl")) {
    for (const char* name : {"event", "step", "loss", "grad_norm", "lr", "tokens", "accuracy"}) {
      const auto it = object.find(name);
      if (it != object.end()) curve.push_back(absl::StrCat(name, " ", it->second));
    }
  }
  return curve;
}

// Returns the losses of the steps, then of the validation.
std::vector<double> Losses(const Folder& folder) {
  std::vector<double> losses;
  for (const auto& object : ReadMetrics(folder, "out/metrics.jsonl")) {
    const auto it = object.find("loss");
    if (it != object.end()) losses.push_back(strtod(it->second.c_str(), nullptr));
  }
  return losses;
}

TEST(DigitsVlm, OneTwoAndFourRanksDrawTheSameCurve) {
  const std::vector<double> alone = Losses(Train({.nproc = 1}));
  ASSERT_THAT(alone, SizeIs(kSteps + 1));
  EXPECT_LT(alone[kSteps - 1], alone[0]);

  for (const int nproc : {2, 4}) {
    const std::vector<double> losses = Losses(Train({.nproc = nproc}));

    ASSERT_THAT(losses, SizeIs(kSteps + 1));
    for (size_t i = 0; i < losses.size(); ++i) {
      EXPECT_NEAR(losses[i], alone[i], kTolerance * alone[i])
          << "loss " << i << " on " << nproc << " ranks";
    }
  }
}

TEST(DigitsVlm, AShardedModelDrawsTheSameCurve) {
  const std::vector<double> alone = Losses(Train({.nproc = 1}));
  for (const int nproc : {1, 2}) {
    const std::vector<double> losses = Losses(Train({.nproc = nproc, .parallel = "fully_shard"}));

    ASSERT_THAT(losses, SizeIs(kSteps + 1));
    for (size_t i = 0; i < losses.size(); ++i)
      EXPECT_NEAR(losses[i], alone[i], kTolerance * alone[i]) << "loss " << i;
  }
}

TEST(DigitsVlm, TheSameSeedGivesTheSameBitsAndAnotherOthers) {
  const std::vector<std::string> first = Curve(Train({.nproc = 2}));
  const std::vector<std::string> second = Curve(Train({.nproc = 2, .repetition = 1}));
  const std::vector<std::string> other = Curve(Train({.nproc = 2, .seed = 2}));

  // 5 numbers of each step, 3 of the validation and of the accuracy.
  EXPECT_THAT(first, SizeIs(5 * kSteps + 3 + 3));
  EXPECT_EQ(first, second);
  EXPECT_NE(first, other);
}

TEST(DigitsVlm, LeavesItsConfigurationItsMetricsAndItsPlot) {
  const Folder& folder = Train({.nproc = 2, .seed = 2});

  EXPECT_THAT(folder.List("out"), ElementsAre("config.json", StartsWith("events.out.tfevents."),
                                              "loss.svg", "metrics.jsonl", "run.lock", "state"));
  EXPECT_THAT(folder.Read("out/config.json"),
              AllOf(HasSubstr("\"steps\": 4"), HasSubstr("\"seed\": 2"), HasSubstr("\"vision\"")));
  EXPECT_THAT(folder.Read("out/loss.svg"), AllOf(StartsWith("<svg"), HasSubstr("</svg>")));
}

}  // namespace
}  // namespace lockstep::tests
