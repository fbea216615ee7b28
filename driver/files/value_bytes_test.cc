#include "driver/files/value_bytes.h"

#include <random>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/support/mutation.h"

namespace lockstep::driver {
namespace {

constexpr uint64_t kNumTensors = 2;

// Reads all tokens into a text that shows them, or returns the first error.
std::string Show(const std::string& bytes) {
  const std::vector<char> exact(bytes.begin(), bytes.end());  // AddressSanitizer watches its end
  ValueReader reader({exact.data(), exact.size()}, kNumTensors);
  std::string shown;
  while (!reader.done()) {
    const absl::StatusOr<ValueToken> token = reader.Next();
    if (!token.ok()) return std::string(token.status().message());
    shown.push_back(static_cast<char>(token->tag));
    if (token->tag == ValueTag::kNumber) absl::StrAppend(&shown, token->number, " ");
    if (token->tag == ValueTag::kString) absl::StrAppend(&shown, token->text, " ");
    if (token->tag == ValueTag::kTensor || token->tag == ValueTag::kArray)
      absl::StrAppend(&shown, token->count, " ");
    if (token->tag != ValueTag::kNumbers) continue;
    for (uint64_t i = 0; i < token->count; ++i) absl::StrAppend(&shown, token->NumberAt(i), " ");
  }
  return shown;
}

std::string Count(unsigned char count) {
  return std::string(1, static_cast<char>(count)) + std::string(7, '\0');
}

TEST(ValueBytes, HeaderExample) {
  ValueWriter writer;
  writer.StartTable();
  writer.String("step");
  writer.Number(7);
  writer.EndTable();

  ValueReader reader(writer.bytes(), 0);
  EXPECT_EQ(reader.Next()->tag, ValueTag::kTable);
  EXPECT_EQ(reader.Next()->text, "step");
  EXPECT_EQ(reader.Next()->number, 7);
  EXPECT_FALSE(reader.done());
  EXPECT_EQ(reader.Next()->tag, ValueTag::kEnd);
  EXPECT_TRUE(reader.done());
}

// A value of every kind.
std::string Sample() {
  ValueWriter writer;
  writer.StartTable();
  writer.Key(true);
  writer.Nil();
  writer.Key(0.5);
  writer.StartArray(4);
  writer.Bool(false);
  writer.Null();
  writer.Tensor(1);
  writer.StartNumbers(2);
  writer.NextNumber(1);
  writer.NextNumber(-2);
  writer.Key("x");
  writer.StartTable();
  writer.EndTable();
  writer.EndTable();
  return std::move(writer).bytes();
}

// Saved states of earlier versions hold these bytes.
TEST(ValueBytes, TheFormatIsThatOfOldStates) {
  const std::string half("\0\0\0\0\0\0\xe0\x3f", 8), one("\0\0\0\0\0\0\xf0\x3f", 8);
  const std::string minus_two("\0\0\0\0\0\0\0\xc0", 8);
  EXPECT_EQ(Sample(), "{tnd" + half + "[" + Count(4) + "f0x" + Count(1) + "#" + Count(2) + one +
                          minus_two + "s" + Count(1) + "x{}}");
}

TEST(ValueBytes, EveryKindIsReadBack) {
  EXPECT_EQ(Show(Sample()), "{tnd0.5 [4 f0x1 #1 -2 sx {}}");
  EXPECT_EQ(Show("n"), "n");
  EXPECT_EQ(Show("[" + Count(0)), "[0 ");
}

TEST(ValueBytes, KeysHaveOneOrder) {
  EXPECT_LT(ValueKey(false), ValueKey(true));
  EXPECT_LT(ValueKey(true), ValueKey(-1.0));
  EXPECT_LT(ValueKey(2.0), ValueKey(10.0));
  EXPECT_LT(ValueKey(1e300), ValueKey(std::string()));
}

TEST(ValueBytes, WhatIsNoValueIsAnError) {
  const std::string nan("\0\0\0\0\0\0\xf8\x7f", 8), huge(8, '\xff');
  const struct {
    std::string bytes;
    const char* problem;
  } kCases[] = {
      {"", "are cut short"},
      {"?", "are not a value"},
      {"}", "are not a value"},
      {"[" + Count(1) + "}", "are not a value"},
      {"nn", "go on after the value"},
      {"{", "are cut short"},
      {"{t}", "contain an invalid table"},
      {"{nn}", "contain an invalid table"},
      {"{d" + nan + "n}", "contain an invalid table"},
      {"{{}n}", "contain an invalid table"},
      {"[" + Count(1) + "n", "hold an array with a nil"},
      {"s" + huge, "are cut short"},
      {"[" + huge, "are cut short"},
      {"#" + huge, "are cut short"},
      {"#" + Count(2) + nan, "are cut short"},
      {"x" + Count(2), "refer to a tensor that is missing"},
  };
  for (const auto& c : kCases)
    EXPECT_EQ(Show(c.bytes), absl::StrCat("the bytes received ", c.problem));
}

TEST(ValueBytes, TablesAreNestedSixtyFourDeepAtMost) {
  std::string open, close;
  for (int i = 0; i < kMaxValueDepth; ++i) open += "[" + Count(1);
  EXPECT_EQ(Show(open + "t").back(), 't');
  EXPECT_EQ(Show(open + "{}"), "the bytes received nest tables more than 64 deep");
  EXPECT_EQ(Show(open + "[" + Count(1) + "t"), "the bytes received nest tables more than 64 deep");
}

TEST(ValueBytes, EveryPartOfAValueIsCutShort) {
  const std::string sample = Sample();
  for (size_t size = 0; size < sample.size(); ++size)
    EXPECT_EQ(Show(sample.substr(0, size)), "the bytes received are cut short") << size;
}

TEST(ValueBytes, MutatedBytesAreReadOrRefused) {
  std::mt19937_64 random = tests::FuzzGenerator();
  const std::string sample = Sample();
  int refused = 0;
  for (int i = 0; i < 20'000; ++i)
    refused += Show(tests::Mutate(sample, 60, random)).find("the bytes received ") == 0 ? 1 : 0;
  EXPECT_GT(refused, 5'000);
}

}  // namespace
}  // namespace lockstep::driver
