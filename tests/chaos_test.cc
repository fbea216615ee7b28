// A run that a seeded series of faults strikes, and that --restarts carries to its end:
// benchmarks/goodput/train.lua has the faults. goodput.py there measures the same by hand.

#include <dirent.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/program.h"
#include "tests/support/rank_script.h"
#include "tests/support/ranks.h"

namespace lockstep::tests {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr int kSteps = 60;
constexpr int kRanks = 2;
constexpr const char* kFaults[] = {"kill", "stop", "socket", "disk", "slow"};

Command Train(const Folder& folder, const std::string& faults) {
  Command command =
      Lockstep(folder, {"--nproc", absl::StrCat(kRanks), "--run-dir", "out", "--restarts", "20",
                        "--timeout", "4", DataFile("benchmarks/goodput/train.lua"), "--set",
                        absl::StrCat("steps=", kSteps), "--set", "every=4", "--set", "width=32",
                        "--set", "says_steps=false", "--set", absl::StrCat("faults=", faults)});
  folder.Write("temporary/of-the-test", "");
  command.environment["TMPDIR"] = folder.Path("temporary");
  command.timeout = absl::Seconds(280);
  return command;
}

// Each fault once, and then kills, in random steps on random ranks, by start of the run. A slow
// rank is slow until the next fault.
std::string DrawFaults(int count, std::mt19937_64& random) {
  std::vector<std::string> kinds(std::begin(kFaults), std::end(kFaults));
  while (static_cast<int>(kinds.size()) < count) kinds.emplace_back("kill");
  for (size_t i = kinds.size() - 1; i > 0; --i) std::swap(kinds[i], kinds[random() % (i + 1)]);
  std::string faults;
  for (size_t i = 0; i < kinds.size(); ++i) {
    const size_t part = kSteps / kinds.size();  // so that a later fault strikes in a later step
    const size_t step = part * i + random() % part;
    absl::StrAppend(&faults, kinds[i], "@", step, "@", random() % kRanks,
                    kinds[i] == "slow" ? "+" : ",");
  }
  return faults + "none";
}

// Files of shared memory that carry a process's number in their names, as those of torch and Gloo.
std::vector<std::string> SharedMemoryOf(const std::vector<pid_t>& pids) {
  std::vector<std::string> found;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/dev/shm"), closedir);
  while (const dirent* entry = folder == nullptr ? nullptr : readdir(folder.get())) {
    const std::string name = entry->d_name;
    if (absl::StrContains(name, "lockstep")) found.push_back(name);
    for (const pid_t pid : pids) {
      if (absl::StrContains(absl::StrCat("_", name, "_"), absl::StrCat("_", pid, "_")))
        found.push_back(name);
    }
  }
  return found;
}

TEST(Chaos, ARunThatFaultsStrikeEndsWithTheBitsOfAnUndisturbedOneAndLeavesNothing) {
  const char* given = std::getenv("LOCKSTEP_CHAOS_SEED");
  const uint64_t seed = given != nullptr ? strtoull(given, nullptr, 10) : 39;
  const char* count = std::getenv("LOCKSTEP_CHAOS_FAULTS");
  std::mt19937_64 random(seed);
  const int num_faults = count != nullptr ? std::atoi(count) : 6;
  const std::string faults = DrawFaults(num_faults, random);
  std::printf("seed %llu (LOCKSTEP_CHAOS_SEED sets one): %s\n",
              static_cast<unsigned long long>(seed), faults.c_str());
  const Folder undisturbed;
  const Folder folder;
  const Ended expected = RunOne(Train(undisturbed, "none"));
  ASSERT_EQ(expected.exit_code, 0) << expected.err;

  const Ended ended = RunOne(Train(folder, faults));

  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(LinesWith(ended.out, "final bits"), SizeIs(kRanks));
  EXPECT_EQ(LinesWith(ended.out, "final bits"), LinesWith(expected.out, "final bits"));
  // Each step once, and a line for each restart: a slow rank restarts nothing.
  std::vector<std::string> steps;
  int restarts = 0;
  for (const auto& record : ReadMetrics(folder, "out/metrics.jsonl")) {
    if (record.count("event") > 0) {
      ++restarts;
    } else {
      EXPECT_EQ(record.at("step"), absl::StrCat(steps.size()));
      steps.push_back(record.at("loss"));
    }
  }
  EXPECT_THAT(steps, SizeIs(kSteps));
  EXPECT_EQ(Count(ended.err, "lockstep: the run failed in step "), restarts);
  EXPECT_EQ(restarts, num_faults - 1);
  // Nothing is left.
  std::vector<pid_t> pids = {};
  for (const std::string& line : LinesWith(ended.out, "I am "))
    pids.push_back(std::stoi(line.substr(line.rfind(' ') + 1)));
  EXPECT_THAT(pids, SizeIs(kRanks * (restarts + 1)));
  ExpectGone(pids);
  EXPECT_THAT(SharedMemoryOf(pids), IsEmpty());
  EXPECT_THAT(folder.List("temporary"), ::testing::ElementsAre("of-the-test"));
  for (const std::string& name : folder.List("out/state"))
    EXPECT_THAT(name, Not(HasSubstr("lockstep-part")));
}

}  // namespace
}  // namespace lockstep::tests
