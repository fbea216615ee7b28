#include "driver/text/word_scanner.h"

#include "driver/text/unicode/unicode.h"

namespace lockstep::text {
namespace {

// --- How the expressions differ ------------------------------------------------------------------

enum class Contractions {
  kLowerCase,  // 's|'t|'re|'ve|'m|'ll|'d as words of their own
  kAnyCase,    // the same, in upper and lower case
  kSuffix,     // in any case, at the end of a word
  kNone,
};

enum class Words {
  kSpaced,  // " ?\p{L}+"
  kPlain,   // "[^\r\n\p{L}\p{N}]?\p{L}+"
  kMarked,  // "[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"
  kCased,   // capitals then small letters, with marks: two alternatives
};

struct Traits {
  Contractions contractions;
  Words words;
  int digits;          // longest run of \p{N}; 0: " ?\p{N}+"
  bool slash = false;  // "[\r\n/]*" behind signs in place of "[\r\n]*"
};

// --- Parts of the expressions --------------------------------------------------------------------

struct Seen {
  CharClass kind;
  uint32_t size;
};

inline Seen At(const char* p) {
  const auto byte = static_cast<unsigned char>(*p);
  if (byte < 0x80) return {ClassOf(byte), 1};
  const Char c = CharAt(p);
  return {ClassOf(c.code), c.size};
}

inline const char* Run(CharSet set, const char* p, const char* end) {
  while (p < end) {
    const Seen c = At(p);
    if (!IsIn(set, c.kind)) break;
    p += c.size;
  }
  return p;
}

inline bool IsNewline(char c) { return c == '\r' || c == '\n'; }

// Returns the end of a contraction at `p`, or `p`. U+017F is an s in another case.
template <bool kAnyCase>
const char* Contraction(const char* p, const char* end) {
  if (end - p < 2 || *p != '\'') return p;
  const auto lower = [](char c) {
    return kAnyCase && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  };
  const char first = lower(p[1]);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return p + 2;
  if (end - p < 3) return p;
  if (kAnyCase && p[1] == '\xC5' && p[2] == '\xBF') return p + 3;
  const char second = lower(p[2]);
  const bool long_one = (first == 'r' && second == 'e') || (first == 'v' && second == 'e') ||
                        (first == 'l' && second == 'l');
  return long_one ? p + 3 : p;
}

// "\s*[\r\n]+|\s+(?!\S)|\s+" at a space; GPT-2 lacks the first alternative.
template <bool kNewlines>
const char* Spaces(const char* p, const char* end) {
  const char* newline = nullptr;  // the end of the last one
  const char* last = p;           // where the last space begins
  const char* at = p;
  while (at < end) {
    const Seen c = At(at);
    if (c.kind != CharClass::kSpace) break;
    last = at;
    at += c.size;
    if (kNewlines && IsNewline(*last)) newline = at;
  }
  if (newline != nullptr) return newline;
  return at == end || last == p ? at : last;
}

constexpr CharSet kCapitals = SetOf(CharClass::kUpper) | SetOf(CharClass::kLetter) | kMarks;
constexpr CharSet kSmall = SetOf(CharClass::kLower) | SetOf(CharClass::kLetter) | kMarks;

// "[capitals]*[small]+" at `p`: its end, or nullptr. Letters without case are in both sets, so
// where no small letter follows the capitals, the match ends behind the last letter without case.
const char* CapitalsThenSmall(const char* p, const char* end) {
  const char* both = nullptr;
  while (p < end) {
    const Seen c = At(p);
    if (c.kind == CharClass::kLower) return Run(kSmall, p, end);
    if (!IsIn(kCapitals, c.kind)) break;
    p += c.size;
    if (c.kind != CharClass::kUpper) both = p;
  }
  return both;
}

// "[capitals]+[small]*" at `p`: its end, or nullptr.
const char* CapitalsFirst(const char* p, const char* end) {
  const char* capitals = Run(kCapitals, p, end);
  return capitals == p ? nullptr : Run(kSmall, capitals, end);
}

// A word of letters at `p`, or nullptr. `c` is the character at `p`.
template <Traits kTraits>
inline const char* Word(const char* p, const char* end, Seen c) {
  if constexpr (kTraits.words == Words::kSpaced) {
    if (IsIn(kLetters, c.kind)) return Run(kLetters, p + c.size, end);
    if (*p != ' ' || end - p < 2) return nullptr;
    const char* word = Run(kLetters, p + 1, end);
    return word == p + 1 ? nullptr : word;
  } else {
    const bool prefix = !IsIn(kLetters | kNumbers, c.kind) && !IsNewline(*p);
    if constexpr (kTraits.words == Words::kCased) {
      const char* word = prefix ? CapitalsThenSmall(p + c.size, end) : nullptr;
      if (word == nullptr) word = CapitalsThenSmall(p, end);
      if (word == nullptr && prefix) word = CapitalsFirst(p + c.size, end);
      if (word == nullptr) word = CapitalsFirst(p, end);
      if (word == nullptr || kTraits.contractions != Contractions::kSuffix) return word;
      return Contraction<true>(word, end);
    } else {
      constexpr CharSet kSet = kTraits.words == Words::kMarked ? kLetters | kMarks : kLetters;
      if (IsIn(kSet, c.kind)) return Run(kSet, p + c.size, end);
      if (!prefix) return nullptr;
      const char* word = Run(kSet, p + c.size, end);
      return word == p + c.size ? nullptr : word;
    }
  }
}

template <Traits kTraits>
const char* Scan(const char* p, const char* end) {
  constexpr bool kGpt2 = kTraits.words == Words::kSpaced;
  if (*p == '\'' && (kTraits.contractions == Contractions::kLowerCase ||
                     kTraits.contractions == Contractions::kAnyCase)) {
    const char* next = Contraction<kTraits.contractions == Contractions::kAnyCase>(p, end);
    if (next != p) return next;
  }
  const Seen c = At(p);
  if (const char* word = Word<kTraits>(p, end, c); word != nullptr) return word;

  // Numbers.
  if (IsIn(kNumbers, c.kind)) {
    if (kGpt2) return Run(kNumbers, p + c.size, end);
    const char* number = p + c.size;
    for (int i = 1; i < kTraits.digits && number < end; ++i) {
      const Seen digit = At(number);
      if (!IsIn(kNumbers, digit.kind)) break;
      number += digit.size;
    }
    return number;
  }
  if (kGpt2 && *p == ' ') {
    const char* number = Run(kNumbers, p + 1, end);
    if (number != p + 1) return number;
  }

  // Signs.
  constexpr CharSet kSigns =
      ~(kSpaces | kLetters | kNumbers | (kTraits.words == Words::kMarked ? kMarks : 0));
  const char* sign = *p == ' ' ? p + 1 : p;
  const char* next = Run(kSigns, sign, end);
  if (next != sign) {
    while (!kGpt2 && next < end && (IsNewline(*next) || (kTraits.slash && *next == '/'))) ++next;
    return next;
  }
  return Spaces<!kGpt2>(p, end);
}

}  // namespace

const char kGpt2Pattern[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

const std::vector<KnownPattern>& KnownPatterns() {
  using enum Contractions;
  using enum Words;
  static const auto* patterns = [] {
    const std::string any_case = R"((?i:'s|'t|'re|'ve|'m|'ll|'d))";
    const std::string prefix = R"([^\r\n\p{L}\p{N}]?)";
    const std::string small = R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)";
    const std::string capital = R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)";
    const std::string spaces = R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
    const std::string signs = R"(| ?[^\s\p{L}\p{N}]+[\r\n]*)" + spaces;
    const std::string signs_slash = R"(| ?[^\s\p{L}\p{N}]+[\r\n/]*)" + spaces;
    const std::string cased = prefix + small + "|" + prefix + capital;
    const std::string suffixed =
        prefix + small + any_case + "?|" + prefix + capital + any_case + "?";
    return new std::vector<KnownPattern>{
        {"GPT-2", kGpt2Pattern, Scan<Traits{kLowerCase, kSpaced, 0}>},
        {"Llama 3", any_case + "|" + prefix + R"(\p{L}+|\p{N}{1,3})" + signs,
         Scan<Traits{kAnyCase, kPlain, 3}>},
        {"Qwen 2", any_case + "|" + prefix + R"(\p{L}+|\p{N})" + signs,
         Scan<Traits{kAnyCase, kPlain, 1}>},
        {"Qwen 3.5",
         any_case + "|" + prefix + R"([\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*)" + spaces,
         Scan<Traits{kAnyCase, kMarked, 1}>},
        {"o200k", suffixed + R"(|\p{N}{1,3})" + signs_slash,
         Scan<Traits{kSuffix, kCased, 3, true}>},
        {"Tekken", cased + R"(|\p{N})" + signs_slash,
         Scan<Traits{Contractions::kNone, kCased, 1, true}>},
    };
  }();
  return *patterns;
}

WordScanner FindWordScanner(std::string_view pattern) {
  for (const KnownPattern& known : KnownPatterns()) {
    if (known.pattern == pattern) return known.scanner;
  }
  return nullptr;
}

}  // namespace lockstep::text
