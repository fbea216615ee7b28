#include "driver/text/unicode/unicode.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "gtest/gtest.h"

namespace lockstep::text {
namespace {

TEST(Unicode, ClassesAreThoseOfUnicode16) {
  // The counts that tokenizers 0.23.3 sees of \p{L}, \p{N}, \p{M} and \s.
  int letters = 0, numbers = 0, marks = 0, spaces = 0;
  for (char32_t code = 0; code < kEndOfUnicode; ++code) {
    letters += IsIn(kLetters, ClassOf(code));
    numbers += IsIn(kNumbers, ClassOf(code));
    marks += IsIn(kMarks, ClassOf(code));
    spaces += IsIn(kSpaces, ClassOf(code));
  }
  EXPECT_EQ(letters, 141028);
  EXPECT_EQ(numbers, 1911);
  EXPECT_EQ(marks, 2501);
  EXPECT_EQ(spaces, 25);
}

TEST(Unicode, EveryCharacterSurvivesUtf8) {
  for (char32_t code = 0; code < kEndOfUnicode; ++code) {
    if (code >= 0xD800 && code < 0xE000) continue;
    std::string text;
    AppendUtf8(code, text);
    ASSERT_EQ(FirstInvalidUtf8(text), std::nullopt) << static_cast<uint32_t>(code);
    ASSERT_EQ(CharAt(text.data()).code, code);
    ASSERT_EQ(CharAt(text.data()).size, text.size());
    ASSERT_EQ(CharBefore(text.data(), text.data() + text.size()).code, code);
    for (size_t size = 1; size < text.size(); ++size) {
      ASSERT_EQ(FirstInvalidUtf8(std::string_view(text).substr(0, size)), size_t{0});
      ASSERT_EQ(CompleteUtf8Prefix("a" + text.substr(0, size)), size_t{1});
    }
    ASSERT_EQ(CompleteUtf8Prefix(text), text.size());
  }
}

TEST(Unicode, BytesThatAreNotUtf8AreReplacedAsUnicodeRecommends) {
  const std::string r = "\xEF\xBF\xBD";
  const std::pair<std::string, std::string> cases[] = {
      {"ab", "ab"},
      {"\xFF", r},
      {"\xE4\xBD", r},  // one for a beginning that is not completed
      {"\xE4\xBDz", r + "z"},
      {"\xE4\xBD\xE4\xBD\xA0", r + "\xE4\xBD\xA0"},
      {"\xED\xA0\x80", r + r + r},  // a surrogate
      {"\xC0\xAF", r + r},          // overlong
      {"\xF0\x9F\x98", r},
      {"\xF4\x90\x80\x80", r + r + r + r},  // beyond Unicode
      {"\x80\x80", r + r},
  };
  for (const auto& [bytes, text] : cases) EXPECT_EQ(ReplaceInvalidUtf8(bytes), text);
}

TEST(Unicode, NormalFormsAreThoseOfAnnex15) {
  struct Case {
    const char *text, *c, *d, *kc, *kd;
  };
  const Case cases[] = {
      {"e\xCC\x81", "\xC3\xA9", "e\xCC\x81", "\xC3\xA9", "e\xCC\x81"},
      {"\xE2\x84\xAB", "\xC3\x85", "A\xCC\x8A", "\xC3\x85", "A\xCC\x8A"},  // Angstrom sign
      // s, dot above, dot below: sorted, then composed
      {"s\xCC\x87\xCC\xA3", "\xE1\xB9\xA9", "s\xCC\xA3\xCC\x87", "\xE1\xB9\xA9",
       "s\xCC\xA3\xCC\x87"},
      {"\xEF\xAC\x81", "\xEF\xAC\x81", "\xEF\xAC\x81", "fi", "fi"},  // a ligature
      {"\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8", "\xEA\xB0\x81",
       "\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8", "\xEA\xB0\x81",
       "\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8"},  // Hangul
      {"\xE0\xA5\x98", "\xE0\xA4\x95\xE0\xA4\xBC", "\xE0\xA4\x95\xE0\xA4\xBC",
       "\xE0\xA4\x95\xE0\xA4\xBC", "\xE0\xA4\x95\xE0\xA4\xBC"},  // never composed
      {"", "", "", "", ""},
  };
  for (const Case& one : cases) {
    EXPECT_EQ(Normalize(one.text, NormalForm::kC), one.c);
    EXPECT_EQ(Normalize(one.text, NormalForm::kD), one.d);
    EXPECT_EQ(Normalize(one.text, NormalForm::kKC), one.kc);
    EXPECT_EQ(Normalize(one.text, NormalForm::kKD), one.kd);
  }
}

TEST(Unicode, TextThatIsSurelyNormalDoesNotChange) {
  using enum NormalForm;
  for (const NormalForm form : {kC, kD, kKC, kKD}) {
    for (char32_t code = 0; code < kEndOfUnicode; ++code) {
      if (code >= 0xD800 && code < 0xE000) continue;
      std::string text = "a";
      AppendUtf8(code, text);
      if (!IsSurelyNormal(text, form)) continue;
      ASSERT_EQ(Normalize(text, form), text) << static_cast<uint32_t>(code);
    }
  }
}

TEST(Unicode, LowerCaseIsThatOfEachCharacter) {
  EXPECT_EQ(LowerCase("ABC xyz 1"), "abc xyz 1");
  EXPECT_EQ(LowerCase("\xC3\x89\xCE\xA3\xC4\xB0"), "\xC3\xA9\xCF\x83i\xCC\x87");
  EXPECT_EQ(LowerCase("\xF0\x90\xB5\x90"), "\xF0\x90\xB5\xB0");  // Garay, of Unicode 16.0
}

}  // namespace
}  // namespace lockstep::text
