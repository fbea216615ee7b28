// scripts/mimo_digits.lua for a few steps: one rank, and its two modules on ranks of their own,
// draw the same curve.

#include <pwd.h>
#include <stdlib.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/program.h"
#include "tests/ranks.h"

namespace lockstep::tests {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int kSteps = 3;
constexpr double kTolerance = 1e-9;  // relative

// Loss and norm of each step, and the accuracy at the end.
std::vector<double> Train(int nproc, int vision_ranks) {
  const Folder folder;
  Command command = Lockstep(
      folder, {"--nproc", absl::StrCat(nproc), "--run-dir", "out",
               DataFile("scripts/mimo_digits.lua"), "--set", absl::StrCat("steps=", kSteps),
               "--set", "held_out=50", "--set", absl::StrCat("vision_ranks=", vision_ranks)});
  // The digits are in ~/.cache, or in LOCKSTEP_CACHE; Bazel hides HOME from its tests.
  if (getenv("HOME") == nullptr) command.environment["HOME"] = getpwuid(getuid())->pw_dir;
  const Ended ended = RunOne(command);
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr(absl::StrCat("world of ", nproc, " rank")));
  std::vector<double> curve;
  for (const auto& object : ReadMetrics(folder, "out/metrics.jsonl")) {
    for (const char* name : {"loss", "grad_norm", "accuracy"}) {
      const auto it = object.find(name);
      if (it != object.end()) curve.push_back(strtod(it->second.c_str(), nullptr));
    }
  }
  return curve;
}

TEST(MimoDigits, ModulesOnTheirOwnRanksLearnAsOneRankDoes) {
  const std::vector<double> alone = Train(1, 1);
  ASSERT_THAT(alone, SizeIs(2 * kSteps + 1));
  EXPECT_LT(alone[2 * (kSteps - 1)], alone[0]);

  const struct { int nproc, vision_ranks; } grids[] = {{2, 1}, {3, 1}, {3, 2}, {4, 1}};
  for (const auto& [nproc, vision_ranks] : grids) {
    const std::vector<double> curve = Train(nproc, vision_ranks);

    ASSERT_THAT(curve, SizeIs(alone.size()));
    for (size_t i = 0; i < curve.size(); ++i) {
      EXPECT_NEAR(curve[i], alone[i], kTolerance * alone[i])
          << "number " << i << " on " << nproc << " ranks, vision on " << vision_ranks;
    }
  }
}

}  // namespace
}  // namespace lockstep::tests
