#include "driver/data/json_array.h"

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::data {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> Elements(const std::string& text) {
  std::vector<std::string> elements;
  const auto begins = FindElements(text);
  if (!begins.ok()) return {std::string(begins.status().message())};
  for (const uint64_t begin : *begins)
    elements.push_back(text.substr(begin, EndOfJson(text, begin) - begin));
  return elements;
}

TEST(JsonArray, ElementsAreFoundWhateverTheirLayout) {
  EXPECT_THAT(Elements("[{\"a\": 1}, {\"a\": [2, {}]}]"),
              ElementsAre("{\"a\": 1}", "{\"a\": [2, {}]}"));
  EXPECT_THAT(Elements("\xef\xbb\xbf\n[\n  {\n    \"a\": 1\n  },\n  [3],4 , null,\r\n\"x\"\n]\n"),
              ElementsAre("{\n    \"a\": 1\n  }", "[3]", "4", "null", "\"x\""));
  EXPECT_THAT(Elements("[]"), IsEmpty());
  EXPECT_THAT(Elements(" [ \n] "), IsEmpty());
}

TEST(JsonArray, BracketsAndQuotesInStringsAreText) {
  EXPECT_THAT(Elements(R"([{"a": "]},[\""}, "\\", {"b\"{": "\\\""}])"),
              ElementsAre(R"({"a": "]},[\""})", R"("\\")", R"({"b\"{": "\\\""})"));
}

TEST(JsonArray, ABrokenArrayIsNamedWithTheElement) {
  for (const auto& [text, problem] : std::vector<std::pair<std::string, std::string>>{
           {"[", "the array has no end: the file ends in element 1 (at byte 2)"},
           {"[1, {\"a\": ", "the array has no end: the file ends in element 2 (at byte 5)"},
           {"[\"a", "the array has no end: the file ends in element 1 (at byte 2)"},
           {"[1\n", "the array has no end: the file ends after element 1 (at byte 4)"},
           {"[1 2]", "the array has no comma after element 1 (at byte 4)"},
           {"[1,]", "the array has no value behind the comma after element 1 (at byte 4)"},
           {"[{}] x", "something follows the array (at byte 6)"},
           {"[1]\n[2]", "something follows the array (at byte 5)"}}) {
    EXPECT_THAT(Elements(text), ElementsAre(problem)) << text;
  }
}

TEST(JsonArray, OnlyTextThatBeginsWithABracketIsOne) {
  EXPECT_TRUE(IsJsonArray("\xef\xbb\xbf [1]"));
  for (const char* text : {"", " ", "{\"a\": []}", "1", "\"[\""}) EXPECT_FALSE(IsJsonArray(text));
}

// Damaged text ends in elements within it, or in an error.
TEST(JsonArray, DamagedTextHasElementsWithinItself) {
  std::mt19937 random(1);
  const std::string whole = R"([{"a": "x\"]", "b": [1, 2]}, [], "text", 3.5, {"c": {"d": null}}])";
  for (int round = 0; round < 20000; ++round) {
    std::string text = whole;
    for (size_t i = random() % 4; i > 0; --i)
      text[random() % text.size()] = "[]{},\"\\ 1"[random() % 9];
    text.resize(random() % (text.size() + 1));
    if (!IsJsonArray(text)) continue;
    const auto begins = FindElements(text);
    if (!begins.ok()) continue;
    for (const uint64_t begin : *begins) {
      const size_t end = EndOfJson(text, begin);
      ASSERT_TRUE(begin < end && end < text.size()) << text;
    }
  }
}

}  // namespace
}  // namespace lockstep::data
