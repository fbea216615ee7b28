// Runs that go on from snapshots in memory after ranks were killed: run:state(objects, {
// memory_every = n }).

#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/program.h"
#include "tests/support/rank_script.h"
#include "tests/support/ranks.h"

namespace lockstep::tests {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int kSteps = 12;

Command Train(const Folder& folder, int nproc, const std::vector<std::string>& options,
              const std::vector<std::string>& settings) {
  return TrainCommand(folder, {"tests/scripts/resume.lua", nproc, settings, options});
}

std::vector<std::string> Losses(const Folder& folder) {
  std::vector<std::string> losses;
  for (const auto& record : ReadMetrics(folder, "out/metrics.jsonl")) {
    if (record.count("event") > 0) continue;
    EXPECT_EQ(record.at("step"), absl::StrCat(losses.size()));
    losses.push_back(record.at("loss"));
  }
  return losses;
}

// Whether a socket of the run's keepers is open on this machine.
bool HasKeeper(const Folder& folder) {
  std::string id;
  std::ifstream(folder.Path("out/keep.id")) >> id;
  EXPECT_THAT(id, SizeIs(16));
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);) {
    if (line.find("@lockstep-keep-" + id) != std::string::npos) return true;
  }
  return false;
}

// A keeper ends by itself, a moment after the run.
void ExpectNoKeeper(const Folder& folder) {
  while (HasKeeper(folder)) usleep(1000);
}

TEST(Memory, ARunThatIsKilledAtRandomStepsGoesOnFromSnapshotsWithTheSameBits) {
  const char* given = std::getenv("LOCKSTEP_KILL_SEED");
  const uint64_t seed = given != nullptr ? strtoull(given, nullptr, 10) : 39;
  std::printf("seed %llu (LOCKSTEP_KILL_SEED sets one)\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  for (const int nproc : {1, 2, 3}) {
    for (const std::vector<std::string>& saves :
         std::vector<std::vector<std::string>>{{"every=100", "memory_every=1"},
                                               {"every=4", "memory_every=2"},
                                               {"every=3", "async=true", "memory_every=1"}}) {
      SCOPED_TRACE(absl::StrCat(nproc, " ranks, ", absl::StrJoin(saves, ", ")));
      const Folder undisturbed;
      const Folder folder;
      std::vector<int> kills;
      for (int i = 0; i < 3; ++i) kills.push_back(static_cast<int>(4 * i + 1 + random() % 3));
      std::vector<std::string> settings = {"dropout=0.1", "own_values=true", "batch_size=6"};
      const Ended expected = RunOne(Train(undisturbed, nproc, {}, settings));
      ASSERT_EQ(expected.exit_code, 0) << expected.err;
      settings.insert(settings.end(), saves.begin(), saves.end());
      settings.push_back(absl::StrCat("kill_steps=", absl::StrJoin(kills, ","), ",-1"));

      const Ended ended = RunOne(Train(folder, nproc, {"--restarts", "10"}, settings));

      EXPECT_EQ(ended.exit_code, 0) << ended.err;
      EXPECT_EQ(LinesWith(ended.out, "final bits"), LinesWith(expected.out, "final bits"));
      EXPECT_EQ(Losses(folder), Losses(undisturbed));
      EXPECT_THAT(Losses(folder), SizeIs(kSteps));
      // With a snapshot of every step, only the step of the kill is done again.
      if (saves[0] == "every=100") {
        for (const int step : kills)
          EXPECT_THAT(absl::StrCat(ended.out, ended.err),
                      HasSubstr(absl::StrCat("resumed from memory, after ", step, " steps")));
        EXPECT_THAT(folder.List("out/state"), ::testing::ElementsAre("step-00000012"));
      }
      ExpectNoKeeper(folder);
    }
  }
}

// Without a launcher of ours, as under torchrun, the keeper outlives the run: the next one goes on.
TEST(Memory, ASnapshotOfOneRankIsResumedOnTwo) {
  const Folder folder;
  const std::vector<std::string> settings = {"every=100", "memory_every=1"};
  std::vector<std::string> killed = settings;
  killed.push_back("kill_steps=7");
  ASSERT_EQ(RunOne(Train(folder, 1, {}, killed)).exit_code, 128 + SIGKILL);
  EXPECT_TRUE(HasKeeper(folder));

  const Ended ended = RunOne(Train(folder, 2, {}, settings));

  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(absl::StrCat(ended.out, ended.err), HasSubstr("resumed from memory, after 7 steps"));
  EXPECT_THAT(Losses(folder), SizeIs(kSteps));
  ExpectNoKeeper(folder);
}

TEST(Memory, TheKeeperEndsWithItsLauncher) {
  const Folder folder;
  Child run(Train(folder, 2, {}, {"every=100", "memory_every=1", "steps=1000000"}));
  const std::vector<pid_t> pids = PidsOf(run, 2);
  run.WaitForLine("step 5");
  EXPECT_TRUE(HasKeeper(folder));

  kill(run.pid(), SIGKILL);
  run.Wait();

  ExpectGone(pids);
  ExpectNoKeeper(folder);
}

TEST(Memory, WithoutItTheStepsSinceTheLastSaveAreDoneAgain) {
  const Folder folder;

  const Ended ended =
      RunOne(Train(folder, 2, {"--restarts", "1"}, {"every=100", "kill_steps=5,-1"}));

  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("begins again with step 0"));
}

}  // namespace
}  // namespace lockstep::tests
