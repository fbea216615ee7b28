#include "driver/text/training/bpe_trainer.h"

#include <fstream>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace lockstep::text {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

std::shared_ptr<const Tokenizer> Open(const std::string& name) {
  const auto tokenizer = Tokenizer::Load("driver/text/testdata/" + name + ".json");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *tokenizer;
}

TEST(BpeTrainer, HeaderExample) {
  const std::shared_ptr<const Tokenizer> tokenizer = Open("gpt2");
  BpeTrainer trainer(tokenizer);

  const absl::Status status = trainer.Add("abab abab cd");
  const absl::StatusOr<LearnedBpe> learned = trainer.Learn({.num_tokens = 259});

  ASSERT_TRUE(status.ok());
  ASSERT_TRUE(learned.ok());
  // (a, b) occurs four times, then (ab, ab) twice. Among the pairs that occur once, (c, d) has the
  // smaller ids: the space is a later character of the alphabet.
  EXPECT_THAT(learned->merges, ElementsAre(Pair("a", "b"), Pair("ab", "ab"), Pair("c", "d")));
  EXPECT_EQ(learned->tokens.size(), 259u);
  EXPECT_EQ(learned->tokens[257], "abab");
}

TEST(BpeTrainer, MergesAreThoseOfTokenizersWithTheSameTies) {
  const auto expected = nlohmann::json::parse(std::ifstream("driver/text/training/expected.json"));
  ASSERT_EQ(expected["cases"].size(), 6u);
  for (const auto& one : expected["cases"]) {
    BpeTrainer trainer(Open(one["tokenizer"]));
    for (const std::string text : expected["texts"]) ASSERT_TRUE(trainer.Add(text).ok());

    const absl::StatusOr<LearnedBpe> learned =
        trainer.Learn({.num_tokens = one["num_tokens"], .min_frequency = one["min_frequency"]});

    ASSERT_TRUE(learned.ok()) << learned.status();
    EXPECT_EQ(nlohmann::json(learned->tokens), one["tokens"]) << one["tokenizer"];
    EXPECT_EQ(nlohmann::json(learned->merges), one["merges"]) << one["tokenizer"];
  }
}

TEST(BpeTrainer, TheOrderOfTextsDoesNotMatter) {
  const std::vector<std::string> texts = {"one two three", "two three four", "three four five"};
  BpeTrainer forward(Open("qwen2")), backward(Open("qwen2"));
  for (size_t i = 0; i < texts.size(); ++i) {
    ASSERT_TRUE(forward.Add(texts[i]).ok());
    ASSERT_TRUE(backward.Add(texts[texts.size() - 1 - i]).ok());
  }

  EXPECT_EQ(forward.Learn({.num_tokens = 280})->merges,
            backward.Learn({.num_tokens = 280})->merges);
}

TEST(BpeTrainer, WithoutTextsThereAreTheBytes) {
  const absl::StatusOr<LearnedBpe> learned = BpeTrainer(Open("gpt2")).Learn({.num_tokens = 1000});

  ASSERT_TRUE(learned.ok());
  EXPECT_EQ(learned->tokens.size(), 256u);
  EXPECT_EQ(learned->tokens[0], "!");
  EXPECT_TRUE(learned->merges.empty());
}

TEST(BpeTrainer, MistakesAreNamed) {
  BpeTrainer trainer(Open("gpt2"));
  EXPECT_THAT(std::string(trainer.Add("ab\xff").message()),
              HasSubstr("expected UTF-8, got another byte at offset 2 of 3"));
  EXPECT_THAT(std::string(trainer.Learn({.num_tokens = 255}).status().message()),
              HasSubstr("at least 256 tokens, not 255"));
  EXPECT_THAT(
      std::string(trainer.Learn({.num_tokens = 300, .min_frequency = 0}).status().message()),
      HasSubstr("min_frequency must be at least 1, not 0"));
  EXPECT_THAT(std::string(BpeTrainer(Open("llama2")).Learn({.num_tokens = 300}).status().message()),
              HasSubstr("is learnt byte-level, and this one is not"));
}

}  // namespace
}  // namespace lockstep::text
