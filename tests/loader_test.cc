// data.loader in runs that are killed and go on with other numbers of ranks and workers: together
// they see the samples that one run without a break sees.

#include <signal.h>
#include <stdlib.h>

#include <cstdio>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/program.h"
#include "tests/support/rank_script.h"
#include "tests/support/ranks.h"

namespace lockstep::tests {
namespace {

using ::testing::SizeIs;

constexpr int kSamples = 3000;
constexpr int kEpochs = 2;
constexpr int kKillsOfEach = 15;  // of runs that skip bad samples, and of those without any

void WriteSamples(const Folder& folder) {
  std::string lines;
  for (int i = 1; i <= kSamples; ++i) absl::StrAppend(&lines, "{\"id\": ", i, "}\n");
  folder.Write("numbers.jsonl", lines);
}

Command Load(const Folder& folder, int attempt, int nproc, int workers, bool skip, int every) {
  return Lockstep(
      folder,
      {"--nproc", absl::StrCat(nproc), "--run-dir", "out", DataFile("tests/scripts/loader.lua"),
       "--set", absl::StrCat("attempt=", attempt), "--set", absl::StrCat("workers=", workers),
       "--set", absl::StrCat("skip=", skip ? "true" : "false"), "--set",
       absl::StrCat("every=", every)});
}

// The samples of each rank in each step, less the steps that a later attempt repeated.
using Taken = std::map<int, std::map<int, int>>;  // ids by step and rank

void AddAttempt(const Folder& folder, int attempt, int nproc, Taken& taken) {
  for (int rank = 0; rank < nproc; ++rank) {
    const std::string name = absl::StrCat("ids-", attempt, "-", rank);
    if (!std::filesystem::exists(folder.Path(name))) continue;  // killed before it began
    for (const std::string& line :
         std::vector<std::string>(absl::StrSplit(folder.Read(name), '\n', absl::SkipEmpty()))) {
      const std::vector<std::string> words = absl::StrSplit(line, ' ');
      ASSERT_THAT(words, SizeIs(2)) << line;
      int number = 0;
      ASSERT_TRUE(absl::SimpleAtoi(words[1], &number)) << line;
      if (words[0] == "from") {
        // Steps after the saved state are repeated. Every rank has this line; only rank 0's counts,
        // so that the steps of this attempt stay.
        if (rank == 0) taken.erase(taken.lower_bound(number), taken.end());
        continue;
      }
      int step = 0;
      ASSERT_TRUE(absl::SimpleAtoi(words[0], &step)) << line;
      taken[step][rank] = number;
    }
  }
}

std::vector<int> InOrder(const Taken& taken) {
  std::vector<int> ids;
  for (const auto& [step, by_rank] : taken) {
    for (const auto& [rank, id] : by_rank) ids.push_back(id);
  }
  return ids;
}

void KillSoonAfterItsFirstSteps(Child& run, int nproc, std::mt19937_64& random) {
  const std::vector<pid_t> pids = PidsOf(run, nproc);
  // The one wait of this test, since a moment between two lines is what it is about.
  run.WaitForLine("step");
  absl::SleepFor(absl::Microseconds(random() % 60'000));
  const bool whole_run = random() % 2 == 0;
  kill(whole_run ? run.pid() : pids[random() % pids.size()], SIGKILL);
  run.Wait();
  ExpectGone(pids);
}

// Runs that are killed again and again, each on other ranks and workers; then one that ends.
Taken TakeAllOverKills(const Folder& folder, bool skip, std::mt19937_64& random) {
  Taken taken;
  for (int attempt = 0; attempt < kKillsOfEach; ++attempt) {
    const int nproc = 1 << random() % 3;
    const int workers = std::vector<int>{0, 1, 3}[random() % 3];
    SCOPED_TRACE(absl::StrCat("attempt ", attempt, ": ", nproc, " ranks, ", workers, " workers"));
    Child run(Load(folder, attempt, nproc, workers, skip, 1));
    KillSoonAfterItsFirstSteps(run, nproc, random);
    AddAttempt(folder, attempt, nproc, taken);
  }
  const Ended ended = RunOne(Load(folder, kKillsOfEach, 1, 2, skip, 1'000'000));
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(Count(ended.out, "all done"), 1);
  AddAttempt(folder, kKillsOfEach, 1, taken);
  return taken;
}

TEST(Loader, KilledThirtyTimesAndResumedOnOtherRanksLosesAndRepeatsNone) {
  const char* given = getenv("LOCKSTEP_KILL_SEED");
  const uint64_t seed = given != nullptr ? strtoull(given, nullptr, 10) : std::random_device()();
  std::printf("seed %llu (LOCKSTEP_KILL_SEED sets one)\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  const Folder alone;
  WriteSamples(alone);
  ASSERT_EQ(RunOne(Load(alone, 0, 1, 0, false, 1'000'000)).exit_code, 0);
  Taken undisturbed;
  AddAttempt(alone, 0, 1, undisturbed);
  ASSERT_THAT(undisturbed, SizeIs(kSamples * kEpochs));

  const Folder folder;
  WriteSamples(folder);
  const Taken taken = TakeAllOverKills(folder, false, random);

  EXPECT_TRUE(InOrder(taken) == InOrder(undisturbed));

  const Folder skipping;
  WriteSamples(skipping);
  std::map<int, int> times;
  for (const int id : InOrder(TakeAllOverKills(skipping, true, random))) ++times[id];
  for (int id = 1; id <= kSamples; ++id)
    EXPECT_EQ(times[id], id % 50 == 0 ? 0 : kEpochs) << "sample " << id;
}

}  // namespace
}  // namespace lockstep::tests
