// Ranks that wait for each other forever: the run ends within --timeout, with exit code 3 and what
// each rank was doing.

#include <signal.h>
#include <sys/wait.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/program.h"
#include "tests/support/rank_script.h"
#include "tests/support/ranks.h"

namespace lockstep::tests {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kHang = 3;

Ended RunScript(const std::string& code, int num_ranks) {
  return RunOne(RankScript(Folder(), code, {"--nproc", absl::StrCat(num_ranks), "--timeout", "2"}));
}

// After a step in lockstep.
constexpr char kOneStep[] =
    "local x, log = torch.ones(4), require 'lockstep.log'\n"
    "dist.all_reduce(x)\n"
    "log.step { step = 7, loss = 0 }\n";

TEST(Watchdog, ARankThatIsBusyElsewhereIsNamedWithItsLastCollective) {
  const Ended ended = RunScript(absl::StrCat(kOneStep, "if rank == 1 then while true do end end\n",
                                             "dist.all_reduce(x, 'max')\n"),
                                3);

  EXPECT_EQ(ended.exit_code, kHang);
  EXPECT_EQ(Count(ended.err, "lockstep: "), 1) << ended.err;
  EXPECT_THAT(ended.err,
              ContainsRegex("^lockstep: rank [02]: train.lua:12: all_reduce float32 \\{4\\} "
                            "max of world has waited 2\\.[0-9] s"));
  EXPECT_THAT(ended.err,
              ContainsRegex("\n  rank 0: step 7, in a collective at train.lua:12\n"
                            "    waits +[0-9.]+ s +world #4  all_reduce float32 \\{4\\} max "
                            " \\(train.lua:12\\)\n"));
  EXPECT_THAT(ended.err,
              ContainsRegex("\n  rank 1: step 7, in no collective; the last was at train.lua:9\n"
                            "    done +world #3  all_reduce float32 \\{4\\} sum "));
}

TEST(Watchdog, ARankThatComputesIsShownWithTheLineWhereItIs) {
  for (const char* forever :
       {// In operators, in compiled Lua that calls C++ now and then, and in interpreted Lua.
        "repeat x = x + 1 until false",
        "local n, f = 0, torch.ones repeat n = n + 1 if n % 1e6 == 0 then f(2) end until false",
        "jit.off() while true do end"}) {
    SCOPED_TRACE(forever);
    const Ended ended = RunScript(
        absl::StrCat(kOneStep, "if rank == 1 then ", forever, " end\ndist.barrier()\n"), 2);

    EXPECT_EQ(ended.exit_code, kHang);
    EXPECT_THAT(ended.err,
                HasSubstr("\n  rank 1: step 7, in no collective, now at train.lua:11; the "
                          "last was at train.lua:9\n"));
  }
}

// The collectives are in two groups: those of one group would be compared, and fail at once.
TEST(Watchdog, RanksInDifferentCollectivesAreBothShown) {
  const Ended ended = RunScript(absl::StrCat(kOneStep, "local ranks = { ranks = { 0, 1 } }\n",
                                             "local a, b = dist.group(ranks), dist.group(ranks)\n",
                                             "if rank == 0 then dist.barrier { group = a } end\n",
                                             "dist.all_gather(x, { group = b })\n"),
                                2);

  EXPECT_EQ(ended.exit_code, kHang) << ended.err;
  EXPECT_THAT(ended.err, ContainsRegex("rank 0: step 7, in a collective at train.lua:13\n"
                                       "    waits [^\n]*barrier  \\(train.lua:13\\)"));
  EXPECT_THAT(ended.err,
              ContainsRegex("rank 1: [^\n]*\n    waits [^\n]*all_gather float32 \\{4\\}"));
}

TEST(Watchdog, RanksThatWaitForEachOtherInDifferentGroupsAreNamedAsACircle) {
  const Ended ended = RunScript(
      "local x = torch.ones(3)\n"
      "local a = rank < 2 and dist.group { ranks = { 0, 1 } }\n"
      "local b = rank > 0 and dist.group { ranks = { 1, 2 } }\n"
      "if rank == 0 then dist.all_reduce(x, 'sum', { group = a }) end\n"
      "if rank == 1 then dist.all_reduce(x, 'sum', { group = b }) end\n"
      "dist.barrier()\n",
      3);

  EXPECT_EQ(ended.exit_code, kHang) << ended.err;
  EXPECT_THAT(ended.err,
              HasSubstr("\nRanks wait for each other in a circle: rank 0 waits for rank 1 in "
                        "all_reduce float32 {3} sum of ranks 0, 1 (train.lua:11), rank 1 waits for "
                        "rank 2 in all_reduce float32 {3} sum of ranks 1, 2 (train.lua:12), rank 2 "
                        "waits for rank 0 in barrier of world (train.lua:13). "));
}

TEST(Watchdog, BackwardHasTheLineThatCalledIt) {
  const Ended ended = RunScript(
      "local nn, sharding = require 'lockstep.nn', require 'lockstep.sharding'\n"
      "local dp = sharding.data_parallel(nn.Linear(2, 2))\n"
      "local loss = dp(torch.ones(1, 2)):sum()\n"
      "if rank == 1 then forever() end\n"
      "loss:backward()\n",
      2);

  EXPECT_EQ(ended.exit_code, kHang) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("rank 0: in a collective at train.lua:12\n"));
  EXPECT_THAT(ended.err,
              ContainsRegex("waits [^\n]*all_reduce float32 \\{6\\} sum  \\(train.lua:12"));
}

// The folder `silent` is on a disk that does not answer.
Ended RunOnASilentDisk(const std::string& code, int num_ranks) {
  const Folder folder;
  folder.Write("silent/train.jsonl", "{}\n");
  Command command =
      RankScript(folder, code, {"--nproc", absl::StrCat(num_ranks), "--timeout", "2"});
  command.environment["LD_PRELOAD"] = DataFile("tests/support/silent_disk.so");
  return RunOne(command);
}

// No rank is in a collective, so nothing else would end the run.
TEST(Watchdog, ADiskThatDoesNotAnswerIsNamed) {
  for (const int num_ranks : {1, 2}) {
    SCOPED_TRACE(num_ranks);
    const Ended ended =
        RunOnASilentDisk("require('lockstep.data').source('silent/train.jsonl')\n", num_ranks);

    EXPECT_EQ(ended.exit_code, kHang);
    EXPECT_THAT(ended.err, ContainsRegex("^lockstep: (rank [01]: )?has waited 2\\.[0-9] s to open "
                                         "[^ ]*silent/train.jsonl: its disk or server does not "
                                         "answer; the limit that --timeout sets is 2 s"));
  }
}

// The others are patient with work that one rank does alone, but not with its disk.
TEST(Watchdog, ADiskThatDoesNotAnswerEndsWorkAlone) {
  const Ended ended = RunOnASilentDisk(
      "local function read() require('lockstep.data').source('silent/train.jsonl') end\n"
      "if rank == 0 then require('lockstep.run').alone(read) end\n"
      "dist.barrier()\n",
      2);

  EXPECT_EQ(ended.exit_code, kHang);
  EXPECT_THAT(ended.err, ContainsRegex("^lockstep: rank 0: has waited 2\\.[0-9] s to open "));
  EXPECT_THAT(ended.err, ContainsRegex("\n  rank 0: [^\n]*\n    waits 2\\.[0-9] s  to open "
                                       "[^ ]*silent/train.jsonl"));
}

TEST(Watchdog, AStoppedProcessDoesNotAnswer) {
  const Folder folder;
  Child run(RankScript(folder,
                       absl::StrCat(kSayPid, "if rank == 1 then forever() end dist.barrier()"),
                       {"--nproc", "2", "--timeout", "2"}));
  const std::vector<pid_t> pids = PidsOf(run, 2);

  kill(pids[1], SIGSTOP);
  const Ended ended = run.Wait();

  EXPECT_EQ(ended.exit_code, kHang);
  EXPECT_THAT(ended.err, HasSubstr(absl::StrCat("\n  rank 1: no answer: it is dead, stopped, or ",
                                                "its machine is lost (process ", pids[1], " on ")));
  EXPECT_THAT(ended.err, HasSubstr("ended the ranks that were still running: 1\n"));
  ExpectGone(pids);
}

TEST(Watchdog, ARankWhoseScriptHasEndedIsSaidToHave) {
  const Ended ended = RunScript(
      "if rank == 2 then return end\n"
      "if rank == 1 then wait_for_end(2) forever() end\n"
      "wait_for_end(2) dist.recv(torch.ones(1), 1)\n",
      3);

  EXPECT_EQ(ended.exit_code, kHang);
  ExpectOneComplaint(ended, "lockstep: rank 0: train.lua:10: recv float32 {1} from ");
  EXPECT_THAT(ended.err, HasSubstr("\n  rank 2: its script had ended\n"));
}

TEST(Watchdog, AGroupThatNotAllMembersMakeIsACollectiveToo) {
  const Ended ended =
      RunScript("if rank > 0 then forever() end dist.group { ranks = { 0, 1 } }", 3);

  EXPECT_EQ(ended.exit_code, kHang) << ended.err;
  EXPECT_THAT(ended.err, ContainsRegex("rank 0: in a collective at train.lua:8\n    waits [^\n]*"
                                       "ranks 0, 1 #0  meeting of the group's ranks"));
}

// Blocks for longer than the limit of RunScript: until another run has hung for that long.
void WaitForTheLimit() {
  EXPECT_EQ(RunScript("if rank == 1 then forever() end dist.barrier()", 2).exit_code, kHang);
}

// Waits in the script for a file, and says so.
constexpr char kWaitForFile[] =
    "local function wait_for(name)\n"
    "  print('waits for ' .. name .. '.')\n"
    "  repeat until io.open(name)\n"
    "end\n";

// No rank waits for another as long as the limit, but each step takes longer.
void ExpectNoHang(const std::string& code, const std::vector<std::string>& files) {
  const Folder folder;
  Child run(RankScript(folder, absl::StrCat(kWaitForFile, code, "print(rank .. ' is done')"),
                       {"--nproc", "2", "--timeout", "2"}));

  for (const std::string& file : files) {
    run.WaitForLine(absl::StrCat("waits for ", file, "."));
    WaitForTheLimit();
    folder.Write(file, "");
  }
  const Ended ended = run.Wait();

  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("1 is done\n"));
}

TEST(Watchdog, LongStepsAreNoHang) {
  ExpectNoHang(
      "for step = 1, 2 do\n"
      "  dist.all_reduce(torch.ones(1))\n"
      "  wait_for('step ' .. step)\n"
      "end\n",
      {"step 1", "step 2"});
}

// Gloo's work of a reduce_scatter never says by itself that it is done.
TEST(Watchdog, AReduceScatterThatIsDoneIsNoHang) {
  ExpectNoHang("dist.functional.reduce_scatter(torch.ones(4))\nwait_for('its work')\n",
               {"its work"});
}

TEST(Watchdog, TheLastRankMayWorkForLongerThanTheLimit) {
  ExpectNoHang("if rank == 1 then wait_for('its work') end\n", {"its work"});
}

TEST(Watchdog, ALabelStaysInItsLine) {
  const Ended ended = RunScript(
      "local guard = require('lockstep.sharding').guard {}\n"
      "guard:check(('\"\\n\\xc3\\xa9'):rep(100), 1)\n"
      "if rank == 1 then forever() end\n"
      "dist.barrier()\n",
      2);

  EXPECT_EQ(ended.exit_code, kHang) << ended.err;
  EXPECT_THAT(
      ended.err,
      ContainsRegex("\n  rank 1: label \"(\\\\\"\\\\n\xc3\xa9){50}...\", in no collective; "));
}

TEST(Watchdog, TagsThatDoNotMatchAreShown) {
  const Ended ended = RunScript(
      "if rank == 0 then dist.send(torch.ones(1), 1, { tag = 4 }) end\n"
      "dist.recv(torch.ones(1), 0, { tag = 5 })\n",
      2);

  EXPECT_EQ(ended.exit_code, kHang) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("send float32 {1} to rank 1, tag 4  (train.lua:8)"));
  EXPECT_THAT(ended.err, HasSubstr("recv float32 {1} from rank 0, tag 5  (train.lua:9)"));
}

// As by a scheduler that suspends a run, and by Ctrl-Z.
TEST(Watchdog, ARunThatWasStoppedGoesOn) {
  const Folder folder;
  Child run(RankScript(folder,
                       absl::StrCat(kSayPid,
                                    "for i = 1, 3000 do dist.all_reduce(torch.ones(1)) end\n"
                                    "print(rank .. ' is done')"),
                       {"--nproc", "2", "--timeout", "2"}));
  const std::vector<pid_t> pids = PidsOf(run, 2);

  for (const pid_t pid : pids) kill(pid, SIGSTOP);
  WaitForTheLimit();
  for (const pid_t pid : pids) kill(pid, SIGCONT);
  const Ended ended = run.Wait();

  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("1 is done\n"));
}

// The ranks agree one batch ahead: between offer and answer lies a step, or, where a loop is left
// by break, all that follows.
TEST(Watchdog, LongStepsInLockstepAreNoHang) {
  ExpectNoHang(
      "local lockstep = require('lockstep.sharding').lockstep\n"
      "local function batches() local left, n = 2, 0\n"
      "  return function() n = n + 1; return n <= left and n or nil end end\n"
      "for n in lockstep(batches()) do wait_for('batch ' .. n) end\n"
      "for _ in lockstep(batches()) do break end\n"
      "wait_for('the end')\n"
      "dist.barrier()\n",
      {"batch 1", "batch 2", "the end"});
}

TEST(Watchdog, ARankMayWorkAloneForLongerThanTheLimit) {
  ExpectNoHang(
      "local run = require 'lockstep.run'\n"
      "if rank == 0 then\n"
      "  local function evaluate(x) wait_for('the evaluation') return x, 2 end\n"
      "  local a, b = run.alone(evaluate, 1)\n"
      "  assert(a == 1 and b == 2)\n"
      "end\n"
      "dist.barrier()\n",
      {"the evaluation"});
}

// Stops a rank, after `line` of its output. Expects that the run ends and says that it gives no
// answer.
void ExpectNoAnswerOf(int stopped, int num_ranks, const std::string& code,
                      const std::string& line = "") {
  const Folder folder;
  Child run(RankScript(folder, absl::StrCat(kSayPid, code),
                       {"--nproc", absl::StrCat(num_ranks), "--timeout", "2"}));
  const std::vector<pid_t> pids = PidsOf(run, num_ranks);
  if (!line.empty()) run.WaitForLine(line);

  kill(pids[static_cast<size_t>(stopped)], SIGSTOP);
  const Ended ended = run.Wait();

  EXPECT_EQ(ended.exit_code, kHang);
  EXPECT_THAT(ended.err, HasSubstr(absl::StrCat("\n  rank ", stopped, ": no answer: ")));
}

TEST(Watchdog, ARankThatIsStoppedInItsWorkAloneEndsTheRun) {
  ExpectNoAnswerOf(0, 2,
                   "local run = require 'lockstep.run'\n"
                   "if rank == 0 then run.alone(forever) end\n"
                   "dist.barrier()");
}

// Ranks that wait in their own work alone would excuse each other for ever.
TEST(Watchdog, ARankThatIsStoppedWhileOthersWaitInWorkAloneEndsTheRun) {
  ExpectNoAnswerOf(1, 3,
                   "local run = require 'lockstep.run'\n"
                   "run.alone(rank == 1 and forever or dist.barrier)");
}

// The state of `best` is what `state_dict` returns, which rank 0 computes as Lua code says.
std::string SaveWith(const std::string& code) {
  return absl::StrCat(
      "local run = require 'lockstep.run'\n"
      "run:state { best = {\n"
      "  state_dict = function() if rank == 0 then ",
      code,
      " end return {} end,\n"
      "  load_state_dict = function() end,\n"
      "} }\n"
      "run:save { step = 1 }\n");
}

TEST(Watchdog, ARankMaySaveForLongerThanTheLimit) {
  ExpectNoHang(SaveWith("wait_for('its disk')"), {"its disk"});
}

TEST(Watchdog, ARankThatIsStoppedAsItSavesEndsTheRun) {
  ExpectNoAnswerOf(0, 2, SaveWith("print('saves') forever()"), "saves");
}

TEST(Watchdog, ACollectiveInWorkAloneIsAHang) {
  const Ended ended = RunScript(
      "local run = require 'lockstep.run'\n"
      "if rank == 1 then forever() end\n"
      "run.alone(dist.barrier)\n",
      2);

  EXPECT_EQ(ended.exit_code, kHang);
  EXPECT_THAT(ended.err, ContainsRegex("^lockstep: rank 0: train.lua:10: barrier of world has "));
}

TEST(Watchdog, AnErrorInWorkAloneHasItsLine) {
  const Ended ended = RunScript(
      "local run = require 'lockstep.run'\n"
      "if rank == 0 then run.alone(function() error('only here') end) end\n"
      "dist.barrier()\n",
      2);

  EXPECT_EQ(ended.exit_code, 1);
  ExpectOneComplaint(ended, "lockstep: rank 0: train.lua:9: only here");
}

TEST(Watchdog, ARankThatLeavesALockstepLoopAloneIsNamed) {
  const Ended ended = RunScript(
      "local it = require('lockstep.sharding').lockstep(function() return 1 end)\n"
      "for _ in it do if rank == 1 and it.steps == 3 then break end end\n"
      "forever()\n",
      2);

  EXPECT_EQ(ended.exit_code, kHang) << ended.err;
  EXPECT_THAT(ended.err, ContainsRegex("rank 0: in a collective at train.lua:9\n    waits [^\n]*"
                                       "world \\(sharding.lockstep\\) #5  agreement"));
  EXPECT_THAT(ended.err, HasSubstr("rank 1: in no collective; the last was at train.lua:9\n"));
}

// No launcher of ours: the rank that finds out tells.
TEST(Watchdog, UnderTorchrunOneRankPrintsTheTable) {
  const Folder folder;
  const std::vector<Ended> ranks = RunRanks(
      2, RankScript(folder, "if rank == 0 then forever() end dist.barrier()", {"--timeout", "2"}),
      TorchrunEnvironment);

  EXPECT_EQ(ranks[0].exit_code, kHang);
  EXPECT_EQ(ranks[1].exit_code, kHang);
  EXPECT_THAT(ranks[1].err, ContainsRegex("^lockstep: rank 1: train.lua:8: barrier of world has "
                                          "waited 2\\.[0-9] s [^\n]*\n  rank 0: in no collective"));
  EXPECT_THAT(ranks[1].err, HasSubstr("\n  rank 1: in a collective at train.lua:8\n"));
  EXPECT_THAT(ranks[0].err, HasSubstr("lockstep: rank 0 ends, because rank 1: train.lua:8: "));
  EXPECT_THAT(ranks[0].err, Not(HasSubstr("in a collective")));
}

// Rank 0 hosts the store: it waits until rank 1 has gathered there what all were doing, rank 2's
// silence too.
TEST(Watchdog, UnderTorchrunTheHostOfTheStoreWaitsForTheTable) {
  const Folder folder;
  const ReservedPort port;
  std::vector<Child> ranks =
      StartRanks(3,
                 RankScript(folder,
                            "if rank == 2 then C.kill(C.getpid(), 19) end\n"
                            "if rank == 0 then while true do end end dist.barrier()",
                            {"--timeout", "2"}),
                 port, TorchrunEnvironment);

  const Ended one = ranks[1].Wait();
  const Ended zero = ranks[0].Wait();

  EXPECT_EQ(zero.exit_code, kHang);
  EXPECT_EQ(one.exit_code, kHang);
  EXPECT_EQ(Count(one.err, "lockstep: "), 1) << one.err;
  EXPECT_THAT(one.err, HasSubstr("\n  rank 0: in no collective"));
  EXPECT_THAT(one.err, HasSubstr("\n  rank 1: in a collective at train.lua:9\n"));
  EXPECT_THAT(one.err, HasSubstr("\n  rank 2: no answer: it is dead, stopped"));
}

// The host of the store does not answer: the other ranks end anyway, and each reports why.
TEST(Watchdog, UnderTorchrunRanksEndWhereTheHostOfTheStoreIsStopped) {
  const Folder folder;
  const ReservedPort port;
  std::vector<Child> ranks = StartRanks(
      3,
      RankScript(folder, absl::StrCat(kSayPid, "if rank == 0 then forever() end dist.barrier()"),
                 {"--timeout", "2"}),
      port, TorchrunEnvironment);
  PidOf(ranks[0], 0);

  ranks[0].Send(SIGSTOP);

  for (const size_t rank : {1, 2}) {
    const Ended ended = ranks[rank].Wait();
    EXPECT_EQ(ended.exit_code, kHang);
    EXPECT_EQ(Count(ended.err, "lockstep: "), 1) << ended.err;
    EXPECT_THAT(ended.err,
                ContainsRegex(absl::StrCat("^lockstep: rank ", rank,
                                           ": train.lua:9: barrier of world has waited [0-9]")));
    EXPECT_THAT(ended.err, ContainsRegex(absl::StrCat("\n  rank ", rank, ": in a collective at ",
                                                      "[^\n]*\n    waits ")));
    EXPECT_THAT(ended.err, HasSubstr(absl::StrCat("store at 127.0.0.1:", port.number(),
                                                  " does not answer: the process that hosts it")));
  }
}

TEST(Watchdog, UnderTorchrunAnErrorIsPrintedWhereTheHostOfTheStoreIsStopped) {
  const Folder folder;
  const ReservedPort port;
  std::vector<Child> ranks = StartRanks(2,
                                        RankScript(folder,
                                                   absl::StrCat(kSayPid,
                                                                "if rank == 0 then forever() end\n"
                                                                "repeat until io.open('go')\n"
                                                                "error('only here')"),
                                                   {}),
                                        port, TorchrunEnvironment);
  const pid_t host = PidOf(ranks[0], 0);

  ranks[0].Send(SIGSTOP);
  siginfo_t stopped;
  ASSERT_EQ(waitid(P_PID, host, &stopped, WSTOPPED | WNOWAIT), 0);
  folder.Write("go", "");
  const Ended ended = ranks[1].Wait();

  EXPECT_EQ(ended.exit_code, kHang);
  EXPECT_THAT(ended.err, ContainsRegex("^lockstep: rank 1: train.lua:[0-9]+: only here\n"));
  EXPECT_THAT(ended.err, HasSubstr("\nnote: the run's store at 127.0.0.1:"));
}

// The launcher hosts the store. The ranks' reports appear when the launcher goes on.
TEST(Watchdog, AStoppedLauncherKeepsNoRankAlive) {
  const Folder folder;
  Child run(RankScript(folder,
                       absl::StrCat(kSayPid, "if rank == 1 then forever() end dist.barrier()"),
                       {"--nproc", "2", "--timeout", "2"}));
  const std::vector<pid_t> pids = PidsOf(run, 2);

  run.Send(SIGSTOP);
  ASSERT_TRUE(WaitUntilGone(pids[0]));
  run.Send(SIGCONT);
  const Ended ended = run.Wait();

  EXPECT_EQ(ended.exit_code, kHang);
  EXPECT_THAT(ended.err, ContainsRegex("has waited [0-9]"));
  EXPECT_THAT(ended.err, HasSubstr("\n  rank 0: in a collective at train.lua:"));
  EXPECT_THAT(ended.err, HasSubstr("\n  rank 1: in no collective"));
  EXPECT_THAT(ended.err, Not(HasSubstr("was killed by")));
  ExpectGone(pids);
}

}  // namespace
}  // namespace lockstep::tests
