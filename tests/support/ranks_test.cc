#include "tests/support/ranks.h"

#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest-spi.h"
#include "gtest/gtest.h"

namespace lockstep::tests {
namespace {

Command Shell(const std::string& script) { return {.argv = {"/bin/sh", "-c", script}}; }

TEST(RunRanks, HeaderExample) {
  const std::vector<Ended> ranks =
      RunRanks(2, {.argv = {"/bin/sh", "-c", "echo rank $RANK of $WORLD_SIZE"}});

  EXPECT_EQ(ranks[0].out, "rank 0 of 2\n");
  EXPECT_EQ(ranks[1].exit_code, 0) << ranks[1].err;
}

TEST(Child, GathersBothStreamsAndTheExitCode) {
  const Ended ended = RunOne(Shell("echo out; echo err >&2; exit 3"));

  EXPECT_EQ(ended.out, "out\n");
  EXPECT_EQ(ended.err, "err\n");
  EXPECT_EQ(ended.exit_code, 3);
}

TEST(Child, TellsADeathBySignalAsAShellDoes) {
  EXPECT_EQ(RunOne(Shell("kill -9 $$")).exit_code, 128 + SIGKILL);
}

TEST(Child, ReadsMoreThanAPipeHolds) {
  EXPECT_EQ(RunOne(Shell("head -c 1000000 /dev/zero; head -c 1000000 /dev/zero >&2")).out.size(),
            1000000U);
}

TEST(Child, RunsInItsFolderWithItsInput) {
  Command command = Shell("pwd; cat");
  command.folder = "/";
  command.input = "typed\n";

  EXPECT_EQ(RunOne(command).out, "/\ntyped\n");
}

TEST(Child, AddsToTheEnvironmentAndTakesLaunchersAway) {
  setenv("RANK", "7", 1);
  setenv("SLURM_PROCID", "7", 1);
  setenv("KEPT", "kept", 1);
  Command command = Shell("echo ${RANK-none} ${SLURM_PROCID-none} $KEPT $ADDED $OMP_NUM_THREADS");
  command.environment = {{"ADDED", "added"}};

  EXPECT_EQ(RunOne(command).out, "none none kept added 1\n");
  unsetenv("RANK");
  unsetenv("SLURM_PROCID");
}

TEST(Child, AProgramThatCannotBeRunFailsTheTestWithTheReason) {
  EXPECT_NONFATAL_FAILURE(RunOne({.argv = {"/no/such/program"}}), "No such file");
}

TEST(Child, WaitsForALineAndSendsSignals) {
  Child child(Shell("trap 'echo asked; exit 5' TERM; echo ready now; sleep 1000 & wait"));

  EXPECT_EQ(child.WaitForLine("ready"), "ready now");
  child.Send(SIGTERM);
  const Ended ended = child.Wait();

  EXPECT_EQ(ended.out, "ready now\nasked\n");
  EXPECT_EQ(ended.exit_code, 5);
}

TEST(Child, ALineThatNeverComesFailsTheTestWithWhatWasPrinted) {
  EXPECT_NONFATAL_FAILURE(Child(Shell("echo something else")).WaitForLine("ready"),
                          "something else");
}

TEST(Child, AWriterToClosedOutputGetsSigpipe) {
  Child child(Shell("echo first; exec cat /dev/zero"));
  child.WaitForLine("first");

  child.CloseOutput();

  EXPECT_EQ(child.Wait().exit_code, 128 + SIGPIPE);
}

// A process and a child that outlives it. Both print their process ids and sleep forever.
Command TwoThatStay() { return Shell("sleep 1000 & echo $$ $!; exec sleep 1000"); }

std::vector<pid_t> ReadPids(const std::string& line) {
  std::vector<pid_t> pids;
  for (const std::string& pid : std::vector<std::string>(absl::StrSplit(line, ' ')))
    pids.push_back(std::stoi(pid));
  return pids;
}

TEST(Child, TheWatchdogKillsTheWholeGroupAndFailsTheTestWithWhatWasPrinted) {
  Ended ended;
  Command command = TwoThatStay();
  command.timeout = absl::Milliseconds(300);

  EXPECT_NONFATAL_FAILURE(ended = RunOne(command), "killed by the watchdog; stdout:");

  EXPECT_EQ(ended.exit_code, 128 + SIGKILL);
  for (const pid_t pid : ReadPids(ended.out)) EXPECT_TRUE(WaitUntilGone(pid)) << pid;
}

TEST(Child, ADestroyedChildLeavesNothingBehind) {
  std::vector<pid_t> pids;
  {
    Child child(TwoThatStay());
    pids = ReadPids(child.WaitForLine(" "));
  }

  ASSERT_EQ(pids.size(), 2U);
  for (const pid_t pid : pids) EXPECT_TRUE(WaitUntilGone(pid)) << pid;
}

TEST(Child, AGrandchildThatHoldsTheOutputDoesNotDelayTheEnd) {
  const Ended ended = RunOne(Shell("sleep 1000 & echo $!"));

  EXPECT_EQ(ended.exit_code, 0);
  EXPECT_TRUE(WaitUntilGone(std::stoi(ended.out)));
}

TEST(WaitUntilGone, IsFalseForAProcessThatStays) {
  EXPECT_FALSE(WaitUntilGone(getpid(), absl::Milliseconds(10)));
}

TEST(RunRanks, GivesEveryRankTheSamePlaceToMeet) {
  const std::vector<Ended> ranks =
      RunRanks(3, Shell("echo $MASTER_ADDR $MASTER_PORT $LOCAL_RANK/$LOCAL_WORLD_SIZE"));

  const std::string place = ranks[0].out.substr(0, ranks[0].out.rfind(' '));
  EXPECT_THAT(place, ::testing::MatchesRegex("127.0.0.1 [0-9]+"));
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(ranks[static_cast<size_t>(rank)].out, absl::StrCat(place, " ", rank, "/3\n"));
  }
}

TEST(RunRanks, AFailingRankIsTheCallersToJudge) {
  const std::vector<Ended> ranks = RunRanks(2, Shell("exit $RANK"));

  EXPECT_EQ(ranks[0].exit_code, 0);
  EXPECT_EQ(ranks[1].exit_code, 1);
}

// Rank 1 ends only when rank 0 has: a wait for one after the other, reading one alone, would block.
TEST(RunRanks, ReadsAllRanksAtOnce) {
  const std::string fifo = absl::StrCat(::testing::TempDir(), "/fifo");
  ASSERT_EQ(RunOne(Shell("rm -f " + fifo + "; mkfifo " + fifo)).exit_code, 0);

  const std::vector<Ended> ranks =
      RunRanks(2, Shell("if [ $RANK = 0 ]; then read x < " + fifo +
                        "; else head -c 300000 /dev/zero; echo > " + fifo + "; fi"));

  EXPECT_EQ(ranks[1].out.size(), 300000U);
}

TEST(RunRanks, TheWatchdogNamesTheRanksThatStillRan) {
  Command command = Shell("echo here is $RANK; [ $RANK = 0 ] || exec sleep 1000");
  command.timeout = absl::Milliseconds(300);

  EXPECT_NONFATAL_FAILURE(RunRanks(3, command),
                          "killed by the watchdog: rank 1, rank 2\n--- rank 0, exit code 0");
}

// Whether a server can listen there; as c10d's does, with SO_REUSEADDR.
bool CanListen(uint16_t port, int reuse) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof(reuse));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  const bool listens =
      bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 && listen(fd, 1) == 0;
  close(fd);
  return listens;
}

TEST(ReservedPort, IsForAServerThatReusesAddressesAlone) {
  const ReservedPort port;

  EXPECT_TRUE(CanListen(port.number(), 1));
  EXPECT_FALSE(CanListen(port.number(), 0));
}

TEST(OnRanks, RunsTheTestAsEachRank) {
  const std::optional<Rank> rank = OnRanks(2);
  if (!rank.has_value()) return;

  EXPECT_EQ(rank->world_size, 2);
  EXPECT_EQ(absl::StrCat(rank->rank), getenv("RANK"));
}

TEST(OnRanks, GathersEachFailureUnderItsRank) {
  if (getenv("LOCKSTEP_TEST_OF_RANKS") != nullptr) {
    EXPECT_EQ(OnRanks(2)->rank, 0);
    return;
  }

  EXPECT_NONFATAL_FAILURE(OnRanks(2), "rank 1 of 2 ended with exit code 1 and printed:");
}

}  // namespace
}  // namespace lockstep::tests
