// The two hangs that the libraries began with: stopped with an error without them, and gone with
// them. And ranks that wait for each other in different groups: nothing is wrong with either call,
// so no comparison finds it, and a run would wait for the whole --timeout.

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/program.h"
#include "tests/support/rank_script.h"
#include "tests/support/ranks.h"

namespace lockstep::tests {
namespace {

using ::testing::ContainsRegex;
using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pointwise;
using ::testing::StartsWith;

constexpr int kWatchdogSeconds = 5;

Ended RunScript(const std::string& script, const std::string& mode, int nproc = 2) {
  return RunOne(Lockstep(
      Folder(), {"--nproc", std::to_string(nproc), "--timeout", std::to_string(kWatchdogSeconds),
                 DataFile("tests/scripts/" + script), mode}));
}

// No rank reaches the end. In PyTorch this is a hang. Here ranks compare the collectives that a
// script calls, and the error names each rank's collective.
void ExpectStopped(const Ended& ended, const std::string& script) {
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.out, Not(HasSubstr("is done")));
  EXPECT_THAT(ended.err, ContainsRegex("^lockstep: rank [01]: [^ ]*" + script +
                                       ":[0-9]+: the ranks call different collectives, each as its "
                                       "collective [0-9]+ of world:\n"
                                       "  rank 0: all_[^\n]* \\([^\n]*" +
                                       script +
                                       ":[0-9]+\\)\n"
                                       "  rank 1: [^\n]*(all_|barrier)"));
  EXPECT_EQ(Count("\n" + ended.err, "\nlockstep: "), 1) << ended.err;
}

// Reads rank 0's line of each step: "step 1: loss 2.155845 over 49 tokens".
std::vector<double> LossesOf(const Ended& ended) {
  std::vector<double> losses;
  for (absl::string_view line : absl::StrSplit(ended.out, '\n')) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
    double loss = 0;
    if (words.size() > 3 && words[0] == "step" && absl::SimpleAtod(words[3], &loss))
      losses.push_back(loss);
  }
  return losses;
}

TEST(MultimodalHang, RanksThatTakeTheirSamplesAsTheyComeGatherOtherLayersAndAreStopped) {
  const Ended ended = RunScript("multimodal.lua", "round_robin");

  ExpectStopped(ended, "multimodal.lua");
  EXPECT_THAT(ended.out, HasSubstr("rank 0 gathered vision.1 with language.1"));
  EXPECT_THAT(LossesOf(ended), IsEmpty());
}

TEST(MultimodalHang, PreparedMicroBatchesTrainOnWithTheLossesOfOneRank) {
  const Ended alone = RunScript("multimodal.lua", "prepared", 1);
  const Ended ended = RunScript("multimodal.lua", "prepared");

  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  for (const char* rank : {"rank 0", "rank 1"}) {
    EXPECT_THAT(ended.out, HasSubstr(std::string(rank) +
                                     " is done: 5 micro-batches a step, 10 through the vision "
                                     "tower, 0 gathers mixed\n"));
  }
  const std::vector<double> losses = LossesOf(alone);
  ASSERT_EQ(losses.size(), 5u) << alone.out << alone.err;
  EXPECT_LT(losses.back(), losses.front() / 2);
  EXPECT_THAT(LossesOf(ended), Pointwise(DoubleNear(1e-5), losses));
}

// 338 and 327 batches, as in prime-rl's issue 2515.
TEST(ValidationHang, APlainLoopOverShardsOfUnequalLengthIsStopped) {
  const Ended ended = RunScript("validation.lua", "plain");

  ExpectStopped(ended, "validation.lua");
}

// "rank 0 is done: <what>; loss 4.123456789012345" -> what, and the loss.
std::pair<std::string, double> ResultOf(const Ended& ended, int rank) {
  const std::string start = absl::StrCat("rank ", rank, " is done: ");
  for (absl::string_view line : absl::StrSplit(ended.out, '\n')) {
    const size_t at = line.find(start);
    if (at == absl::string_view::npos) continue;
    const std::vector<std::string> parts =
        absl::StrSplit(line.substr(at + start.size()), "; loss ");
    double loss = 0;
    if (parts.size() == 2 && absl::SimpleAtod(parts[1], &loss)) return {parts[0], loss};
  }
  ADD_FAILURE() << ended.out << ended.err;
  return {"", 0};
}

TEST(ValidationHang, UntilFirstLeavesTheLoopAtTheShortestRank) {
  const Ended ended = RunScript("validation.lua", "until_first");
  const auto [one_rank, loss] = ResultOf(RunScript("validation.lua", "until_first", 1), 0);

  EXPECT_EQ(one_rank, "327 steps of 654 batches, 0 dropped, 0 filled");
  for (const int rank : {0, 1}) {
    const auto [what, loss_of_two] = ResultOf(ended, rank);
    EXPECT_EQ(what, rank == 0 ? "327 steps of 327 batches, 11 dropped, 0 filled"
                              : "327 steps of 327 batches, 0 dropped, 0 filled");
    EXPECT_NEAR(loss_of_two, loss, 1e-12);
  }
}

TEST(ValidationHang, UntilLastSeesEveryBatchOnce) {
  const Ended ended = RunScript("validation.lua", "until_last");
  const auto [one_rank, loss] = ResultOf(RunScript("validation.lua", "until_last", 1), 0);

  EXPECT_EQ(one_rank, "338 steps of 665 batches, 0 dropped, 0 filled");
  for (const int rank : {0, 1}) {
    const auto [what, loss_of_two] = ResultOf(ended, rank);
    EXPECT_EQ(what, rank == 0 ? "338 steps of 338 batches, 0 dropped, 0 filled"
                              : "338 steps of 327 batches, 0 dropped, 11 filled");
    EXPECT_NEAR(loss_of_two, loss, 1e-12);
  }
}

// --- Waits in different groups -------------------------------------------------------------------

// Line 8 of each script.
constexpr char kModules[] =
    "local mimo, nn, sharding = require 'lockstep.mimo', require 'lockstep.nn', "
    "require 'lockstep.sharding'\n";

struct Case {
  const char* name;
  std::string code;  // from line 9
  std::string waits;
};

class Deadlock : public testing::TestWithParam<Case> {};

TEST_P(Deadlock, NamesBothRanksAndLinesLongBeforeTheTimeout) {
  const Ended ended = RunOne(RankScript(Folder(), absl::StrCat(kModules, GetParam().code),
                                        {"--nproc", "2", "--timeout", "60"}));

  EXPECT_EQ(ended.exit_code, 3) << ended.err;
  EXPECT_EQ(Count(ended.err, "lockstep: "), 1) << ended.err;
  EXPECT_THAT(ended.err, StartsWith("lockstep: rank 0 waits for rank 1 in " + GetParam().waits));
  EXPECT_THAT(ended.err, HasSubstr("\n  rank 0: in a collective at train.lua:"));
  EXPECT_THAT(ended.err, HasSubstr("\n  rank 1: in a collective at train.lua:"));
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, Deadlock,
    testing::Values(
        // prime-rl's issue 2515: the ranks validate until their own data ends, without
        // sharding.lockstep. Rank 1 is done first and reduces its loss.
        Case{"AValidationThatOneRankLeaves",
             "local model = sharding.fully_shard(nn.Linear(4, 4))\n"
             "for _ = 1, 3 - rank do\n"
             "torch.no_grad(model, torch.ones(1, 4))\n"
             "end\n"
             "dist.all_reduce(torch.ones(2))",
             "agreement of world (sharding.fully_shard) (train.lua:11); rank 1 waits for rank 0 in "
             "all_reduce float32 {2} sum of world (train.lua:13);"},
        Case{"ASecondModel",
             "local models = {}\n"
             "for i = 1, 2 do models[i] = sharding.fully_shard(nn.Linear(4, 4)) end\n"
             "models[1 + rank](torch.ones(1, 4))",
             "agreement of world (sharding.fully_shard) (train.lua:11); rank 1 waits for rank 0 in "
             "agreement of world (sharding.fully_shard) (train.lua:11);"},
        Case{"ABarrier",
             "local model = sharding.fully_shard(nn.Linear(4, 4))\n"
             "if rank == 1 then dist.barrier() end\n"
             "model(torch.ones(1, 4))",
             "agreement of world (sharding.fully_shard) (train.lua:11); rank 1 waits for rank 0 in "
             "barrier of world (train.lua:10);"},
        Case{"TheFirstBucketOfReplicas",
             "local replicas = sharding.data_parallel(nn.Linear(4, 4))\n"
             "local model = sharding.fully_shard(nn.Linear(4, 4))\n"
             "local loss = replicas(torch.ones(1, 4)):sum()\n"
             "if rank == 1 then model(torch.ones(1, 4)) end\n"
             "loss:backward()",
             "all_reduce float32 {20} sum of world (train.lua:13); rank 1 waits for rank 0 in "
             "agreement of world (sharding.fully_shard) (train.lua:12);"},
        Case{
            "ABridge",
            "local topology = mimo.topology { modules = { { name = 'vision' }, "
            "{ name = 'language', first_rank = 1 } } }\n"
            "local bridge = mimo.bridge { topology = topology, from = 'vision', to = 'language' }\n"
            "if rank == 0 then dist.barrier() end\n"
            "bridge(rank == 0 and torch.ones(1, 2) or nil)",
            "barrier of world (train.lua:11); rank 1 waits for rank 0 in "},
        Case{"AMessage",
             "local model = sharding.fully_shard(nn.Linear(4, 4))\n"
             "if rank == 0 then dist.recv(torch.ones(2), 1) end\n"
             "model(torch.ones(1, 4))",
             "recv float32 {2} from rank 1, tag 0 of world (train.lua:10); rank 1 waits for rank 0 "
             "in agreement of world (sharding.fully_shard) (train.lua:11);"},
        Case{"AModelThatOneRankMakes",
             "if rank == 0 then dist.barrier() end\n"
             "sharding.fully_shard(nn.Linear(4, 4))",
             "barrier of world (train.lua:9); rank 1 waits for rank 0 in meeting of the group's "
             "ranks of world (sharding.fully_shard) (train.lua:10);"}),
    [](const testing::TestParamInfo<Case>& info) { return info.param.name; });

// Rank 2 is late for the call of ranks 0 and 1 for longer than a wait is trusted.
TEST(Deadlock, RanksThatWaitForOneThatComputesGoOn) {
  const Folder folder;
  Child run(RankScript(folder,
                       absl::StrCat(kModules,
                                    "local model = sharding.fully_shard(nn.Linear(4, 4))\n"
                                    "for round = 1, 2 do\n"
                                    "  if rank == 2 then\n"
                                    "    print('waits ' .. round)\n"
                                    "    repeat until io.open('go ' .. round)\n"
                                    "  end\n"
                                    "  if round == 1 then dist.barrier() end\n"
                                    "  model(torch.ones(1, 4))\n"
                                    "end\n"
                                    "print(rank .. ' is done')"),
                       {"--nproc", "3", "--timeout", "60"}));

  for (const char* round : {"1", "2"}) {
    run.WaitForLine(absl::StrCat("waits ", round));
    // Until another run has waited for two seconds.
    RunOne(RankScript(Folder(), "if rank == 1 then forever() end dist.barrier()",
                      {"--nproc", "2", "--timeout", "2"}));
    folder.Write(absl::StrCat("go ", round), "");
  }
  const Ended ended = run.Wait();

  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("0 is done\n"));
}

}  // namespace
}  // namespace lockstep::tests
