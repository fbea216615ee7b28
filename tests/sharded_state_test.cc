// A sharded model is saved by one program, which is killed, and goes on in another one on another
// number of ranks.

#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/support/program.h"
#include "tests/support/ranks.h"

namespace lockstep::tests {
namespace {

struct Case {
  int saves;    // ranks
  int resumes;  // ranks
  std::vector<std::string> settings;
  std::vector<std::string> settings_of_first;  // alone
  double tolerance = 1e-13;                    // at the end
};

std::ostream& operator<<(std::ostream& out, const Case& one) {
  return out << one.saves << " to " << one.resumes << " ranks";
}

Ended Train(const Folder& folder, const std::string& run_dir, int nproc,
            const std::vector<std::string>& settings) {
  return RunOne(TrainCommand(folder, {.script = "tests/scripts/resume_sharded.lua",
                                      .nproc = nproc,
                                      .settings = settings,
                                      .options = {"--timeout", "30"},
                                      .run_dir = run_dir}));
}

std::vector<std::string> Joined(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

struct Comparison {
  int equal = 0, tensors = 0;
  double largest = 0;  // difference, relative to the tensor's largest element
};

// Compares the states of two runs after so many steps.
Comparison Compare(const Folder& folder, const std::string& a, const std::string& b, int steps) {
  std::vector<std::string> arguments = {"--nproc", "1",
                                        DataFile("tests/scripts/compare_states.lua")};
  for (const std::string& run : {a, b})
    arguments.push_back(absl::StrCat(folder.Path(run), "/state/step-0000000", steps));
  const Ended ended = RunOne(Lockstep(folder, arguments));
  Comparison found;
  EXPECT_EQ(std::sscanf(ended.out.c_str(), "%d of %d tensors are equal, largest difference %lg",
                        &found.equal, &found.tensors, &found.largest),
            3)
      << ended.out << ended.err;
  return found;
}

class ShardedState : public testing::TestWithParam<Case> {};

TEST_P(ShardedState, GoesOnOnAnotherNumberOfRanksWithTheSameMastersAndMoments) {
  const auto& [saves, resumes, settings, settings_of_first, tolerance] = GetParam();
  const Folder folder;
  const std::vector<std::string> first = Joined(settings, settings_of_first);

  const Ended killed = Train(folder, "killed", saves, Joined(first, {"dies_after=4"}));
  EXPECT_NE(killed.exit_code, 0);
  const Ended resumed = Train(folder, "resumed", resumes, Joined(settings, {"from=killed"}));
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  const Ended whole = Train(folder, "whole", saves, first);
  EXPECT_EQ(whole.exit_code, 0) << whole.err;

  // The second program saved what it had read, before it trained.
  const Comparison at_resume = Compare(folder, "killed", "resumed", 3);
  EXPECT_GE(at_resume.tensors, 40);
  EXPECT_EQ(at_resume.equal, at_resume.tensors);
  const Comparison at_end = Compare(folder, "whole", "resumed", 8);
  EXPECT_EQ(at_end.tensors, at_resume.tensors);
  EXPECT_LT(at_end.largest, tolerance);
}

INSTANTIATE_TEST_SUITE_P(Ranks, ShardedState,
                         testing::Values(Case{2, 3, {}, {}}, Case{3, 2, {"optimizer=SGD"}, {}},
                                         Case{4, 1, {}, {"replicas=2"}}, Case{1, 2, {}, {}},
                                         Case{2, 4, {"low=true"}, {}, 0.1}));

}  // namespace
}  // namespace lockstep::tests
