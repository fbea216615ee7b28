#include "driver/text/tokenizer.h"

#include <cstdint>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "driver/text/unicode/unicode.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace lockstep::text {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;
using Shared = std::shared_ptr<const Tokenizer>;

constexpr char kData[] = "driver/text/testdata/";
constexpr const char* kFamilies[] = {"gpt2",  "llama3", "qwen2", "qwen35",
                                     "o200k", "llama2", "gemma", "unigram"};

Json ReadJson(const std::string& name) {
  std::ifstream file(absl::StrCat(kData, name, ".json"));
  return Json::parse(file);
}

Shared Open(const std::string& family) {
  absl::StatusOr<Shared> tokenizer = Tokenizer::Load(absl::StrCat(kData, family, ".json"));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *tokenizer;
}

Shared Parsed(const Json& json) {
  absl::StatusOr<Shared> tokenizer = Tokenizer::Parse(json.dump(), "test");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *tokenizer;
}

std::vector<int32_t> Encoded(Encoder& encoder, const std::string& text, bool special = true) {
  std::vector<int32_t> ids;
  const absl::Status status = encoder.Encode(text, {.add_special_tokens = special}, ids);
  EXPECT_TRUE(status.ok()) << status;
  return ids;
}

std::string Decoded(const Shared& tokenizer, const std::vector<int64_t>& ids, bool skip = false) {
  const absl::StatusOr<std::string> text = Decode(tokenizer, ids, {.skip_special_tokens = skip});
  EXPECT_TRUE(text.ok()) << text.status();
  return text.ok() ? *text : "";
}

// --- Against PyPI's tokenizers 0.23.3 ------------------------------------------------------------

class Families : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, Families, testing::ValuesIn(kFamilies));

TEST_P(Families, IdsAreThoseOfTokenizers) {
  const Json expected = ReadJson("expected");
  const Json& family = expected[GetParam()];
  const Shared tokenizer = Open(GetParam());
  Encoder encoder(tokenizer);

  EXPECT_EQ(tokenizer->size(), family["size"].get<int64_t>());
  for (size_t i = 0; i < expected["texts"].size(); ++i) {
    const auto text = expected["texts"][i].get<std::string>();
    EXPECT_EQ(Encoded(encoder, text), family["ids"][i].get<std::vector<int32_t>>()) << text;
    EXPECT_EQ(Encoded(encoder, text, false), family["plain_ids"][i].get<std::vector<int32_t>>())
        << text;
  }
}

TEST_P(Families, DecodedTextsAreThoseOfTokenizers) {
  const Json family = ReadJson("expected")[GetParam()];
  const Shared tokenizer = Open(GetParam());

  for (size_t i = 0; i < family["ids"].size(); ++i) {
    const auto ids = family["ids"][i].get<std::vector<int64_t>>();
    EXPECT_EQ(Decoded(tokenizer, ids), family["decoded"][i].get<std::string>());
    EXPECT_EQ(Decoded(tokenizer, ids, true), family["decoded_plain"][i].get<std::string>());
  }
}

TEST_P(Families, AStreamGivesTheSameTextInPiecesOfWholeCharacters) {
  const Json family = ReadJson("expected")[GetParam()];
  const Shared tokenizer = Open(GetParam());
  DecodeStream stream(tokenizer, {});

  for (size_t i = 0; i < family["ids"].size(); ++i) {
    std::string text;
    for (const Json& id : family["ids"][i]) {
      const absl::StatusOr<std::string> piece = stream.Push(id.get<int64_t>());
      ASSERT_TRUE(piece.ok()) << piece.status();
      EXPECT_EQ(FirstInvalidUtf8(*piece), std::nullopt);
      text += *piece;
    }
    EXPECT_EQ(text + stream.Finish(), family["decoded"][i].get<std::string>());
  }
}

TEST(Components, EachPartDoesWhatItDoesInTokenizers) {
  const Json components = ReadJson("components");
  for (const Json& one : components["cases"]) {
    const Shared tokenizer = Parsed(one["tokenizer"]);
    Encoder encoder(tokenizer);
    Json parts = one["tokenizer"];
    parts.erase("model");
    for (size_t i = 0; i < components["texts"].size(); ++i) {
      const auto text = components["texts"][i].get<std::string>();
      EXPECT_EQ(Encoded(encoder, text), one["ids"][i].get<std::vector<int32_t>>())
          << "\"" << text << "\" by " << parts;
    }
    for (size_t i = 0; i < components["decoded_ids"].size(); ++i) {
      const auto ids = components["decoded_ids"][i].get<std::vector<int64_t>>();
      EXPECT_EQ(Decoded(tokenizer, ids), one["decoded"][i].get<std::string>())
          << components["decoded_ids"][i] << " by " << parts;
    }
  }
}

TEST(Components, ATextOnWhichAnExpressionTakesTooLongIsAnErrorAndNoIds) {
  Json json = ReadJson("qwen2");
  json["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {{"Regex", "(x+x+)+y"}};
  Encoder encoder(Parsed(json));

  std::vector<int32_t> ids = {7};
  const absl::Status status = encoder.Encode(std::string(100, 'x'), {}, ids);

  EXPECT_EQ(status.message(),
            "text: the expression \"(x+x+)+y\" fails on a text of 100 bytes: "
            "retry-limit-in-match over");
  EXPECT_EQ(ids, std::vector<int32_t>{7});
  EXPECT_FALSE(Encoded(encoder, "xxxxy").empty());
}

// --- The rest ------------------------------------------------------------------------------------

TEST(Tokenizer, HeaderExample) {
  absl::StatusOr<Shared> tokenizer = Tokenizer::Load(absl::StrCat(kData, "qwen2.json"));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  Encoder encoder(*tokenizer);
  std::vector<int32_t> ids;
  ASSERT_TRUE(encoder.Encode("Hello", {.add_special_tokens = true}, ids).ok());

  std::vector<int64_t> answer(ids.begin(), ids.end());
  absl::StatusOr<std::string> text = Decode(*tokenizer, answer, {});

  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text, "Hello");
}

TEST(Tokenizer, AFolderIsItsTokenizerJson) {
  const std::string folder = testing::TempDir();
  std::ofstream(folder + "/tokenizer.json") << ReadJson("gpt2").dump();

  const absl::StatusOr<Shared> tokenizer = Tokenizer::Load(folder);

  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->size(), Open("gpt2")->size());
}

TEST(Tokenizer, TokensAreFoundByTextAndById) {
  const Shared tokenizer = Open("qwen2");
  const std::optional<int32_t> end = tokenizer->Id("<|im_end|>");
  ASSERT_TRUE(end.has_value());

  EXPECT_EQ(tokenizer->Token(*end), "<|im_end|>");
  EXPECT_TRUE(tokenizer->IsSpecial(*end));
  EXPECT_FALSE(tokenizer->IsSpecial(*tokenizer->Id("<think>")));
  EXPECT_FALSE(tokenizer->Id("no such token").has_value());
  EXPECT_FALSE(tokenizer->Token(1'000'000).has_value());
}

TEST(Tokenizer, ManyWordsOverflowTheCacheAndKeepTheirIds) {
  const Shared tokenizer = Open("gpt2");
  Encoder encoder(tokenizer);
  const auto word = [](int i) { return absl::StrCat("w", i * 2654435761u, "x"); };
  for (int i = 0; i < 300'000; ++i) Encoded(encoder, word(i));

  for (int i = 0; i < 1000; ++i) {
    Encoder fresh(tokenizer);
    EXPECT_EQ(Encoded(encoder, word(i)), Encoded(fresh, word(i)));
  }
}

TEST(Tokenizer, BytesThatAreNotUtf8AreRefusedWithTheirPlace) {
  Encoder encoder(Open("gpt2"));
  const std::string bad[] = {"ab\xFF",   "\xC3", "\xED\xA0\x80",    "\xF4\x90\x80\x80",
                             "\xC0\xAF", "\x80", "12345678\xE4\xBD"};
  for (const std::string& text : bad) {
    std::vector<int32_t> ids = {7};
    const absl::Status status = encoder.Encode(text, {}, ids);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("expected UTF-8"));
    EXPECT_EQ(ids, std::vector<int32_t>{7});
  }
}

TEST(Tokenizer, AnIdWithoutATokenAddsNothing) {
  const Shared tokenizer = Open("gpt2");
  Encoder encoder(tokenizer);
  std::vector<int64_t> ids;
  for (const int32_t id : Encoded(encoder, "Hello, \xE4\xBD\xA0!")) {
    ids.push_back(id);
    ids.push_back(1'000'000);  // between the bytes of a character, too
  }
  ids.push_back((int64_t{1} << 32) - 1);

  EXPECT_EQ(Decoded(tokenizer, ids), "Hello, \xE4\xBD\xA0!");
}

TEST(Tokenizer, WhatIsNoIdIsRefused) {
  const Shared tokenizer = Open("gpt2");
  for (const int64_t id : {int64_t{-1}, int64_t{-100}, int64_t{1} << 32}) {
    const absl::StatusOr<std::string> text = Decode(tokenizer, {id}, {});
    ASSERT_FALSE(text.ok());
    EXPECT_THAT(std::string(text.status().message()),
                HasSubstr(absl::StrCat("expected an id from 0 to 2^32 - 1, got ", id)));
  }
}

TEST(Tokenizer, BytesOfACharacterWaitForTheLastOne) {
  const Shared tokenizer = Open("gpt2");
  DecodeStream stream(tokenizer, {});
  const auto byte = [&](const char* character) {
    const absl::StatusOr<std::string> piece = stream.Push(*tokenizer->Id(character));
    EXPECT_TRUE(piece.ok());
    return *piece;
  };
  EXPECT_EQ(byte("a"), "a");
  EXPECT_EQ(byte("\xC3\xA4"), "");  // E4, BD, A0 in the byte-level alphabet
  EXPECT_EQ(byte("\xC2\xBD"), "");
  EXPECT_EQ(byte("\xC5\x82"), "\xE4\xBD\xA0");
  EXPECT_EQ(byte("\xC3\xA4"), "");
  EXPECT_EQ(byte("b"),
            "\xEF\xBF\xBD"
            "b");
  EXPECT_EQ(byte("\xC3\xA4"), "");
  EXPECT_EQ(stream.Finish(), "\xEF\xBF\xBD");
  EXPECT_EQ(stream.Finish(), "");
}

TEST(Tokenizer, UnigramWithoutUnknownTokenRefusesWhatItLacks) {
  const Shared tokenizer = Parsed(Json::parse(
      R"({"model": {"type": "Unigram", "unk_id": null, "vocab": [["a", -1], ["b", -2]]}})"));
  Encoder encoder(tokenizer);
  std::vector<int32_t> ids;

  EXPECT_EQ(Encoded(encoder, "abba"), (std::vector<int32_t>{0, 1, 1, 0}));
  const absl::Status status = encoder.Encode("axb", {}, ids);
  EXPECT_THAT(std::string(status.message()), HasSubstr("has no token"));
  EXPECT_TRUE(ids.empty());
}

TEST(Tokenizer, TruncationAndPaddingAreNotApplied) {
  Json json = ReadJson("gpt2");
  json["truncation"] = {{"max_length", 2}};
  json["padding"] = {{"pad_id", 0}};
  Encoder encoder(Parsed(json)), plain(Open("gpt2"));

  EXPECT_EQ(Encoded(encoder, "one two three four"), Encoded(plain, "one two three four"));
}

}  // namespace
}  // namespace lockstep::text
