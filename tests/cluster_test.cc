// Ranks that a cluster's launcher starts: torchrun, Kubernetes, srun. No launcher of ours watches
// them.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

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

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

constexpr char kSumOfRanks[] =
    "local sum = dist.all_reduce(torch.tensor({rank})):item()\n"
    "print(('rank %d of %d: %d'):format(rank, dist.world_size(), sum))\n";

std::vector<Ended> RunAsRanks(int num_ranks, const std::string& code,
                              const RankEnvironment& environment,
                              const std::vector<std::string>& options = {}) {
  const Folder folder;
  return RunRanks(num_ranks, RankScript(folder, code, options), environment);
}

// srun's, on one machine. Its MASTER_PORT would come from the job's number: another job here may
// have the same.
Variables SlurmEnvironment(int rank, int num_ranks, uint16_t port) {
  return {{"SLURM_PROCID", absl::StrCat(rank)},
          {"SLURM_NTASKS", absl::StrCat(num_ranks)},
          {"SLURM_LOCALID", absl::StrCat(rank)},
          {"SLURM_TASKS_PER_NODE", absl::StrCat(num_ranks)},
          {"SLURM_JOB_NODELIST", "127.0.0.1"},
          {"SLURM_JOB_ID", "4711"},
          {"SLURM_STEP_ID", "0"},
          {"MASTER_PORT", absl::StrCat(port)}};
}

TEST(Cluster, TorchrunsAndSlurmsRanksMeet) {
  for (const RankEnvironment& environment :
       {RankEnvironment(TorchrunEnvironment), RankEnvironment(SlurmEnvironment)}) {
    const std::vector<Ended> ranks = RunAsRanks(3, kSumOfRanks, environment);

    for (size_t rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(ranks[rank].exit_code, 0) << ranks[rank].err;
      EXPECT_EQ(ranks[rank].out, absl::StrCat("rank ", rank, " of 3: 3\n"));
      EXPECT_EQ(ranks[rank].err, "");
    }
  }
}

// An engine that starts failed runs again can leave these alone.
TEST(Cluster, AWrongSettingEndsEveryRankWithTheCodeOfAWrongCommandLine) {
  const std::vector<Ended> ranks = RunAsRanks(2, "require('lockstep.run').config { steps = 1 }",
                                              TorchrunEnvironment, {"--set", "stps=4"});

  for (const Ended& rank : ranks) EXPECT_EQ(rank.exit_code, 2) << rank.err;
}

// Rank 0 hosts the store: it must outlive what the others read there.
TEST(Cluster, EveryRankSaysWhoFailed) {
  const std::vector<Ended> ranks =
      RunAsRanks(3, "if rank == 1 then error('only here') end dist.barrier()", TorchrunEnvironment);

  for (const Ended& rank : ranks) EXPECT_EQ(rank.exit_code, 1);
  EXPECT_THAT(ranks[1].err, ContainsRegex("^lockstep: rank 1: train.lua:[0-9]+: only here\n"));
  for (const size_t rank : {0, 2}) {
    EXPECT_THAT(ranks[rank].err,
                MatchesRegex(absl::StrCat("lockstep: rank ", rank,
                                          " ends, because rank 1: train.lua:[0-9]+: only here\n")));
  }
}

TEST(Cluster, EveryRankReportsTheFailureOfTheStoresHost) {
  const std::vector<Ended> ranks =
      RunAsRanks(3, "if rank == 0 then error('only here') end dist.barrier()", TorchrunEnvironment);

  for (const size_t rank : {1, 2}) {
    EXPECT_EQ(ranks[rank].exit_code, 1);
    EXPECT_THAT(ranks[rank].err, HasSubstr("ends, because rank 0: train.lua:"));
  }
}

TEST(Cluster, ARankThatIsDoneStillEndsWithOneThatFails) {
  const Folder folder;
  const ReservedPort port;
  std::vector<Child> children = StartRanks(2,
                                           RankScript(folder,
                                                      "if rank == 0 then print('done') return end\n"
                                                      "repeat until io.open('go')\n"
                                                      "error('later')",
                                                      {}),
                                           port);

  children[0].WaitForLine("done");
  folder.Write("go", "");
  const std::vector<Ended> ranks = WaitForAll(children, {"rank 0", "rank 1"});

  EXPECT_EQ(ranks[0].exit_code, 1);
  EXPECT_THAT(ranks[0].err, HasSubstr("lockstep: rank 0 ends, because rank 1: "));
  EXPECT_EQ(ranks[1].exit_code, 1);
}

TEST(Cluster, ARankThatReadsFromAPipeEndsWithOneThatFails) {
  const std::vector<Ended> ranks =
      RunAsRanks(2, "if rank == 0 then forever() end error('only here')", TorchrunEnvironment);

  EXPECT_EQ(ranks[0].exit_code, 1);
  EXPECT_THAT(ranks[0].err, HasSubstr("lockstep: rank 0 ends, because rank 1: "));
}

TEST(Cluster, OsExitEndsEveryRankWell) {
  for (const Ended& rank : RunAsRanks(3, "dist.barrier() os.exit(0)", TorchrunEnvironment)) {
    EXPECT_EQ(rank.exit_code, 0);
    EXPECT_EQ(rank.err, "");
  }
}

// Blocks until a process listens there.
void WaitForListener(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  for (bool listens = false; !listens;) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    listens = connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
    close(fd);
  }
}

// Rank 0 is there before rank 1 begins to count its second, however long both take to start.
TEST(Cluster, ARankThatStaysAwayIsNamed) {
  const Folder folder;
  const ReservedPort port;
  const auto start = [&](int rank, const char* timeout) {
    Command command = RankScript(folder, "", {"--timeout", timeout});
    command.environment = TorchrunEnvironment(rank, 3, port.number());
    return Child(command);
  };
  Child zero = start(0, "60");
  WaitForListener(port.number());
  Child one = start(1, "1");

  const Ended ended = one.Wait();

  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.err,
              AllOf(HasSubstr("that have not come: 2 of 0 to 2"), Not(HasSubstr("[c10d]"))));
  EXPECT_EQ(zero.Wait().exit_code, 1);
}

TEST(Cluster, WithoutAStoreTheRankNamesTheAddressItTried) {
  const ReservedPort port;
  Command command = RankScript(Folder(), "", {"--timeout", "1"});
  command.environment = TorchrunEnvironment(1, 2, port.number());

  const Ended ended = RunOne(command);

  EXPECT_EQ(ended.exit_code, 1);
  ExpectOneComplaint(ended,
                     absl::StrCat("cannot reach the run's store at 127.0.0.1:", port.number()));
  EXPECT_THAT(ended.err, Not(HasSubstr("[c10d]")));
}

TEST(Cluster, NprocIsRefusedInARank) {
  Command command = RankScript(Folder(), "", {"--nproc", "2"});
  command.environment = TorchrunEnvironment(0, 2, 1);

  const Ended ended = RunOne(command);

  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_THAT(ended.err, HasSubstr("--nproc starts ranks here, but RANK is set"));
}

TEST(Cluster, ARankWithABrokenEnvironmentNamesTheVariable) {
  Command command = RankScript(Folder(), "", {});
  command.environment = {{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "1"}};

  const Ended ended = RunOne(command);

  EXPECT_EQ(ended.exit_code, 2);
  ExpectOneComplaint(ended, "RANK=\"2\" is not a whole number from 0 to 1");
}

}  // namespace
}  // namespace lockstep::tests
