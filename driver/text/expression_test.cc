#include "driver/text/expression.h"

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "driver/text/word_scanner.h"
#include "gtest/gtest.h"

namespace lockstep::text {
namespace {

std::vector<std::string> MatchesOf(const std::string& pattern, const std::string& text) {
  std::vector<std::string> found;
  for (const auto& [begin, end] : Expression(pattern).Matches(text))
    found.push_back(text.substr(begin, end - begin));
  return found;
}

TEST(Expression, FindsEachMatchFromLeftToRight) {
  using Texts = std::vector<std::string>;
  EXPECT_EQ(MatchesOf(R"(\p{N}{1,2}|\p{L}+)", "abc 12345é"), (Texts{"abc", "12", "34", "5", "é"}));
  EXPECT_EQ(MatchesOf(R"(\p{Han}+)", "漢字 kana かな 字"), (Texts{"漢字", "字"}));
  EXPECT_EQ(MatchesOf("x", "abc"), Texts{});
  EXPECT_EQ(MatchesOf("x", ""), Texts{});
}

TEST(Expression, AnEmptyMatchIsNotFoundBehindAnother) {
  using Pairs = std::vector<std::pair<size_t, size_t>>;
  EXPECT_EQ(Expression("(?=[A-Z])").Matches("oneTwoÄ"), (Pairs{{3, 3}}));
  EXPECT_EQ(Expression("a*").Matches("baé"), (Pairs{{0, 0}, {1, 2}, {4, 4}}));
  EXPECT_EQ(Expression("").Matches(""), (Pairs{{0, 0}}));
}

TEST(Expression, AWrongExpressionSaysWhatIsWrong) {
  try {
    Expression expression(R"((\p{L}+)");
    FAIL() << "it must be refused";
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "end pattern with unmatched parenthesis");
  }
}

TEST(Expression, ASearchThatTakesTooLongIsAnError) {
  const Expression expression("(x+x+)+y");
  EXPECT_NO_THROW(expression.Matches("xxxxy"));
  try {
    expression.Matches(std::string(100, 'x'));
    FAIL() << "it must be refused";
  } catch (const SearchError& error) {
    EXPECT_STREQ(error.what(),
                 "the expression \"(x+x+)+y\" fails on a text of 100 bytes: "
                 "retry-limit-in-match over");
  }
}

// Both read the same expressions: what a scanner takes for a word, Oniguruma matches.
TEST(Expression, ScannersOfUsualExpressionsFindTheSameWords) {
  const std::vector<std::string> pieces = {
      "a",  "B",    "é",  "ß", "漢", "1",   "٣", "²", "'s",     "'LL", "'", " ",      "  ",
      "\n", "\r\n", "\t", "/", "-",  "...", "_", "😀", "\u0301", "ǅ",   "ʰ", "\u00a0", "\u3000"};
  std::mt19937 random(7);
  for (const KnownPattern& known : KnownPatterns()) {
    const Expression expression(known.pattern);
    for (int i = 0; i < 2000; ++i) {
      std::string text;
      for (int n = static_cast<int>(random() % 12) + 1; n > 0; --n)
        text += pieces[random() % pieces.size()];
      std::vector<std::pair<size_t, size_t>> words;
      const char* const begin = text.data();
      const char* const end = begin + text.size();
      for (const char* p = begin; p < end;) {
        const char* const next = known.scanner(p, end);
        words.emplace_back(p - begin, next - begin);
        p = next;
      }
      ASSERT_EQ(expression.Matches(text), words) << known.family << ": " << text;
    }
  }
}

}  // namespace
}  // namespace lockstep::text
