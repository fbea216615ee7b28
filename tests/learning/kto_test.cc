// What scripts/kto.lua learns, shortened, and the same bits after a kill.

#include <algorithm>
#include <string>
#include <utility>
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

using ::testing::Contains;
using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;
using ::testing::SizeIs;

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

}  // namespace
}  // namespace lockstep::tests
