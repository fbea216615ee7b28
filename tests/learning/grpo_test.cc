// What scripts/grpo.lua learns, shortened, and the same bits after a kill.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/learning/learning.h"
#include "tests/support/program.h"
#include "tests/support/ranks.h"

namespace lockstep::tests {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

TEST(Grpo, TheMeanRewardOfASmallModelRises) {
  const Folder folder;

  const Ended ended = RunOne(Train(folder, "grpo.lua", 2, {"steps=30", "lr=0.002"}));

  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const std::vector<double> rewards = Values(folder, "reward");
  ASSERT_THAT(rewards, SizeIs(30));
  EXPECT_LT(Mean(rewards, 0, 3), 0.55);
  EXPECT_GT(Mean(rewards, 25, 5), Mean(rewards, 0, 3) + 0.05);
  EXPECT_THAT(folder.Read("out/reward.svg"), HasSubstr("</svg>"));
}

// Every other problem has a picture: without batching, a rank would run the vision tower alone.
TEST(Grpo, RanksAgreeWhoRunsTheVisionTower) {
  std::vector<std::vector<double>> losses;
  for (const char* parallel : {"data_parallel", "fully_shard"}) {
    const Folder folder;
    const Ended ended = RunOne(
        Train(folder, "grpo.lua", 2,
              {"steps=3", "warm_steps=2", "images=true", "problems_per_step=6", "group_size=3",
               "seq_len=40", "advantage_scale=none", absl::StrCat("parallel=", parallel)}));
    ASSERT_EQ(ended.exit_code, 0) << ended.err;
    losses.push_back(Values(folder, "grad_norm"));
    ASSERT_THAT(losses.back(), SizeIs(3));
  }
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(losses[0][i], losses[1][i], 1e-3 * losses[0][i]);
}

TEST(Grpo, AnAdapterStaysNearItsReferenceUnderEachVariant) {
  for (const char* variant : {"grpo", "dapo", "dr_grpo", "prime_rl"}) {
    SCOPED_TRACE(variant);
    const Folder folder;
    const Ended ended =
        RunOne(Train(folder, "grpo.lua", 2,
                     {"steps=2", "warm_steps=2", "problems_per_step=4", "group_size=4", "updates=2",
                      "lora.r=4", "loss.beta=0.1", absl::StrCat("loss.variant=", variant)}));
    ASSERT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_THAT(Values(folder, "loss"), SizeIs(2));
    EXPECT_THAT(folder.List("out/result"), ::testing::Contains("adapter_model.safetensors"));
  }
}

TEST(Grpo, KilledAndResumedItEndsWithTheSameBits) {
  ExpectSameBitsAfterAKill("grpo.lua",
                           {"steps=8", "warm_steps=5", "problems_per_step=4", "save_every=2",
                            "group_size=4", "images=true"},
                           "reward", "out/result/model.safetensors");
}

// The engine is a second program, which sees nothing but the weights that the run exports.
TEST(Grpo, AnotherEngineSamplesTheAnswers) {
  const Folder folder;
  const auto engine = [&](const std::string& groups) {
    Command command = Lockstep(folder, {"--nproc", "1", "--run-dir", "engine",
                                        DataFile("tests/scripts/rollout_engine.lua"), "--",
                                        "weights", "rollouts.jsonl", groups, "4", "4"});
    command.timeout = absl::Seconds(400);
    return command;
  };
  std::vector<Child> children;
  children.emplace_back(Train(folder, "grpo.lua", 2,
                              {"steps=4", "warm_steps=5", "problems_per_step=3", "group_size=4",
                               "max_lag=0", "export=weights", "rollouts=rollouts.jsonl"}));
  children.emplace_back(engine("4"));

  const std::vector<Ended> ended = WaitForAll(children, {"grpo.lua", "the engine"});

  ASSERT_EQ(ended[0].exit_code, 0) << ended[0].err;
  ASSERT_EQ(ended[1].exit_code, 0) << ended[1].err;
  EXPECT_THAT(Values(folder, "reward"), SizeIs(4));
  // The engine scores with the weights that it sampled with: the ratio is 1.
  for (const double kl : Values(folder, "kl")) EXPECT_NEAR(kl, 0, 1e-6);
  // One of each step's 4 groups is left over, and too old for the next.
  EXPECT_EQ(Values(folder, "stale"), (std::vector<double>{0, 1, 2, 3}));
  EXPECT_THAT(folder.List("weights"), SizeIs(1));
}

// The third rank has no problem, and still gathers the weights.
TEST(Grpo, ThereMayBeFewerProblemsThanRanks) {
  for (const char* parallel : {"data_parallel", "fully_shard"}) {
    const Folder folder;
    const Ended ended = RunOne(Train(folder, "grpo.lua", 3,
                                     {"steps=2", "warm_steps=2", "problems_per_step=1",
                                      "group_size=2", absl::StrCat("parallel=", parallel)}));
    ASSERT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_THAT(Values(folder, "loss"), SizeIs(2));
  }
}

TEST(Grpo, AnswersThatAreCutOrSkippedAreCounted) {
  const Folder folder;
  const Ended ended =
      RunOne(Train(folder, "grpo.lua", 2,
                   {"steps=2", "warm_steps=2", "problems_per_step=8", "group_size=4",
                    "max_new_tokens=4", "seq_len=11"}));  // prompts have 6 to 9 tokens

  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  for (const double cut : Values(folder, "cut_answers")) EXPECT_GT(cut, 0);
  for (const double skipped : Values(folder, "skipped_answers")) {
    EXPECT_GT(skipped, 0);
    EXPECT_LT(skipped, 32);
  }
  EXPECT_THAT(Values(folder, "equal_groups"), SizeIs(2));
  EXPECT_THAT(Values(folder, "lr"), ElementsAre(2e-3 / 5, 2 * 2e-3 / 5));
}

TEST(Grpo, StagesNeedAnotherEngine) {
  const Ended ended = RunOne(Train(Folder(), "grpo.lua", 1, {"parallel.pp=2"}));

  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.err, HasSubstr("parallel.pp divides the model into stages, which cannot sample "
                                   "answers: give --set server"));
}

// The second reward leaves short words out. An answer without a mark is a call of a tool. The tools
// run on one of the ranks that share the weights.
TEST(Grpo, SeveralRewardsAndToolsAreInTheStepLine) {
  const Folder folder;
  folder.Write("words.lua", R"(
local base = require "reverse_words"
local M = { write_model = base.write_model }
function M.new(...)
  local task = base.new(...)
  task.size = 12
  task.tools = { { name = "hint", fn = function(arguments, problem)
    if arguments.n == 3 then error("no hint", 0) end
    return problem.answer:sub(1, 1)
  end } }
  function task.parse(written)
    return written:find "<" and {} or { { name = "hint", arguments = { n = #written } } }, written
  end
  task.rewards = { { name = "letters", fn = task.reward }, { name = "calls", weight = 0.5,
    fn = function(problem, _, answer) return #problem.answer > 3 and answer.tool_calls or nil end } }
  return task
end
return M
)");
  const std::string script = DataFile("scripts/grpo.lua");
  const std::string scripts = script.substr(0, script.rfind('/'));
  folder.Write("train.lua", absl::StrCat("package.path = '", scripts, "/?.lua;' .. package.path\n",
                                         "dofile '", script, "'\n"));
  std::vector<std::string> arguments = {"--nproc", "2", "--run-dir", "out", "train.lua"};
  for (const char* setting :
       {"task=words", "epochs=2", "warm_steps=2", "problems_per_step=4", "group_size=4",
        "max_new_tokens=40", "max_turns=2", "reward_weights=1,2", "parallel.tp=2"}) {
    arguments.insert(arguments.end(), {"--set", setting});
  }
  Command command = Lockstep(folder, arguments);
  command.timeout = absl::Seconds(400);

  const Ended ended = RunOne(command);

  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(Values(folder, "rewards/letters/mean"), SizeIs(6));  // 2 epochs of 12 problems
  EXPECT_THAT(Values(folder, "rewards/calls/std"), SizeIs(6));
  EXPECT_GT(Mean(Values(folder, "tool_calls"), 0, 6), 0);
  EXPECT_THAT(ended.out, HasSubstr("rewards/calls/mean"));
}

TEST(Grpo, WithoutAnAdapterThereIsNoReference) {
  const Ended ended = RunOne(Train(Folder(), "grpo.lua", 1, {"loss.beta=0.1"}));

  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.err, HasSubstr("loss.beta needs an adapter: --set lora.r=16"));
}

}  // namespace
}  // namespace lockstep::tests
