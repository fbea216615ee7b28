#include "driver/files/json_text.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/mutation.h"

namespace lockstep::driver {
namespace {

std::string WrittenDouble(double value) {
  JsonWriter writer(0);
  writer.Double(value);
  return std::move(writer).text();
}

TEST(JsonWriter, HeaderExample) {
  JsonWriter writer(/*indent=*/0);
  writer.StartObject();
  writer.Key("shape");
  writer.StartArray();
  writer.Integer(3);
  writer.EndArray();
  writer.EndObject();
  EXPECT_EQ(std::move(writer).text(), R"({"shape":[3]})");
}

// Writes values of every kind, nested and empty.
std::string Sample(int64_t indent) {
  JsonWriter writer(indent);
  writer.StartArray();
  writer.Null();
  writer.Bool(true);
  writer.StartObject();
  writer.Key("a");
  writer.Integer(std::numeric_limits<int64_t>::min());
  writer.Key("b");
  writer.StartArray();
  writer.EndArray();
  writer.EndObject();
  writer.StartObject();
  writer.EndObject();
  writer.Integer(std::numeric_limits<uint64_t>::max());
  writer.EndArray();
  return std::move(writer).text();
}

TEST(JsonWriter, SeparatesValuesOnOneLine) {
  EXPECT_EQ(Sample(0), R"([null,true,{"a":-9223372036854775808,"b":[]},{},18446744073709551615])");
}

TEST(JsonWriter, IndentsElements) {
  EXPECT_EQ(Sample(2),
            "[\n  null,\n  true,\n  {\n    \"a\": -9223372036854775808,\n    \"b\": []\n  },\n"
            "  {},\n  18446744073709551615\n]");
}

TEST(JsonWriter, WritesDoublesAsPythonDoes) {
  const struct {
    double value;
    const char* text;
  } kCases[] = {{0, "0.0"},
                {-0.0, "-0.0"},
                {0.1, "0.1"},
                {3, "3.0"},
                {1e5, "100000.0"},
                {1e15, "1000000000000000.0"},
                {1e16, "1e+16"},
                {1e22, "1e+22"},
                {1e-4, "0.0001"},
                {-1e-5, "-1e-05"},
                {1.0 / 3, "0.3333333333333333"},
                {5e-324, "5e-324"},
                {-1.7976931348623157e308, "-1.7976931348623157e+308"}};
  for (const auto& c : kCases) EXPECT_EQ(WrittenDouble(c.value), c.text);
}

TEST(JsonWriter, EveryDoubleIsReadBackBitForBit) {
  std::mt19937_64 random = tests::FuzzGenerator();
  for (int i = 0; i < 20000; ++i) {
    const uint64_t bits = random();
    double value = 0;
    std::memcpy(&value, &bits, sizeof(value));
    if (!std::isfinite(value)) continue;
    EXPECT_EQ(nlohmann::json::parse(WrittenDouble(value)).get<double>(), value);
  }
}

TEST(JsonWriter, EscapesTextAndRefusesWhatIsNotUtf8) {
  const std::string text("\" \\ / \n \t \x01 \0 \x7f \xc3\xbc \xf0\x9f\x8e\x89", 23);
  JsonWriter writer(0);
  EXPECT_TRUE(writer.String(text));
  const std::string written = std::move(writer).text();
  EXPECT_EQ(written, "\"\\\" \\\\ / \\n \\t \\u0001 \\u0000 \x7f \xc3\xbc \xf0\x9f\x8e\x89\"");
  EXPECT_EQ(nlohmann::json::parse(written).get<std::string>(), text);

  // A byte alone, an overlong form, a surrogate, a cut character, a code point beyond the last.
  for (const char* wrong : {"\xff", "\xc0\xaf", "\xed\xa0\x80", "a\xc3", "\xf4\x90\x80\x80"}) {
    JsonWriter object(0);
    object.StartObject();
    EXPECT_FALSE(object.Key(wrong));
    EXPECT_FALSE(object.String(wrong));
    object.EndObject();
    EXPECT_EQ(std::move(object).text(), "{}");
  }
}

std::string Mistake(const std::string& text) {
  try {
    EXPECT_TRUE(nlohmann::json::parse(text).is_discarded());  // throws
  } catch (const nlohmann::json::parse_error& error) {
    return JsonMistake(error.what(), error.byte, text);
  } catch (const nlohmann::json::exception& error) {
    return JsonMistake(error.what(), 0, text);
  }
  return "";
}

TEST(JsonMistake, SaysWhatIsWrongAndWhere) {
  const struct {
    const char* text;
    const char* mistake;
  } kCases[] = {
      {"[1 2]",
       "syntax error while parsing array - unexpected number literal; expected ']' (at byte 3 of "
       "5)"},
      {"{\n\"a\" 1}",
       "syntax error while parsing object separator - unexpected number literal; expected ':' "
       "(line 2, at byte 6 of 8)"},
      {"nul", "syntax error while parsing value - invalid literal (at byte 3 of 3)"},
      {"\"\xff\"",
       "syntax error while parsing value - invalid string: ill-formed UTF-8 byte (at byte 1 of 3)"},
      {"1e400", "number overflow parsing '1e400' (at byte 0 of 5)"},
      {" \n", "the text is empty (at byte 2 of 2)"},
      {"", "the text is empty (at byte 0 of 0)"},
  };
  for (const auto& c : kCases) EXPECT_EQ(Mistake(c.text), c.mistake);
}

}  // namespace
}  // namespace lockstep::driver
