// Files that must be refused. A broken file gives an error that names the place; it never
// gives a crash, and never a tokenizer that leaves out what the file asks for.

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "driver/text/tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace lockstep::text {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Json = nlohmann::json;
using Shared = std::shared_ptr<const Tokenizer>;

constexpr const char* kFamilies[] = {"gpt2",  "llama3", "qwen2", "qwen35",
                                     "o200k", "llama2", "gemma", "unigram"};
constexpr int kMutants = 1000;

std::string ReadText(const std::string& family) {
  std::ifstream file(absl::StrCat("driver/text/testdata/", family, ".json"), std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string ErrorOf(const std::string& text) {
  const absl::StatusOr<Shared> tokenizer = Tokenizer::Parse(text, "a.json");
  return tokenizer.ok() ? "" : std::string(tokenizer.status().message());
}

struct Case {
  const char* family;
  std::function<void(Json&)> change;
  const char* message;  // a part of it
};

TEST(TokenizerErrors, EachNamesItsPlaceInTheFile) {
  const Json unknown_regex = {{"Regex", "\\p{Hann}+"}};
  const Case cases[] = {
      {"gpt2", [](Json& j) { j["extra"] = 1; }, "text: a.json: the file: unknown key \"extra\""},
      {"gpt2", [](Json& j) { j["version"] = "2.0"; }, "version: expected \"1.0\", got \"2.0\""},
      {"gpt2", [](Json& j) { j.erase("model"); }, "the key \"model\" is missing"},
      {"gpt2", [](Json& j) { j["model"]["type"] = "WordPiece"; }, "model: the model \"WordPiece\""},
      {"gpt2", [](Json& j) { j["model"]["dropout"] = 0.1; }, "model.dropout: dropout is not known"},
      {"gpt2", [](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; },
       "model.end_of_word_suffix: is not known"},
      {"gpt2", [](Json& j) { j["model"]["merges"][3] = "a b c"; },
       "model.merges[3]: expected two tokens"},
      {"llama3",
       [](Json& j) {
         j["model"]["merges"][3] = {"a", "zzz"};
       },
       "model.merges[3]: the token \"zzz\" is not in the vocabulary"},
      {"gpt2", [](Json& j) { j["model"]["vocab"]["a"] = -1; },
       "model.vocab[\"a\"]: expected a whole number from 0 to"},
      {"gpt2", [](Json& j) { j["model"]["vocab"]["a"] = 1e3; }, "expected a whole number"},
      {"gpt2", [](Json& j) { j["model"]["vocab"]["new"] = 5; }, "another token has the id 5"},
      {"gpt2", [](Json& j) { j["model"]["unk_token"] = "<none>"; },
       "model.unk_token: \"<none>\" is not in the vocabulary"},
      {"gpt2",
       [](Json& j) {
         j["pre_tokenizer"] = {{"type", "BertPreTokenizer"}};
       },
       "pre_tokenizer: the pre-tokenizer \"BertPreTokenizer\" is not known; known are ByteLevel"},
      {"qwen2", [&](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"] = unknown_regex; },
       "pre_tokenizer.pretokenizers[0].pattern: the expression \"\\p{Hann}+\": "
       "invalid character property name {Hann}"},
      {"qwen2", [](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Contiguous"; },
       "pre_tokenizer.pretokenizers[0]: this expression is split by"},
      {"qwen2",
       [](Json& j) {
         auto& list = j["pre_tokenizer"]["pretokenizers"];
         std::swap(list[0], list[1]);
       },
       "pre_tokenizer.pretokenizers[1]: ByteLevel must be the last"},
      {"qwen2",
       [](Json& j) {
         j["normalizer"] = {{"type", "BertNormalizer"}};
       },
       "normalizer: the normalizer \"BertNormalizer\" is not known"},
      {"llama2", [&](Json& j) { j["normalizer"]["normalizers"][1]["pattern"] = unknown_regex; },
       "normalizer.normalizers[1].pattern: the expression"},
      {"llama2", [](Json& j) { j["decoder"]["decoders"][1]["type"] = "CTC"; },
       "decoder.decoders[1]: the decoder \"CTC\" is not known"},
      {"llama2", [](Json& j) { j["decoder"]["decoders"][3]["start"] = "1"; },
       "decoder.decoders[3].start: expected a whole number"},
      {"llama2",
       [](Json& j) {
         auto& list = j["decoder"]["decoders"];
         std::swap(list[1], list[2]);
       },
       "decoder.decoders[2]: ByteFallback must come before Fuse"},
      {"llama2", [](Json& j) { j["model"]["vocab"].erase("<0x41>"); },
       "model.byte_fallback: needs <0x00> to <0xFF> in the vocabulary; <0x41> is missing"},
      {"llama2", [](Json& j) { j["post_processor"]["special_tokens"]["<s>"]["ids"] = {123456}; },
       "post_processor: adds the id 123456, which no token has"},
      {"llama2", [](Json& j) { j["post_processor"]["single"].erase(1); },
       "post_processor.single: the sequence \"A\" is missing"},
      {"llama2", [](Json& j) { j["post_processor"]["type"] = "BertProcessing"; },
       "post_processor: the post-processor \"BertProcessing\" is not known"},
      {"llama2", [](Json& j) { j["added_tokens"][1]["id"] = 77; },
       "added_tokens[1]: \"<s>\" has the id 77 here and 1 in the model's vocabulary"},
      {"qwen2", [](Json& j) { j["added_tokens"][1]["id"] = j["added_tokens"][0]["id"]; },
       "added_tokens[1].id: another added token has the id"},
      {"qwen2", [](Json& j) { j["added_tokens"][2]["id"] = 5000; },
       "\"<|im_end|>\" has the id 5000 here, but Hugging Face's tokenizers would give it 2002"},
      {"qwen2", [](Json& j) { std::swap(j["added_tokens"][0]["id"], j["added_tokens"][1]["id"]); },
       "would give it"},
      {"unigram", [](Json& j) { j["added_tokens"].erase(3); }, "would give it"},
      {"qwen2", [](Json& j) { j["added_tokens"][1]["content"] = "<|endoftext|>"; },
       "is added twice"},
      {"qwen2", [](Json& j) { j["added_tokens"][0]["id"] = 3; }, "has in the model's vocabulary"},
      {"unigram", [](Json& j) { j["model"]["unk_id"] = 100000; },
       "model.unk_id: expected a whole number from 0 to"},
      {"unigram", [](Json& j) { j["model"]["vocab"][7] = {"x"}; },
       "model.vocab[7]: expected [token, score]"},
      {"unigram", [](Json& j) { j["model"]["vocab"][7] = j["model"]["vocab"][8]; },
       "is listed twice"},
      {"unigram", [](Json& j) { j["model"]["vocab"] = Json::array(); },
       "model.vocab: the vocabulary is empty"},
      {"unigram", [](Json& j) { j["pre_tokenizer"]["prepend_scheme"] = "last"; },
       "pre_tokenizer.prepend_scheme: expected always, first or never, got \"last\""},
      {"unigram",
       [](Json& j) {
         j["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
       },
       "model: Unigram behind the pre-tokenizer ByteLevel is not known"},
  };
  for (const Case& one : cases) {
    Json json = Json::parse(ReadText(one.family));
    one.change(json);
    const std::string error = ErrorOf(json.dump());
    EXPECT_THAT(error, AllOf(StartsWith("text: a.json: "), HasSubstr(one.message)));
  }
}

TEST(TokenizerErrors, AMissingFileIsNamed) {
  const absl::StatusOr<Shared> tokenizer = Tokenizer::Load("/no/such/tokenizer.json");
  EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(std::string(tokenizer.status().message()),
            "text: /no/such/tokenizer.json: cannot be read: No such file or directory");
}

TEST(TokenizerErrors, AnEmptyFileIsNamedAsSuch) {
  for (const char* text : {"", " \n"}) {
    EXPECT_EQ(ErrorOf(text), "text: a.json is empty; expected a tokenizer.json of Hugging Face");
  }
  EXPECT_THAT(ErrorOf("{"), HasSubstr("text: a.json: not valid JSON: "));

  const std::string folder = testing::TempDir() + "/empty";
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/tokenizer.json").close();
  errno = EISDIR;  // of an earlier call
  EXPECT_EQ(
      std::string(Tokenizer::Load(folder).status().message()),
      "text: " + folder + "/tokenizer.json is empty; expected a tokenizer.json of Hugging Face");
  std::filesystem::create_directories(folder + "/a/tokenizer.json");
  EXPECT_EQ(std::string(Tokenizer::Load(folder + "/a").status().message()),
            "text: " + folder + "/a/tokenizer.json: cannot be read: Is a directory");
}

TEST(TokenizerErrors, DeepNestingIsRefused) {
  std::string json = ReadText("gpt2");
  const std::string open = R"({"type":"Sequence","normalizers":[)";
  std::string nested;
  for (int i = 0; i < 5000; ++i) nested += open;
  for (int i = 0; i < 5000; ++i) nested += "]}";
  const std::string key = "\"normalizer\":null";
  const size_t at = json.find(key);
  ASSERT_NE(at, std::string::npos);
  json.replace(at, key.size(), "\"normalizer\":" + nested);

  EXPECT_THAT(ErrorOf(json), HasSubstr("nested too deeply"));
}

// --- Mutants -------------------------------------------------------------------------------------

// A tokenizer that a mutant gave all the same must work.
void Use(const Shared& tokenizer) {
  Encoder encoder(tokenizer);
  std::vector<int32_t> ids;
  const char* texts[] = {"Hello, world! It's 2026.\n\n  \xE4\xBD\xA0\xE5\xA5\xBD <|im_end|>",
                         "antidisestablishmentarianism========================================",
                         "e\xCC\x81 \xE2\x96\x81x <s> <mask>"};
  for (const char* text : texts) encoder.Encode(text, {}, ids).IgnoreError();
  Decode(tokenizer, std::vector<int64_t>(ids.begin(), ids.end()), {}).IgnoreError();
}

// Returns all objects and arrays of `json`, but those of vocabularies and merges, whose number
// would leave nothing of the chance that other places are changed.
void Collect(Json& json, std::vector<Json*>& places) {
  if (!json.is_structured()) return;
  places.push_back(&json);
  if (json.size() > 100) return;
  for (auto& child : json) Collect(child, places);
}

Json RandomValue(std::mt19937& random) {
  const Json values[] = {nullptr,
                         true,
                         -1,
                         3000000000u,
                         1e308,
                         "",
                         "x",
                         Json::array(),
                         Json::object(),
                         "\xF0\x9F\x98\x80",
                         {{"type", "Sequence"}},
                         Json::array({1, "a"})};
  return values[random() % std::size(values)];
}

std::string Mutated(const std::string& family, std::mt19937& random) {
  std::string text = ReadText(family);
  switch (random() % 4) {
    case 0:  // bytes
      for (int i = 0; i < 4; ++i) text[random() % text.size()] = static_cast<char>(random());
      return text;
    case 1:  // cut short
      return text.substr(0, random() % (text.size() - 2));
    case 2: {  // a stretch said twice
      const size_t at = random() % text.size();
      return text.insert(at, text.substr(random() % text.size(), random() % 200));
    }
    default: {  // another value at a random place
      Json json = Json::parse(text);
      std::vector<Json*> places;
      Collect(json, places);
      Json& place = *places[random() % places.size()];
      if (place.is_array()) {
        if (place.empty()) {
          place.push_back(RandomValue(random));
        } else {
          place[random() % place.size()] = RandomValue(random);
        }
      } else if (random() % 4 == 0 || place.empty()) {
        place["unknown"] = RandomValue(random);
      } else {
        auto member = place.begin();
        std::advance(member, random() % place.size());
        if (random() % 4 == 0) {
          place.erase(member);
        } else {
          *member = RandomValue(random);
        }
      }
      return json.dump();
    }
  }
}

TEST(TokenizerErrors, AThousandMutantsGiveAnErrorOrAWorkingTokenizer) {
  std::mt19937 random(20);
  int errors = 0;
  for (int i = 0; i < kMutants; ++i) {
    const std::string text = Mutated(kFamilies[i % std::size(kFamilies)], random);
    const absl::StatusOr<Shared> tokenizer = Tokenizer::Parse(text, "mutant.json");
    if (tokenizer.ok()) {
      Use(*tokenizer);
    } else {
      ++errors;
      EXPECT_THAT(std::string(tokenizer.status().message()), StartsWith("text: mutant.json: "));
    }
  }
  EXPECT_GT(errors, kMutants / 2) << "of " << kMutants << " mutants";
}

}  // namespace
}  // namespace lockstep::text
