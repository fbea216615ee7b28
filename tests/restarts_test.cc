// Runs that the launcher starts again after a failure: --restarts N.

#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>
#include <utility>
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
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr int kSteps = 12;

Command Train(const Folder& folder, int nproc, const std::vector<std::string>& options,
              const std::vector<std::string>& settings) {
  return TrainCommand(folder, {"tests/scripts/resume.lua", nproc, settings, options});
}

// The losses by step, each step once, and the records of restarts.
struct Records {
  std::vector<std::string> losses;
  Metrics restarts;
};

Records ReadRecords(const Folder& folder) {
  Records records;
  for (const auto& record : ReadMetrics(folder, "out/metrics.jsonl")) {
    if (record.count("event") > 0) {
      EXPECT_EQ(record.at("event"), "restart");
      records.restarts.push_back(record);
      continue;
    }
    EXPECT_EQ(record.at("step"), absl::StrCat(records.losses.size()));
    records.losses.push_back(record.at("loss"));
  }
  return records;
}

// Random steps in their order, none of them three times.
std::vector<int> DrawKills(int count, std::mt19937_64& random) {
  std::vector<int> steps;
  while (static_cast<int>(steps.size()) < count) {
    const int step = static_cast<int>(random() % kSteps);
    if (std::count(steps.begin(), steps.end(), step) < 2) steps.push_back(step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

void ExpectAllGone(const Ended& ended, size_t count) {
  std::vector<pid_t> pids;
  for (const std::string& line : LinesWith(ended.out, "I am "))
    pids.push_back(std::stoi(line.substr(line.rfind(' ') + 1)));
  EXPECT_THAT(pids, SizeIs(count));
  ExpectGone(pids);
}

TEST(Restarts, ARunThatIsKilledAtRandomStepsEndsWithTheBitsAndMetricsOfAnUndisturbedOne) {
  const char* given = std::getenv("LOCKSTEP_KILL_SEED");
  const uint64_t seed = given != nullptr ? strtoull(given, nullptr, 10) : 39;
  std::printf("seed %llu (LOCKSTEP_KILL_SEED sets one)\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  for (const int nproc : {1, 2}) {
    for (const auto& [every, async] : {std::pair("every=1", "async=false"),
                                       {"every=4", "async=false"},
                                       {"every=3", "async=true"}}) {
      SCOPED_TRACE(absl::StrCat(nproc, " ranks, ", every, ", ", async));
      const Folder undisturbed;
      const Folder folder;
      const std::vector<int> kills = DrawKills(4, random);
      const std::string kill_steps = absl::StrCat("kill_steps=", absl::StrJoin(kills, ","), ",-1");
      const Ended expected = RunOne(Train(undisturbed, nproc, {}, {"dropout=0.1", every}));
      ASSERT_EQ(expected.exit_code, 0) << expected.err;

      const Ended ended = RunOne(
          Train(folder, nproc, {"--restarts", "10"}, {"dropout=0.1", every, async, kill_steps}));

      EXPECT_EQ(ended.exit_code, 0) << ended.err;
      EXPECT_THAT(LinesWith(ended.out, "final bits"), SizeIs(nproc));
      EXPECT_EQ(LinesWith(ended.out, "final bits"), LinesWith(expected.out, "final bits"));
      const Records records = ReadRecords(folder);
      EXPECT_THAT(records.losses, SizeIs(kSteps));
      EXPECT_EQ(records.losses, ReadRecords(undisturbed).losses);
      ASSERT_THAT(records.restarts, SizeIs(kills.size()));
      for (size_t i = 0; i < kills.size(); ++i) {
        EXPECT_EQ(records.restarts[i].at("restarts"), absl::StrCat(i + 1));
        EXPECT_EQ(records.restarts[i].at("step"), absl::StrCat(kills[i]));
        EXPECT_EQ(records.restarts[i].at("exit_code"), absl::StrCat(128 + SIGKILL));
        EXPECT_THAT(records.restarts[i].at("cause"), HasSubstr(") was killed by SIGKILL"));
        EXPECT_THAT(ended.err, HasSubstr(absl::StrCat("lockstep: the run failed in step ", kills[i],
                                                      "; restart ", i + 1, " of 10\n")));
      }
      EXPECT_EQ(Count(ended.err, "was killed by SIGKILL"), static_cast<int>(kills.size()));
      ExpectAllGone(ended, static_cast<size_t>(nproc) * (kills.size() + 1));
      // No folder of a state that was not finished, and no file of the launcher.
      for (const std::string& name : folder.List("out/state"))
        EXPECT_THAT(name, Not(HasSubstr("lockstep-part")));
      EXPECT_THAT(LinesWith(absl::StrJoin(folder.List("out"), "\n"), ".part-"), IsEmpty());
    }
  }
}

TEST(Restarts, WithoutThemAKilledRunStaysEnded) {
  const Folder folder;

  const Ended ended = RunOne(Train(folder, 2, {}, {"kill_steps=5"}));

  EXPECT_EQ(ended.exit_code, 128 + SIGKILL);
  ExpectOneComplaint(ended, "was killed by SIGKILL");
  EXPECT_THAT(ReadRecords(folder).losses, Not(SizeIs(kSteps)));
}

TEST(Restarts, ThreeFailuresAtOneStepAreEnough) {
  const Folder folder;

  const Ended ended = RunOne(Train(folder, 2, {"--restarts", "10"}, {"kill_steps=2,5,5,5,-1"}));

  EXPECT_EQ(ended.exit_code, 128 + SIGKILL);
  EXPECT_EQ(Count(ended.err, "was killed by SIGKILL"), 4);
  EXPECT_EQ(Count(ended.err, "lockstep: gives up: "), 1);
  EXPECT_THAT(ended.err, HasSubstr("gives up: the run failed three times in a row in step 5\n"));
  EXPECT_THAT(ReadRecords(folder).restarts, SizeIs(3));
}

TEST(Restarts, AnErrorOfTheScriptThatComesBackEndsTheRunToo) {
  const Folder folder;
  const Ended ended =
      RunOne(RankScript(folder, "error('always')", {"--nproc", "2", "--restarts", "10"}));

  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_EQ(Count(ended.err, ": always\n"), 3);
  EXPECT_THAT(ended.err, HasSubstr("gives up: the run failed three times in a row before the first "
                                   "step\n"));
}

TEST(Restarts, AWrongSettingIsNotTriedAgain) {
  const Folder folder;
  const Ended ended = RunOne(RankScript(folder, "require('lockstep.run').config { steps = 1 }",
                                        {"--nproc", "2", "--restarts", "10", "--set", "stps=4"}));

  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_EQ(Count(ended.err, "did you mean \"steps\"?"), 1);
  EXPECT_THAT(ended.err, HasSubstr("does not start again: exit code 2"));
}

TEST(Restarts, TheLastFailuresCodeIsTheRunsWhenNoneAreLeft) {
  const Folder folder;
  const Ended ended =
      RunOne(RankScript(folder,
                        "local run = require 'lockstep.run'\n"
                        "for step in run:steps(function() return true end, 9) do\n"
                        "dist.barrier()\n"  // both ranks are in this step, and stay in it
                        "if step == run.restarts and rank == 1 then os.exit(40 + step) end\n"
                        "dist.barrier() end",
                        {"--nproc", "2", "--restarts", "2"}));

  EXPECT_EQ(ended.exit_code, 42);
  EXPECT_THAT(ended.err, HasSubstr("rank 1 called os.exit(40) at train.lua:"));
  EXPECT_THAT(ended.err,
              HasSubstr("gives up: the run has failed in step 2, after all 2 restarts of "));
  // Nothing is saved, and that is said at each restart.
  for (const char* restart : {"1", "2"}) {
    EXPECT_EQ(Count(ended.err, absl::StrCat("lockstep: restart ", restart,
                                            " begins again with step 0: no saved state was ")),
              1)
        << ended.err;
  }
}

TEST(Restarts, ExitCodesThatSayThatNothingWillBeBetterAreFinal) {
  for (const char* nproc : {"1", "2"}) {
    const Ended ended =
        RunOne(RankScript(Folder(), "os.exit(2)", {"--nproc", nproc, "--restarts", "10"}));
    EXPECT_EQ(ended.exit_code, 2);
    EXPECT_EQ(Count(ended.err, " called os.exit(2) at train.lua:"), 1) << ended.err;
    EXPECT_THAT(ended.err, HasSubstr("does not start again: exit code 2 says that "));
  }
}

class Asked : public ::testing::TestWithParam<int> {};

TEST_P(Asked, ARunThatIsAskedToEndIsNotStartedAgain) {
  for (const int nproc : {1, 2}) {
    const Folder folder;
    Child run(Train(folder, nproc, {"--restarts", "10"}, {"every=1000", "steps=100000"}));
    const std::vector<pid_t> pids = PidsOf(run, nproc);
    run.WaitForLine("step 5");

    run.Send(GetParam());
    const Ended ended = run.Wait();

    EXPECT_EQ(ended.exit_code, 128 + GetParam());
    ExpectOneComplaint(ended, GetParam() == SIGTERM ? "lockstep: SIGTERM: the state after "
                                                    : "; every rank has ended");
    EXPECT_THAT(ended.err, Not(HasSubstr("restart")));
    ExpectGone(pids);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Asked, ::testing::Values(SIGINT, SIGTERM, SIGHUP),
                         [](const auto& info) { return sigabbrev_np(info.param); });

// The signal reaches the launcher while it ends the ranks.
TEST(Restarts, ASignalDuringAFailureEndsTheRun) {
  const Folder folder;
  const Ended ended = RunOne(RankScript(folder,
                                        "ffi.cdef 'int getppid(void);'\n"
                                        "dist.barrier()\n"
                                        "if rank == 1 then C.kill(C.getppid(), 15)\n"
                                        "C.kill(C.getpid(), 9) end\nforever()",
                                        {"--nproc", "2", "--restarts", "10"}));

  EXPECT_NE(ended.exit_code, 0);
  EXPECT_THAT(ended.err, Not(HasSubstr("; restart ")));
}

// Descriptors of pipes, sockets and memory would add up over hundreds of restarts.
TEST(Restarts, LeaveNothingInTheLauncherAndUseOneFolder) {
  const Folder folder;
  const Ended ended =
      RunOne(RankScript(folder,
                        "ffi.cdef 'int getppid(void);'\n"
                        "local run = require 'lockstep.run'\n"
                        "dist.barrier()\n"
                        "if rank == 0 then\n"
                        "local list = io.popen('ls /proc/' .. C.getppid() .. '/fd | wc -l')\n"
                        "print('descriptors ' .. list:read('*n'))\nend\n"
                        "require('lockstep.log').step { loss = run.restarts }\n"
                        "dist.barrier()\n"
                        "for step in run:steps(function() return true end, 9) do\n"
                        "if step == run.restarts and step < 5 then C.kill(C.getpid(), 9) end end\n",
                        {"--nproc", "2", "--restarts", "10"}));

  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  std::vector<std::string> counts = LinesWith(ended.out, "descriptors ");
  EXPECT_THAT(counts, SizeIs(6));
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  EXPECT_THAT(counts, SizeIs(1)) << absl::StrJoin(counts, ", ");
  EXPECT_THAT(folder.List("runs"), SizeIs(1));
}

// The rank waits for that: until it is reaped, an ended process has its entry in /proc.
TEST(Restarts, WhatRanksLeaveBehindIsReaped) {
  const Folder folder;
  folder.Write("leave.lua", R"(
    local pipe = io.popen "true & echo $!"
    local path = ("/proc/%d/stat"):format(pipe:read "*n")
    pipe:close()
    local file = io.open(path)
    while file do
      file:close()
      file = io.open(path)
    end
    print "it is gone"
  )");

  const Ended ended = RunOne(Lockstep(folder, {"--restarts", "1", "leave.lua"}));

  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("it is gone"));
}

TEST(Restarts, AreCountedWhereTorchrunStartsTheRanks) {
  for (const char* count : {"0", "3"}) {
    const Folder folder;
    const std::vector<Ended> ranks =
        RunRanks(2, RankScript(folder, "print('restarts', require('lockstep.run').restarts)", {}),
                 [&](int rank, int num_ranks, uint16_t port) {
                   Variables variables = TorchrunEnvironment(rank, num_ranks, port);
                   variables["TORCHELASTIC_RESTART_COUNT"] = count;
                   return variables;
                 });
    for (const Ended& rank : ranks) EXPECT_EQ(rank.out, absl::StrCat("restarts\t", count, "\n"));
  }
}

TEST(Restarts, WhereThereIsNothingToStartAgainTheyAreAnError) {
  const Folder folder;
  Command command = RankScript(folder, "", {"--restarts", "3", "--dry-run"});
  Ended ended = RunOne(command);
  EXPECT_EQ(ended.exit_code, 2);
  ExpectOneComplaint(ended, "and --dry-run has none");

  ended = RunOne(Lockstep(folder, {"--restarts", "3"}));
  EXPECT_EQ(ended.exit_code, 2);
  ExpectOneComplaint(ended, "and there is no script");

  command = RankScript(folder, "", {"--restarts", "3"});
  command.environment = TorchrunEnvironment(0, 1, 1);
  ended = RunOne(command);
  EXPECT_EQ(ended.exit_code, 2);
  ExpectOneComplaint(ended, "starts ranks again, torchrun with --max-restarts");
}

// --- Slow ranks ----------------------------------------------------------------------------------

// Rank 1 works 10 ms longer in each step until it is evicted; its machine is then another.
constexpr char kSlowScript[] =
    "local core, dist = require 'lockstep.core', require 'lockstep.distributed'\n"
    "local run = require 'lockstep.run'\n"
    "local config = run.config { slow = true, state = true }\n"
    "local seen = { steps = 0 }\n"
    "if config.state then run:state({ seen = seen }, { every = 1000 }) run:resume() end\n"
    "for step in run:steps(function() return 1 end, 250) do\n"
    "  local start = core.now()\n"
    "  if config.slow and dist.rank() == 1 then while core.now() < start + 0.01 do end end\n"
    "  seen.steps = seen.steps + 1\n"
    "end\n"
    "if dist.rank() == 0 then print('steps', seen.steps) end\n";

Command RunSlow(const Folder& folder, const std::string& factor,
                const std::vector<std::string>& settings) {
  std::vector<std::string> options = {"--nproc",      "2",    "--run-dir", "out",
                                      "--evict-slow", factor, "train.lua"};
  for (const std::string& setting : settings) options.insert(options.end(), {"--set", setting});
  return Lockstep(folder, options);
}

TEST(EvictSlow, EndsARunThatOneRankHoldsUpAndTheStateGoesOn) {
  const Folder folder;
  folder.Write("train.lua", kSlowScript);

  const Ended evicted = RunOne(RunSlow(folder, "1.5", {}));

  EXPECT_EQ(evicted.exit_code, 75) << evicted.err;
  EXPECT_THAT(evicted.err,
              ::testing::ContainsRegex(
                  "lockstep: rank 1 \\([^)]+\\) worked [0-9.]+ times as long as the "
                  "median rank, [0-9]+ ms a step over 100 steps; --evict-slow 1.5: the "
                  "state after 100 steps is in "));

  const Ended again = RunOne(RunSlow(folder, "1000", {"slow=false"}));
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("steps\t250\n"));
}

TEST(EvictSlow, SaysThatItNeedsAState) {
  const Folder folder;
  folder.Write("train.lua", kSlowScript);

  const Ended ended = RunOne(RunSlow(folder, "1.5", {"state=false", "slow=false"}));

  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("--evict-slow has no effect without run:state"));
}

}  // namespace
}  // namespace lockstep::tests
