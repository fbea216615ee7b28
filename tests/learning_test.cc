// scripts/grpo.lua, scripts/dpo.lua, scripts/kto.lua and scripts/reward.lua, shortened: what they
// learn, and the same bits after a kill.

#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/program.h"
#include "tests/support/ranks.h"

namespace lockstep::tests {
namespace {

using ::testing::Contains;
using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pointwise;
using ::testing::SizeIs;

Command Train(const Folder& folder, const std::string& script, int nproc,
              const std::vector<std::string>& settings) {
  std::vector<std::string> arguments = {"--nproc", absl::StrCat(nproc), "--run-dir", "out",
                                        DataFile("scripts/" + script)};
  for (const std::string& setting : settings) arguments.insert(arguments.end(), {"--set", setting});
  Command command = Lockstep(folder, arguments);
  command.timeout = absl::Seconds(400);
  return command;
}

// Returns a field of the steps, or of an event, in their order.
std::vector<double> Values(const Folder& folder, const std::string& field,
                           const std::string& event = "") {
  std::vector<double> values;
  for (const auto& object : ReadMetrics(folder, "out/metrics.jsonl")) {
    const auto it = object.find("event");
    if ((it == object.end() ? "" : it->second) != event || object.count(field) == 0) continue;
    values.push_back(strtod(object.at(field).c_str(), nullptr));
  }
  return values;
}

double Mean(const std::vector<double>& values, size_t from, size_t count) {
  double sum = 0;
  for (size_t i = from; i < from + count; ++i) sum += values.at(i);
  return sum / static_cast<double>(count);
}

// Runs the script twice, and kills all ranks of the second run after step 4. Expects that it goes
// on to the same values of `field` and the same bytes of `file`.
void ExpectSameBitsAfterAKill(const std::string& script, const std::vector<std::string>& settings,
                              const std::string& field, const std::string& file) {
  const Folder undisturbed, killed;
  ASSERT_EQ(RunOne(Train(undisturbed, script, 2, settings)).exit_code, 0);
  Child child(Train(killed, script, 2, settings));
  child.WaitForLine("step 4/");
  child.Send(SIGKILL);
  child.Wait();

  const Ended ended = RunOne(Train(killed, script, 2, settings));

  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("resumed"));
  EXPECT_EQ(Values(killed, field), Values(undisturbed, field));
  EXPECT_EQ(killed.Read(file), undisturbed.Read(file));
}

// --- grpo.lua ------------------------------------------------------------------------------------

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

// --- dpo.lua -------------------------------------------------------------------------------------

TEST(Dpo, ASmallModelComesToPreferTheChosenAnswers) {
  for (const char* parallel : {"parallel.tp=2", "parallel=fully_shard"}) {
    SCOPED_TRACE(parallel);
    const Folder folder;

    const Ended ended = RunOne(
        Train(folder, "dpo.lua", 2, {"steps=60", "lora.r=0", "lr=0.002", "held_out=64", parallel}));

    ASSERT_EQ(ended.exit_code, 0) << ended.err;
    const std::vector<double> losses = Values(folder, "loss"),
                              accuracies = Values(folder, "accuracy");
    ASSERT_THAT(losses, SizeIs(60));
    EXPECT_NEAR(losses[0], 0.6931471805599453, 1e-5);  // the reference is the model itself
    EXPECT_LT(Mean(losses, 50, 10), 0.65);
    EXPECT_GT(Mean(accuracies, 50, 10), 0.65);
    EXPECT_GT(Values(folder, "accuracy", "held out").at(0), 0.6);
  }
}

// --- kto.lua -------------------------------------------------------------------------------------

std::string Labelled(const std::string& prompt, const std::string& completion, bool label) {
  return absl::StrCat(R"({"prompt": ")", prompt, R"(", "completion": ")", completion,
                      R"(", "label": )", label ? "true" : "false", "}\n");
}

// Words that are written backwards are good, and words that are repeated are not.
TEST(Kto, ASmallModelLearnsFromLabels) {
  const Folder folder;
  std::string lines;
  for (int i = 0; i < 200; ++i) {
    std::string word;
    for (int k = 0; k < 3 + i % 4; ++k) {
      word.push_back(static_cast<char>('a' + (i * 7 + k * (3 + i % 5)) % 26));
    }
    const bool is_good = i % 2 == 0;
    lines += Labelled(word, is_good ? std::string(word.rbegin(), word.rend()) : word, is_good);
  }
  folder.Write("answers.jsonl", lines);

  const Ended ended = RunOne(Train(folder, "kto.lua", 2,
                                   {"data=answers.jsonl", "steps=25", "answers_per_step=16",
                                    "held_out=40", "lr=0.004", "warmup_steps=2", "loss.beta=0.5"}));

  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("desirable 100"));
  const std::vector<double> losses = Values(folder, "loss");
  ASSERT_THAT(losses, SizeIs(25));
  EXPECT_NEAR(losses[0], 0.5, 1e-6);  // the reference is the model itself
  EXPECT_LT(Mean(losses, 20, 5), 0.35);
  EXPECT_GT(Values(folder, "accuracy", "held out").at(0), 0.65);
  EXPECT_THAT(folder.List("out/result"), Contains("adapter_model.safetensors"));
}

// Some neighbours have one prompt, and seq_len makes several micro-batches.
TEST(Kto, TheLossesAreThoseOfTrlsFormulaOnAnyNumberOfRanks) {
  const Folder reference;
  const std::vector<std::string> words = {"abc", "hello", "abc", "xyz", "lockst"};
  std::string lines;
  for (size_t i = 0; i < 24; ++i) {
    const std::string& word = words[i * i % words.size()];
    const bool is_good = i % 8 < 5;
    lines += Labelled(word, is_good ? std::string(word.rbegin(), word.rend()) : word, is_good);
  }
  reference.Write("answers.jsonl", lines);
  Command command = Lockstep(
      reference, {"--nproc", "1", "--run-dir", "out", DataFile("tests/scripts/kto_reference.lua"),
                  "--", "model", "answers.jsonl", "5", "7", "0.003"});
  command.timeout = absl::Seconds(400);
  const Ended ended = RunOne(command);
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const std::vector<double> losses = Values(reference, "loss"), kl = Values(reference, "kl");
  ASSERT_THAT(losses, SizeIs(5));
  EXPECT_GT(*std::max_element(kl.begin(), kl.end()), 0.1);
  EXPECT_GT(std::count(kl.begin() + 1, kl.end(), 0), 0);  // clamped

  const std::vector<std::pair<int, std::string>> grids = {
      {1, "parallel.tp=1"}, {2, "parallel.tp=1"}, {2, "parallel.tp=2"}};
  for (const auto& [nproc, parallel] : grids) {
    SCOPED_TRACE(absl::StrCat(nproc, " ", parallel));
    const Folder folder;
    const Ended trained =
        RunOne(Train(folder, "kto.lua", nproc,
                     {parallel, absl::StrCat("model=", reference.path(), "/model"),
                      absl::StrCat("data=", reference.path(), "/answers.jsonl"), "steps=5",
                      "answers_per_step=7", "held_out=0", "lora.r=0", "lr=0.003",
                      "schedule=constant", "warmup_steps=0", "loss.beta=0.5",
                      "loss.desirable_weight=1.2", "loss.undesirable_weight=0.7", "seq_len=20"}));
    ASSERT_EQ(trained.exit_code, 0) << trained.err;
    EXPECT_THAT(trained.out, HasSubstr("desirable 15"));
    EXPECT_THAT(trained.out, HasSubstr("warning: wanted answers weigh 2.86 times the others"));
    EXPECT_THAT(Values(folder, "loss"), Pointwise(DoubleNear(1e-5), losses));
    EXPECT_THAT(Values(folder, "kl"), Pointwise(DoubleNear(1e-4), kl));
  }
}

TEST(Kto, KilledAndResumedItEndsWithTheSameBits) {
  ExpectSameBitsAfterAKill("kto.lua",
                           {"steps=8", "save_every=2", "answers_per_step=7", "held_out=8"}, "loss",
                           "out/result/adapter_model.safetensors");
}

// Two of three rows have a picture, in each form. A step has micro-batches with pictures and of
// text.
TEST(Preferences, PromptsWithPicturesHaveTheSameLossesOnAnyNumberOfRanks) {
  const Folder made;
  const Ended model = RunOne(Lockstep(
      made, {"--nproc", "1", "--run-dir", "made", DataFile("tests/scripts/tiny_vision_model.lua"),
             DataFile("driver/text/testdata/qwen2.json"), DataFile("driver/images/testdata"),
             made.path()}));
  ASSERT_EQ(model.exit_code, 0) << model.err;
  // 11 of 12 pairs are learnt. kto.lua holds both answers of a pair out, and learns 22.
  struct Case {
    std::string script, per_step, parallel;
    size_t steps;
  };
  const std::vector<Case> cases = {{"dpo.lua", "pairs_per_step=5", "parallel=data_parallel", 3},
                                   {"reward.lua", "pairs_per_step=5", "parallel=fully_shard", 3},
                                   {"kto.lua", "answers_per_step=11", "parallel.tp=2", 2}};
  for (const auto& [script, per_step, parallel, steps] : cases) {
    SCOPED_TRACE(script);
    std::vector<double> losses;
    for (const int nproc : {1, 2}) {
      const Folder folder;
      std::vector<std::string> settings = {absl::StrCat("model=", made.path(), "/model"),
                                           absl::StrCat("data=", made.path(), "/pairs.jsonl"),
                                           "epochs=1",
                                           "held_out=1",
                                           "lr=0.01",
                                           "warmup_steps=0",
                                           "seq_len=150",
                                           per_step};
      if (nproc == 2) settings.push_back(parallel);

      const Ended ended = RunOne(Train(folder, script, nproc, settings));

      ASSERT_EQ(ended.exit_code, 0) << ended.err;
      if (nproc == 1) losses = Values(folder, "loss");
      EXPECT_THAT(losses, SizeIs(steps));
      EXPECT_THAT(Values(folder, "loss"), Pointwise(DoubleNear(1e-4), losses));
    }
  }
}

TEST(Reward, AModelComesToScoreTheChosenAnswersHigher) {
  const Folder folder;

  const Ended ended =
      RunOne(Train(folder, "reward.lua", 2, {"steps=60", "lr=0.004", "held_out=64"}));

  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const std::vector<double> losses = Values(folder, "loss");
  ASSERT_THAT(losses, SizeIs(60));
  EXPECT_LT(Mean(losses, 50, 10), Mean(losses, 0, 10) - 0.01);
  EXPECT_GT(Mean(Values(folder, "accuracy"), 50, 10), 0.55);
}

TEST(Reward, AdaptersOfASplitModelAreMergedIntoItsFolder) {
  std::vector<double> first;
  for (const char* parallel : {"parallel=data_parallel", "parallel=fully_shard", "parallel.tp=2"}) {
    SCOPED_TRACE(parallel);
    const Folder folder;

    const Ended ended =
        RunOne(Train(folder, "reward.lua", 2, {"steps=4", "held_out=64", "lora.r=8", parallel}));

    ASSERT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_THAT(folder.Read("out/result/config.json"), HasSubstr("ForSequenceClassification"));
    const std::vector<double> losses = Values(folder, "loss");
    ASSERT_THAT(losses, SizeIs(4));
    if (first.empty()) first = losses;
    for (size_t step = 0; step < 4; ++step) EXPECT_NEAR(losses[step], first[step], 1e-4);
  }
}

std::string Message(const std::string& role, const std::string& content) {
  return absl::StrCat(R"({"role": ")", role, R"(", "content": ")", content, R"("})");
}

std::string Pair(const std::string& prompt, const std::string& chosen,
                 const std::string& rejected) {
  return absl::StrCat(prompt.empty() ? "{" : absl::StrCat(R"({"prompt": [)", prompt, "], "),
                      R"("chosen": [)", chosen, R"(], "rejected": [)", rejected, "]}\n");
}

// A token is a letter or a mark; the assistant's words end with a mark that counts, too.
TEST(Dpo, EveryAnswerBehindThePromptIsScored) {
  const std::string user = Message("user", "u"), earlier = Message("assistant", "earlier");
  const std::string prompt = absl::StrCat(user, ", ", earlier, ", ", user);
  const std::string chosen = absl::StrCat(Message("assistant", "abc"), ", ", user, ", ",
                                          Message("assistant", "de"));  // 4 + 3
  const std::string rejected = Message("assistant", "f");               // 2
  const std::string explicit_prompt = Pair(prompt, chosen, rejected);
  const std::string shared_prompt =
      Pair("", absl::StrCat(prompt, ", ", chosen), absl::StrCat(prompt, ", ", rejected));
  for (const std::string& line : {explicit_prompt, shared_prompt}) {
    const Folder folder;
    std::string lines;
    for (int i = 0; i < 10; ++i) lines += line;
    folder.Write("pairs.jsonl", lines);

    const Ended ended = RunOne(Train(
        folder, "dpo.lua", 2, {"data=pairs.jsonl", "steps=1", "pairs_per_step=2", "held_out=2"}));

    ASSERT_EQ(ended.exit_code, 0) << ended.err;
    // The prompt has 3 + 9 + 3 tokens; the chosen completion 5 + 3 + 4, the rejected one 3.
    EXPECT_THAT(folder.Read("out/reference.safetensors"), HasSubstr(" sigmoid 450 90 "));
  }
}

// 12 pairs to learn from, 4 in a step.
TEST(Dpo, LengthInEpochsScheduleAndDropoutAreSettings) {
  const Folder folder;
  std::string lines;
  for (int i = 0; i < 14; ++i) {
    lines += Pair(Message("user", "ab"), Message("assistant", "ba"), Message("assistant", "bb"));
  }
  folder.Write("pairs.jsonl", lines);

  const Ended ended =
      RunOne(Train(folder, "dpo.lua", 2,
                   {"data=pairs.jsonl", "epochs=2", "pairs_per_step=4", "held_out=2", "lr=0.001",
                    "schedule=constant", "warmup_steps=0", "lora.dropout=0.1",
                    "loss.variant=robust", "loss.label_smoothing=0.1", "loss.rpo_alpha=0.5"}));

  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(Values(folder, "lr"), ElementsAre(0.001, 0.001, 0.001, 0.001, 0.001, 0.001));
}

TEST(Dpo, LossesWithoutAReferenceScoreNothingBefore) {
  for (const char* variant : {"orpo", "cpo", "simpo"}) {
    SCOPED_TRACE(variant);
    const Folder folder;
    const Ended ended = RunOne(Train(folder, "dpo.lua", 2,
                                     {"steps=30", "lora.r=0", "lr=0.002", "held_out=64",
                                      "loss.beta=2", absl::StrCat("loss.variant=", variant)}));
    ASSERT_EQ(ended.exit_code, 0) << ended.err;
    const std::vector<double> losses = Values(folder, "loss");
    EXPECT_LT(Mean(losses, 20, 10), losses[0]);
    EXPECT_THAT(folder.List("out"), Not(Contains("reference.safetensors")));
  }
}

TEST(Dpo, PairsThatTeachNothingOrAreTooLongAreSkippedAndListed) {
  const Folder folder;
  const std::string good =
      Pair(Message("user", "ab"), Message("assistant", "ba"), Message("assistant", "bb"));
  std::string lines;
  for (int i = 0; i < 6; ++i) lines += good;
  lines += Pair(Message("user", "ab"), Message("assistant", "ba"), Message("assistant", "ba"));
  lines += Pair(Message("user", "abcdefghijklmnop"), Message("assistant", "ba"),
                Message("assistant", "bb"));
  folder.Write("pairs.jsonl", lines);

  const std::vector<std::string> settings = {"data=pairs.jsonl", "steps=2", "pairs_per_step=4",
                                             "held_out=1", "seq_len=40"};
  const Ended refused = RunOne(Train(folder, "dpo.lua", 1, settings));
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("2 pairs are skipped, 1 of them longer than seq_len = 40. "
                                     "Raise seq_len, or --set on_cut=drop:\n"));

  std::vector<std::string> dropping = settings;
  dropping.push_back("on_cut=drop");
  const Ended ended = RunOne(Train(folder, "dpo.lua", 2, dropping));

  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("2 pairs are skipped, 1 of them longer than seq_len = 40:\n"
                                   "  pairs.jsonl, line 7: chosen and rejected are the same\n"
                                   "  pairs.jsonl, line 8: 22 + 22 tokens\n"));
  EXPECT_THAT(Values(folder, "skipped"), ElementsAre(2, 2));
  EXPECT_THAT(ended.out, HasSubstr("skipped 2"));
  const Ended none =
      RunOne(Train(folder, "dpo.lua", 1, {"data=pairs.jsonl", "seq_len=7", "on_cut=drop"}));
  EXPECT_THAT(none.err, HasSubstr("pairs.jsonl has no pair to learn from"));
}

TEST(Dpo, APairThatIsNoneIsNamedWithFileAndLine) {
  const std::string user = Message("user", "u"), good = Message("assistant", "a");
  for (const auto& [line, message] :
       {std::pair{std::string(R"({"prompt": 5, "chosen": "a", "rejected": "b"})"),
                  R"("prompt" must be a list of messages)"},
        std::pair{Pair(user, Message("gpt", "a"), good),
                  R"(message 1 of "chosen" has the unknown role "gpt")"},
        std::pair{Pair(user, good, user),
                  R"("rejected" must end with a message of the assistant)"}}) {
    const Folder folder;
    folder.Write("pairs.jsonl", Pair(user, good, Message("assistant", "b")) + line);
    const Ended ended = RunOne(Train(folder, "dpo.lua", 1, {"data=pairs.jsonl", "held_out=0"}));
    EXPECT_EQ(ended.exit_code, 1);
    EXPECT_THAT(ended.err, HasSubstr("pairs.jsonl, line 2: "));
    EXPECT_THAT(ended.err, HasSubstr(message));
  }
}

TEST(Dpo, KilledAndResumedItEndsWithTheSameBits) {
  for (const char* variant : {"sigmoid", "ipo"}) {
    SCOPED_TRACE(variant);
    ExpectSameBitsAfterAKill("dpo.lua",
                             {"steps=8", "save_every=2", "pairs_per_step=7", "held_out=8",
                              absl::StrCat("loss.variant=", variant)},
                             "loss", "out/result/adapter_model.safetensors");
  }
}

// --- Grids ---------------------------------------------------------------------------------------

// The answers of grpo.lua are those of one rank, too.
TEST(Grids, EachScriptLearnsWhatItLearnsOnOneRank) {
  const Folder start;
  std::string pairs;
  for (const char* word : {"abc", "lockstep", "de", "xyz", "hello", "rank", "tensor"}) {
    const std::string given = word, backwards(given.rbegin(), given.rend());
    pairs +=
        Pair(Message("user", given), Message("assistant", backwards), Message("assistant", given));
  }
  start.Write("pairs.jsonl", pairs);
  ASSERT_EQ(RunOne(Train(start, "grpo.lua", 1,
                         {"steps=1", "warm_steps=5", "problems_per_step=1", "group_size=2"}))
                .exit_code,
            0);
  const std::vector<std::string> common = {absl::StrCat("model=", start.path(), "/out/start"),
                                           "precision=float64", "lr=0.002", "steps=2",
                                           "parallel.sequence=true"};
  const std::vector<std::string> preferences = {absl::StrCat("data=", start.path(), "/pairs.jsonl"),
                                                "held_out=2", "seq_len=60", "lora.r=0"};
  struct Case {
    std::string script;
    std::vector<std::string> settings;
    std::vector<std::string> grids;
  };
  for (Case c : {Case{"dpo.lua", {"pairs_per_step=3"}, {"parallel.cp=2"}},
                 Case{"kto.lua", {"answers_per_step=5"}, {"parallel.cp=2"}},
                 Case{"reward.lua", {"pairs_per_step=3"}, {"parallel.cp=2"}},
                 Case{"grpo.lua",
                      {"problems_per_step=3", "group_size=3"},
                      {"parallel.tp=2", "parallel=fully_shard"}}}) {
    c.settings.insert(c.settings.end(), common.begin(), common.end());
    if (c.script != "grpo.lua") {
      c.settings.insert(c.settings.end(), preferences.begin(), preferences.end());
    }
    const Folder alone;
    const Ended one = RunOne(Train(alone, c.script, 1, c.settings));
    ASSERT_EQ(one.exit_code, 0) << one.err;
    ASSERT_THAT(Values(alone, "loss"), SizeIs(2));
    for (const std::string& grid : c.grids) {
      SCOPED_TRACE(absl::StrCat(c.script, " ", grid));
      const Folder folder;
      std::vector<std::string> settings = c.settings;
      settings.push_back(grid);
      const Ended ended = RunOne(Train(folder, c.script, 2, settings));
      ASSERT_EQ(ended.exit_code, 0) << ended.err;
      for (const char* field : {"loss", "grad_norm", "reward"}) {
        EXPECT_THAT(Values(folder, field), Pointwise(DoubleNear(1e-6), Values(alone, field)))
            << field;
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::tests
