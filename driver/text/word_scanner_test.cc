#include "driver/text/word_scanner.h"

#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "driver/text/unicode/unicode.h"
#include "gtest/gtest.h"

namespace lockstep::text {
namespace {

// --- The oracle: a naive backtracking matcher of what the expressions use ------------------------

// Tells whether the rest of the expression matches from a place on.
using Rest = std::function<bool(size_t)>;

class Backtracker {
 public:
  Backtracker(const std::string& pattern, const std::u32string& text)
      : pattern_(pattern), text_(text) {}

  // Returns where the first match that starts at `at` ends, or `at`.
  size_t Match(size_t at) {
    size_t end = at;
    Alternatives(0, pattern_.size(), at, false, [&](size_t i) {
      end = i;
      return true;
    });
    return end;
  }

 private:
  // Returns the end of the group or class that begins at `p`.
  size_t Close(size_t p) const {
    const char open = pattern_[p], close = open == '(' ? ')' : ']';
    int depth = 0;
    for (;; ++p) {
      if (pattern_[p] == '\\') {
        ++p;
      } else if (pattern_[p] == open) {
        ++depth;
      } else if (pattern_[p] == close && --depth == 0) {
        return p + 1;
      }
    }
  }

  bool Alternatives(size_t p, size_t end, size_t at, bool any_case, const Rest& rest) {
    size_t begin = p;
    while (p < end) {
      if (pattern_[p] == '\\') {
        p += 2;
      } else if (pattern_[p] == '(' || pattern_[p] == '[') {
        p = Close(p);
      } else if (pattern_[p] == '|') {
        if (Sequence(begin, p, at, any_case, rest)) return true;
        begin = ++p;
      } else {
        ++p;
      }
    }
    return Sequence(begin, end, at, any_case, rest);
  }

  bool Sequence(size_t p, size_t end, size_t at, bool any_case, const Rest& rest) {
    if (p == end) return rest(at);
    size_t atom_end = p + 1;
    if (pattern_[p] == '(' || pattern_[p] == '[') atom_end = Close(p);
    if (pattern_[p] == '\\') atom_end = pattern_[p + 1] == 'p' ? pattern_.find('}', p) + 1 : p + 2;
    if (pattern_.compare(p, 3, "(?!") == 0) {  // "(?!\S)"
      const bool blocked = at < text_.size() && !InClass("\\s", text_[at]);
      return !blocked && Sequence(atom_end, end, at, any_case, rest);
    }
    size_t low = 1, high = 1, next = atom_end;
    if (next < end && std::string("?*+{").find(pattern_[next]) != std::string::npos) {
      const char sign = pattern_[next];
      low = sign == '+' || sign == '{' ? 1 : 0;
      high = sign == '?' ? 1 : sign == '{' ? 3 : ~size_t{0};  // "{1,3}"
      next = sign == '{' ? pattern_.find('}', next) + 1 : next + 1;
    }
    return Repeat(p, atom_end, low, high, at, any_case,
                  [&](size_t i) { return Sequence(next, end, i, any_case, rest); });
  }

  // Greedy: as often as it goes, then less.
  bool Repeat(size_t p, size_t end, size_t low, size_t high, size_t at, bool any_case,
              const Rest& rest) {
    if (high > 0) {
      const bool more = Atom(p, end, at, any_case, [&](size_t i) {
        const size_t left = high == ~size_t{0} ? high : high - 1;
        return i > at && Repeat(p, end, low > 0 ? low - 1 : 0, left, i, any_case, rest);
      });
      if (more) return true;
    }
    return low == 0 && rest(at);
  }

  bool Atom(size_t p, size_t end, size_t at, bool any_case, const Rest& rest) {
    if (pattern_.compare(p, 4, "(?i:") == 0) return Alternatives(p + 4, end - 1, at, true, rest);
    if (at == text_.size()) return false;
    const std::string atom = pattern_.substr(p, end - p);
    bool matches = InClass(atom, text_[at]);
    if (any_case) {
      for (const char32_t c : {text_[at] | 32, text_[at] & ~char32_t{32}})
        matches = matches ||
                  (text_[at] < 0x80 && isalpha(static_cast<int>(text_[at])) && InClass(atom, c));
      matches = matches || (text_[at] == 0x17F && atom == "s");
    }
    return matches && rest(at + 1);
  }

  // `atom`: a character, an escape or a class of them.
  static bool InClass(const std::string& atom, char32_t c) {
    static const std::map<std::string, CharSet> sets = {
        {"\\p{L}", kLetters},
        {"\\p{N}", kNumbers},
        {"\\p{M}", kMarks},
        {"\\s", kSpaces},
        {"\\p{Lu}", SetOf(CharClass::kUpper)},
        {"\\p{Lt}", 0},  // with Lu
        {"\\p{Ll}", SetOf(CharClass::kLower)},
        {"\\p{Lm}", 0},  // with Lo
        {"\\p{Lo}", SetOf(CharClass::kLetter)},
    };
    if (atom[0] == '[') {
      const bool negated = atom[1] == '^';
      bool found = false;
      for (size_t p = negated ? 2 : 1; p + 1 < atom.size();) {
        size_t end = p + 1;
        if (atom[p] == '\\') end = atom[p + 1] == 'p' ? atom.find('}', p) + 1 : p + 2;
        found = found || InClass(atom.substr(p, end - p), c);
        p = end;
      }
      return found != negated;
    }
    if (atom == "\\r") return c == '\r';
    if (atom == "\\n") return c == '\n';
    const auto set = sets.find(atom);
    if (set != sets.end()) return IsIn(set->second, ClassOf(c));
    return c == static_cast<unsigned char>(atom[0]);
  }

  const std::string& pattern_;
  const std::u32string& text_;
};

// --- Tests ---------------------------------------------------------------------------------------

std::vector<std::string> Expected(const std::string& pattern, const std::u32string& text) {
  Backtracker oracle(pattern, text);
  std::vector<std::string> words;
  for (size_t at = 0; at < text.size();) {
    const size_t end = oracle.Match(at);
    EXPECT_GT(end, at) << "the expression matches everywhere";
    if (end == at) break;
    std::string word;
    for (; at < end; ++at) AppendUtf8(text[at], word);
    words.push_back(word);
  }
  return words;
}

std::vector<std::string> Scanned(WordScanner scan, const std::u32string& codes) {
  std::string text;
  for (const char32_t code : codes) AppendUtf8(code, text);
  std::vector<std::string> words;
  const char* end = text.data() + text.size();
  for (const char* p = text.data(); p < end;) {
    const char* next = scan(p, end);
    if (next <= p || next > end) {
      ADD_FAILURE() << "a word of " << next - p << " bytes";
      break;
    }
    words.emplace_back(p, next - p);
    p = next;
  }
  return words;
}

// One or two characters of each kind that the expressions tell apart.
const std::u32string kAlphabet =
    U" \t\n\r\u00a0'saStlLeEvr1\u0663/!_\u4f60\u00c9\u00e9\u01c5\u0301\u017f\U0001f600";

class EachPattern : public testing::TestWithParam<KnownPattern> {};
INSTANTIATE_TEST_SUITE_P(All, EachPattern, testing::ValuesIn(KnownPatterns()));

TEST_P(EachPattern, AllTextsOfThreeCharactersSplitAsTheExpressionSays) {
  for (const char32_t a : kAlphabet) {
    for (const char32_t b : kAlphabet) {
      for (const char32_t c : kAlphabet) {
        const std::u32string text = {a, b, c};
        ASSERT_EQ(Scanned(GetParam().scanner, text), Expected(GetParam().pattern, text));
      }
    }
  }
}

TEST_P(EachPattern, RandomTextsSplitAsTheExpressionSays) {
  std::mt19937 random(7);
  for (int i = 0; i < 20'000; ++i) {
    std::u32string text;
    for (size_t size = random() % 16; size > 0; --size)
      text += kAlphabet[random() % kAlphabet.size()];
    ASSERT_EQ(Scanned(GetParam().scanner, text), Expected(GetParam().pattern, text))
        << "text " << i;
  }
}

TEST(WordScanner, AnotherExpressionIsNotKnown) {
  EXPECT_EQ(FindWordScanner("\\w+"), nullptr);
  EXPECT_EQ(FindWordScanner(""), nullptr);
  EXPECT_NE(FindWordScanner(kGpt2Pattern), nullptr);
}

}  // namespace
}  // namespace lockstep::text
