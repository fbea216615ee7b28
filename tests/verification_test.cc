// Runs whose replicas compare bits: --verify-every N.

#include <string>
#include <vector>

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

// From step 3 on, rank 1 computes values that are a little wrong.
constexpr char kFaulty[] = R"(
local dist, nn, optim = require "lockstep.distributed", require "lockstep.nn", require "lockstep.optim"
local run, sharding, torch = require "lockstep.run", require "lockstep.sharding", require "lockstep.torch"
local config = run.config { faulty = true, parallel = "data_parallel", wrapped = true }
torch.manual_seed(1)
local Net = nn.Module:subclass("Net")
function Net:init() self.fc1, self.fc2 = nn.Linear(4, 8), nn.Linear(8, 1) end
function Net:forward(x)
  x = torch.tanh(self.fc1(x))
  if config.faulty and dist.rank() == 1 and run.progress.step >= 3 then x = x * 1.00001 end
  return self.fc2(x)
end
local model = config.wrapped and sharding.parallel(Net(), config.parallel) or Net()
local optimizer = optim.AdamW(model:parameters(), { lr = 1e-2 })
run:state({ model = model, optimizer = optimizer }, { every = 1, keep = 20 })
run:resume()
for step in run:steps(function() return torch.randn({ 8, 4 }) end, 10) do
  model(torch.randn({ 8, 4 })):square():mean():backward()
  optimizer:step()
  optimizer:zero_grad()
end
print("done")
)";

Ended Train(const Folder& folder, const std::string& nproc,
            const std::vector<std::string>& options) {
  folder.Write("train.lua", kFaulty);
  std::vector<std::string> all = {"--nproc", nproc, "--run-dir", "out", "train.lua"};
  all.insert(all.end(), options.begin(), options.end());
  return RunOne(Lockstep(folder, all));
}

TEST(VerificationRuns, WithoutItAFaultyRankSpoilsTheWeightsOfAll) {
  const Folder folder;

  const Ended ended = Train(folder, "3", {});

  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(Count(ended.out, "done"), 3);
}

class Verification : public ::testing::TestWithParam<const char*> {};

TEST_P(Verification, NamesAFaultyRankBeforeTheNextSaveAndTheRunGoesOnWithoutIt) {
  const Folder folder;
  const std::string parallel = std::string("parallel=") + GetParam();

  const Ended ended =
      Train(folder, "3", {"--verify-every", "2", "--restarts", "3", "--set", parallel});

  EXPECT_EQ(ended.exit_code, 75) << ended.err;
  EXPECT_THAT(ended.err, ContainsRegex("lockstep: step 4: rank 1 \\([^)]+\\) computed other bits "
                                       "than the 2 other replicas: output 1, the gradient of "));
  EXPECT_THAT(ended.err, HasSubstr("states that were saved after step 2, where all agreed last"));
  EXPECT_EQ(Count(ended.err, "computed other bits"), 1) << ended.err;
  EXPECT_THAT(ended.err, Not(HasSubstr("; restart ")));
  EXPECT_EQ(folder.List("out/state").back(), "step-00000004");  // not the one after step 4

  const Ended again =
      Train(folder, "3", {"--verify-every", "2", "--set", parallel, "--set", "faulty=false"});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.err + again.out, HasSubstr("after 4 steps"));
  EXPECT_EQ(Count(again.out, "done"), 3);
}

TEST_P(Verification, TwoReplicasNameBoth) {
  const Folder folder;

  const Ended ended =
      Train(folder, "2", {"--verify-every", "4", "--set", std::string("parallel=") + GetParam()});

  EXPECT_EQ(ended.exit_code, 75) << ended.err;
  EXPECT_THAT(ended.err,
              ContainsRegex("lockstep: step 4: rank 0 \\([^)]+\\) and rank 1 \\([^)]+\\) computed "
                            "different bits, and no majority says which are right: "));
}

INSTANTIATE_TEST_SUITE_P(All, Verification, ::testing::Values("data_parallel", "fully_shard"),
                         [](const auto& info) { return info.param; });

TEST(VerificationRuns, NeedsReplicas) {
  const Folder folder;
  const Ended alone = Train(folder, "1", {"--verify-every", "2"});
  EXPECT_EQ(alone.exit_code, 1);
  ExpectOneComplaint(alone, "--verify-every 2: this model has one replica, and nothing to compare");

  const Folder other;
  const Ended bare = Train(other, "2", {"--verify-every", "2", "--set", "wrapped=false"});
  EXPECT_THAT(bare.err,
              HasSubstr("--verify-every 2 has compared nothing in step 0: the step ran "));
}

}  // namespace
}  // namespace lockstep::tests
