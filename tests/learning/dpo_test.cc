// What scripts/dpo.lua learns, shortened, and the same bits after a kill.

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/learning/learning.h"
#include "tests/support/program.h"
#include "tests/support/ranks.h"

namespace lockstep::tests {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

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

}  // namespace
}  // namespace lockstep::tests
