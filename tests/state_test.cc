// Runs that are killed, asked to end, or go on elsewhere: what they end with is what one run
// without a break ends with.

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/program.h"
#include "tests/support/rank_script.h"
#include "tests/support/ranks.h"

namespace lockstep::tests {
namespace {

using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int kSteps = 12;
constexpr int kKills = 30;

Command Train(const Folder& folder, int nproc, const std::vector<std::string>& settings = {}) {
  return TrainCommand(folder, {"tests/scripts/resume.lua", nproc, settings});
}

// By step, from metrics.jsonl: each step once, however often its run was broken off.
std::vector<double> Losses(const Folder& folder) {
  std::vector<double> losses;
  for (const auto& object : ReadMetrics(folder, "out/metrics.jsonl")) {
    EXPECT_EQ(object.at("step"), absl::StrCat(losses.size()));
    losses.push_back(strtod(object.at("loss").c_str(), nullptr));
  }
  return losses;
}

// --- SIGKILL -------------------------------------------------------------------------------------

// Kills a run of `nproc` ranks, or one of its ranks, within 40 ms after `line`: a step and its
// saving take some ten milliseconds. The one wait of these tests, since a moment between the lines
// is what the test is about.
void KillSoonAfter(Child& run, int nproc, const std::string& line, std::mt19937_64& random) {
  const std::vector<pid_t> pids = PidsOf(run, nproc);
  if (!line.empty()) run.WaitForLine(line);
  absl::SleepFor(absl::Microseconds(random() % 40'000));
  const bool whole_run = random() % 2 == 0;
  kill(whole_run ? run.pid() : pids[random() % pids.size()], SIGKILL);
  run.Wait();
  ExpectGone(pids);
}

// Every other pair of runs draws from the ranks' generators in each step, every third is killed
// again while it resumes, and two of four save in the background.
TEST(Killed, AtThirtyRandomMomentsAndResumedEndsWithTheSameBits) {
  const char* given = getenv("LOCKSTEP_KILL_SEED");
  const uint64_t seed = given != nullptr ? strtoull(given, nullptr, 10) : std::random_device()();
  std::printf("seed %llu (LOCKSTEP_KILL_SEED sets one)\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  const std::vector<std::string> settings[] = {{}, {"dropout=0.1"}};
  const auto killed_settings = [&](int i) {
    std::vector<std::string> all = settings[i % 2];
    if (i % 4 >= 2) all.push_back("async=true");
    return all;
  };
  std::vector<std::string> undisturbed[2][3];
  for (const int nproc : {1, 2}) {
    for (const int drops : {0, 1}) {
      undisturbed[drops][nproc] = FinalBits(RunOne(Train(Folder(), nproc, settings[drops])));
      ASSERT_THAT(undisturbed[drops][nproc], SizeIs(nproc));
    }
    ASSERT_NE(undisturbed[0][nproc], undisturbed[1][nproc]);
  }

  for (int i = 0; i < kKills / 2; ++i) {
    SCOPED_TRACE(absl::StrCat("kills ", 2 * i, " and ", 2 * i + 1));
    const int drops = i % 2;
    const Folder folders[] = {Folder(), Folder()};
    const auto start = [&] {
      std::vector<Child> runs;
      for (const int nproc : {1, 2}) {
        runs.emplace_back(Train(folders[nproc - 1], nproc, killed_settings(i)));
      }
      return runs;
    };
    std::vector<Child> killed = start();
    for (const int nproc : {1, 2}) {
      const std::string line = absl::StrCat("step ", random() % kSteps);
      KillSoonAfter(killed[static_cast<size_t>(nproc - 1)], nproc, line, random);
    }
    if (i % 3 == 0) {
      std::vector<Child> again = start();
      for (const int nproc : {1, 2}) {
        KillSoonAfter(again[static_cast<size_t>(nproc - 1)], nproc, "", random);
      }
    }

    std::vector<Child> resumed = start();
    const std::vector<Ended> ended = WaitForAll(resumed, {"1 rank", "2 ranks"});

    for (const size_t nproc : {1, 2}) {
      EXPECT_EQ(FinalBits(ended[nproc - 1]), undisturbed[drops][nproc]) << nproc << " ranks";
      EXPECT_EQ(ended[nproc - 1].err, "");
      EXPECT_THAT(Losses(folders[nproc - 1]), SizeIs(kSteps)) << nproc << " ranks";
    }
  }
}

// --- SIGTERM -------------------------------------------------------------------------------------

TEST(AskedToEnd, ARunSavesAfterTheStepAndGoesOnWithTheSameBits) {
  for (const auto& [nproc, async] :
       {std::pair(1, "async=false"), {2, "async=false"}, {2, "async=true"}}) {
    const Folder folder;
    // Nothing else saves.
    Child run(Train(folder, nproc, {"every=1000", "steps=100000", async}));
    PidsOf(run, nproc);
    run.WaitForLine("step 5");

    run.Send(SIGTERM);
    WaitUntilTaken(run.pid(), SIGTERM);
    run.Send(SIGTERM);  // as `timeout` does, at its child and at the child's group: one request
    const Ended ended = run.Wait();

    EXPECT_EQ(ended.exit_code, 128 + SIGTERM);
    ExpectOneComplaint(ended, "lockstep: SIGTERM: the state after ");
    EXPECT_THAT(ended.err, HasSubstr("the same command with --run-dir "));
    const std::vector<std::string> states = folder.List("out/state");
    ASSERT_THAT(states, SizeIs(1));
    const std::string done = states[0].substr(states[0].find_first_not_of('0', 5));
    const std::string steps = absl::StrCat("steps=", std::stoi(done) + 4);
    const std::vector<std::string> resumed = FinalBits(RunOne(Train(folder, nproc, {steps})));
    EXPECT_EQ(resumed, FinalBits(RunOne(Train(Folder(), nproc, {steps}))));
  }
}

TEST(AskedToEnd, OneRankUnderAClustersLauncherTakesTheOthersAlong) {
  const Folder folder;
  const ReservedPort port;
  Command command = Train(folder, 1, {"every=1000", "steps=100000"});
  command.argv.erase(command.argv.begin() + 1, command.argv.begin() + 3);  // --nproc 1
  std::vector<Child> ranks = StartRanks(2, command, port);
  ranks[0].WaitForLine("step 5");

  ranks[1].Send(SIGTERM);
  const std::vector<Ended> ended = WaitForAll(ranks, {"rank 0", "rank 1"});

  for (const Ended& rank : ended) EXPECT_EQ(rank.exit_code, 128 + SIGTERM) << rank.err;
  ExpectOneComplaint(ended[0], "lockstep: SIGTERM: the state after ");
  EXPECT_EQ(ended[1].err, "");
  EXPECT_THAT(folder.List("out/state"), SizeIs(1));
}

// Ends a second after the first signal: a second one that comes sooner would be the same request.
constexpr char kHear[] =
    "repeat until require('lockstep.core.state').sigterm_came()\n"
    "local now = require('lockstep.core').now\n"
    "local heard = now()\n"
    "repeat until now() - heard > 1.1\n"
    "print('heard on ' .. rank)\n";

TEST(AskedToEnd, TwiceEndsARunThatComesToNoBoundary) {
  const Folder folder;
  Child run(RankScript(folder,
                       absl::StrCat("local run = require 'lockstep.run'\n"
                                    "run:state { best = {} }\n"
                                    "for _ in run:steps(function() return true end, 3) do\n",
                                    kSayPid, kHear, "forever() end"),
                       {"--nproc", "2"}));
  const std::vector<pid_t> pids = PidsOf(run, 2);

  run.Send(SIGTERM);
  run.WaitForLine("heard on");
  run.Send(SIGTERM);

  EXPECT_EQ(run.Wait().exit_code, 128 + SIGTERM);
  ExpectGone(pids);
}

TEST(AskedToEnd, OutsideOfALoopARunEndsAtOnce) {
  const Folder folder;
  Child run(RankScript(folder,
                       absl::StrCat("local run = require 'lockstep.run'\n"
                                    "run:state { best = {} }\n"
                                    "for _ in run:steps(function() return true end, 3) do end\n",
                                    kSayPid, "forever()"),
                       {"--nproc", "2"}));
  const std::vector<pid_t> pids = PidsOf(run, 2);

  run.Send(SIGTERM);
  const Ended ended = run.Wait();

  EXPECT_EQ(ended.exit_code, 128 + SIGTERM);
  ExpectOneComplaint(ended, "lockstep: SIGTERM; every rank has ended");
  ExpectGone(pids);
}

// Without the loop the signal would be recorded, and nothing would check it.
std::string Loop(const std::string& body) {
  return absl::StrCat("for _ in run:steps(function() return true end, 3) do\nif true then ", body,
                      " end end\n");
}

TEST(AskedToEnd, AfterTheLoopWasLeftARunEndsAtTheNextLine) {
  const std::string say = kSayPid;
  const std::string wait = "repeat torch.ones(1) until false\n";
  const std::string hear = "repeat until require('lockstep.core.state').sigterm_came()\n";
  const std::string fails = absl::StrCat("(function()\n", Loop("error('x')"), "end)\n");
  const struct {
    const char* how;
    std::string script;
  } kCases[] = {
      {"a signal after a break", Loop("break") + say + wait},
      {"a signal before a break", Loop(say + hear + "break") + wait},
      {"a signal after an error", "pcall" + fails + say + wait},
      {"a signal after rank 0's script",
       Loop("break") + say + "if rank == 0 then return end\n" + wait},
      {"a break in a coroutine that has ended",
       "coroutine.wrap(function()\n" + Loop("break") + "end)()\n" + say + wait},
      {"an error in a coroutine", "coroutine.resume(coroutine.create" + fails + ")\n" + say + wait},
      {"a break, and a coroutine after it",
       Loop("break") + "coroutine.wrap(function()\n" + say + wait + "end)()\n"},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.how);
    const Folder folder;
    Child run(RankScript(folder,
                         absl::StrCat("local run = require 'lockstep.run'\n"
                                      "run:state { best = {} }\n",
                                      c.script),
                         {"--nproc", "2"}));
    const std::vector<pid_t> pids = PidsOf(run, 2);

    run.Send(SIGTERM);
    const Ended ended = run.Wait();

    EXPECT_EQ(ended.exit_code, 128 + SIGTERM);
    ExpectOneComplaint(ended, "lockstep: SIGTERM; every rank has ended");
    ExpectGone(pids);
  }
}

// One rank, without a launcher.
TEST(AskedToEnd, ACoroutineSuspendedInTheLoopMaySaveAndASecondSignalEndsOneThatIsNeverResumed) {
  for (const bool is_resumed : {true, false}) {
    const Folder folder;
    Child run(
        RankScript(folder,
                   absl::StrCat("local run = require 'lockstep.run'\n"
                                "run:state { best = {} }\n"
                                "local step = coroutine.wrap(function()\n",
                                Loop("coroutine.yield()"), "end)\nstep()\n", kSayPid, kHear,
                                is_resumed ? "step()\n" : "", "repeat torch.ones(1) until false\n"),
                   {"--nproc", "1", "--run-dir", "out"}));
    PidsOf(run, 1);

    run.Send(SIGTERM);
    run.WaitForLine("heard on");
    if (!is_resumed) run.Send(SIGTERM);

    EXPECT_EQ(run.Wait().exit_code, 128 + SIGTERM);
    const std::vector<std::string> made = folder.List("out");
    EXPECT_EQ(std::count(made.begin(), made.end(), "state"), is_resumed ? 1 : 0);
  }
}

// --- A rank that does not come -------------------------------------------------------------------

// Only a rank that saves may take as long as its disk, half an hour. The limit also applies to the
// ranks' meeting. If the other rank's script has ended, the run ends at once.
TEST(CalledOnOneRankAlone, ACollectiveEndsByTheTimeout) {
  const std::string state = "run:state { best = {} }\n";
  const std::string loop = "for _ in run:steps(function() return true end, 3) do end\n";
  const std::string done = ": the end of its script";
  const std::string stays = "in no collective; the last was at ";
  const struct {
    const char* what;
    int alone;
    std::string before;
    std::string call;
    std::string other;  // what the other rank does
    std::string told;
  } kCases[] = {
      {"the first run:state on rank 0", 0, "", state + loop, loop, done},
      {"the first run:state on rank 1", 1, "", state + loop, loop, done},
      {"another run:state", 0, state + loop, state, "forever()", stays},
      {"run:save", 1, state, "run:save { step = 1 }\n", "forever()", stays},
      {"run:resume", 1, state, "run:resume()\n", "forever()", stays},
  };
  std::vector<Child> runs;
  for (const auto& c : kCases) {
    runs.emplace_back(RankScript(
        Folder(),
        absl::StrCat("local run = require 'lockstep.run'\n", c.before, "if rank == ", c.alone,
                     " then\n", c.call, "else\n", c.other, "end\n"),
        {"--nproc", "2", "--timeout", "10"}));
  }
  for (size_t i = 0; i < runs.size(); ++i) {
    const auto& c = kCases[i];
    SCOPED_TRACE(c.what);

    const Ended ended = runs[i].Wait();

    const bool is_at_once = c.told == done;
    EXPECT_EQ(ended.exit_code, is_at_once ? 1 : 3);
    ExpectOneComplaint(
        ended, is_at_once ? absl::StrCat("  rank ", c.alone, ": run:state (every rank must ")
                          : "s for other ranks; the limit that --timeout sets is 10 s");
    EXPECT_THAT(ended.err, ContainsRegex(absl::StrCat("  rank ", 1 - c.alone, "[^\n]*", c.told)));
  }
}

// --- Two runs in one folder ----------------------------------------------------------------------

// A run that has written, and waits within a step.
Child StartRunThatWaits(const Folder& folder) {
  return Child(RankScript(folder,
                          absl::StrCat("local run, log = require 'lockstep.run', require "
                                       "'lockstep.log'\n"
                                       "run:state { best = {} }\n"
                                       "for _ in run:steps(function() return true end, 3) do\n"
                                       "log.step { loss = 1 }\n",
                                       kSayPid, "forever() end"),
                          {"--nproc", "2", "--run-dir", "out"}));
}

TEST(TwoRunsInAFolder, TheSecondFailsWithTheHolderBeforeItWritesAnything) {
  const Folder folder;
  Child first = StartRunThatWaits(folder);
  const std::vector<pid_t> pids = PidsOf(first, 2);
  const std::vector<std::string> before = folder.List("out");
  const std::string metrics = folder.Read("out/metrics.jsonl");

  const struct {
    const char* what;
    bool is_collective;
    const char* script;
  } kCases[] = {
      {"its configuration", true, "require('lockstep.run').config { steps = 3 }"},
      {"its metrics", false, "require('lockstep.log').step { loss = 2 }"},
      {"its state", true, "require('lockstep.run'):state { best = {} }"},
      {"its own file", false, "io.open(require('lockstep.run').dir .. '/mine', 'w'):close()"},
  };
  for (const auto& [what, is_collective, script] : kCases) {
    SCOPED_TRACE(what);
    folder.Write("second.lua", absl::StrCat("local dist = require 'lockstep.distributed'\n"
                                            "if dist.rank() == 0 or ",
                                            is_collective ? "true" : "false", " then ", script,
                                            " end\n"
                                            "dist.barrier()\n"));

    const Ended ended =
        RunOne(Lockstep(folder, {"--nproc", "2", "--run-dir", "out", "second.lua"}));

    EXPECT_EQ(ended.exit_code, 1);
    ExpectOneComplaint(ended, absl::StrCat("another run is writing to the run's folder ",
                                           folder.Path("out"), " (process ", pids[0], " on "));
    EXPECT_EQ(folder.List("out"), before);
    EXPECT_EQ(folder.Read("out/metrics.jsonl"), metrics);
  }
}

TEST(TwoRunsInAFolder, WithoutTheLockTheirMetricsWouldMix) {
  const Folder folder;
  Child first = StartRunThatWaits(folder);
  PidsOf(first, 2);
  // Set by hand the folder is not locked.
  folder.Write("second.lua",
               "local run = require 'lockstep.run'\n"
               "run.dir = require('lockstep.core').run_dir()\n"
               "require('lockstep.log').step { loss = 2 }\n");

  ASSERT_EQ(RunOne(Lockstep(folder, {"--nproc", "2", "--run-dir", "out", "second.lua"})).exit_code,
            0);

  const Metrics metrics = ReadMetrics(folder, "out/metrics.jsonl");
  ASSERT_THAT(metrics, SizeIs(2));
  EXPECT_EQ(metrics[0].at("step"), metrics[1].at("step"));
}

TEST(TwoRunsInAFolder, ADryRunTakesNoLockAndAKilledRunsLockIsReleased) {
  const Folder folder;
  Child first = StartRunThatWaits(folder);
  const std::vector<pid_t> pids = PidsOf(first, 2);

  const Ended dry = RunOne(Lockstep(folder, {"--dry-run", "--nproc", "2", "--run-dir", "out",
                                             DataFile("tests/scripts/resume.lua")}));
  ASSERT_GT(first.pid(), 0);
  kill(first.pid(), SIGKILL);
  first.Wait();
  ExpectGone(pids);
  const Ended second = RunOne(Train(folder, 2));

  EXPECT_EQ(dry.exit_code, 0) << dry.err;
  EXPECT_EQ(dry.err, "");
  EXPECT_EQ(second.exit_code, 0) << second.err;
}

// --- Other numbers of ranks ----------------------------------------------------------------------

TEST(Resumed, OnOneTwoAndFourRanksDrawsTheSameCurve) {
  const Folder undisturbed;
  ASSERT_EQ(RunOne(Train(undisturbed, 1)).exit_code, 0);
  const std::vector<double> expected = Losses(undisturbed);
  ASSERT_THAT(expected, SizeIs(kSteps));

  const struct {
    int saved_by;
    int resumed_on;
    int steps;  // an epoch is seven
  } kCases[] = {{2, 1, 7}, {2, 4, 5}, {1, 2, 9}, {4, 1, 3}};
  for (const auto& [saved_by, resumed_on, steps] : kCases) {
    const Folder folder;
    const Ended first = RunOne(Train(folder, saved_by, {absl::StrCat("steps=", steps)}));
    ASSERT_EQ(first.exit_code, 0) << first.err;

    const Ended ended = RunOne(Train(folder, resumed_on));

    ASSERT_EQ(ended.exit_code, 0) << ended.err;
    const std::vector<double> losses = Losses(folder);
    ASSERT_THAT(losses, SizeIs(kSteps));
    for (size_t i = 0; i < losses.size(); ++i) {
      EXPECT_NEAR(losses[i], expected[i], 1e-12 * expected[i])
          << "step " << i << " of " << saved_by << " ranks, resumed on " << resumed_on;
    }
  }
}

// Where more than two ranks add up, the order decides the last bit: see state_ranks_test.lua.
TEST(Resumed, OnThreeRanksGivesTheSameBits) {
  const Folder folder;
  ASSERT_EQ(RunOne(Train(folder, 3, {"batch_size=6", "double=false", "steps=1"})).exit_code, 0);

  const Ended ended = RunOne(Train(folder, 3, {"batch_size=6", "double=false"}));

  const Ended undisturbed = RunOne(Train(Folder(), 3, {"batch_size=6", "double=false"}));
  EXPECT_THAT(FinalBits(ended), SizeIs(3));
  EXPECT_EQ(FinalBits(ended), FinalBits(undisturbed));
}

TEST(Resumed, OnAnotherNumberOfRanksRandomNumbersThatDifferedBeginAnewAndThatIsSaid) {
  const Folder folder;
  ASSERT_EQ(RunOne(Train(folder, 2, {"dropout=0.1", "steps=4"})).exit_code, 0);

  const Ended ended = RunOne(Train(folder, 1, {"dropout=0.1"}));

  EXPECT_EQ(ended.exit_code, 0);
  EXPECT_EQ(ended.err,
            "lockstep: run:resume: the 2 ranks that saved had different random numbers; this "
            "rank starts a new sequence\n");
  EXPECT_THAT(Losses(folder), SizeIs(kSteps));
}

TEST(Resumed, OnAnotherNumberOfRanksValuesOfEachRankAreRefusedByName) {
  const Folder folder;
  ASSERT_EQ(RunOne(Train(folder, 2, {"own_values=true", "steps=4"})).exit_code, 0);

  const Ended ended = RunOne(Train(folder, 4, {"own_values=true"}));

  EXPECT_EQ(ended.exit_code, 1);
  ExpectOneComplaint(ended,
                     "\"own\" was another on each of the 2 ranks that saved it, and 4 ranks cannot "
                     "share that out; resume on 2, or leave it out");
  ExpectOneComplaint(RunOne(Train(folder, 1, {"own_values=true"})), "and 1 rank cannot share that");
}

TEST(Resumed, ATornStateIsReportedOnceAndTheOneBeforeItGivesTheSameBits) {
  const Folder folder;
  const std::vector<std::string> expected = FinalBits(RunOne(Train(folder, 2)));
  const std::string name = "out/state/step-00000012/state-00002-of-00002.safetensors";
  const std::string whole = folder.Read(name);
  folder.Write(name, whole.substr(0, whole.size() / 2));

  const Ended ended = RunOne(Train(folder, 2));

  EXPECT_EQ(FinalBits(ended), expected);
  ExpectOneComplaint(ended, "state-00002-of-00002.safetensors has ");
  EXPECT_THAT(ended.out, HasSubstr("after 11 steps (1 later states could not be used)"));
  EXPECT_THAT(folder.List("out/state"), Contains("step-00000012.torn"));
}

}  // namespace
}  // namespace lockstep::tests
