// Unicode for tokenizers: classes of characters, normal forms, lower case, and checked UTF-8.
//
//   if (std::optional<size_t> bad = FirstInvalidUtf8(text)) ...
//   Char c = CharAt(text.data());  // of valid UTF-8
//   if (IsIn(kLetters, ClassOf(c.code))) ...
//   text = Normalize(text, NormalForm::kC);
//
// A tokenizer must see the same letters as the one that its model was trained with. The versions
// are therefore those of PyPI's tokenizers 0.23: classes of Unicode 16.0, normal forms of
// Unicode 9.0. generate_tables.py writes the tables. Thread-safe.

#ifndef LOCKSTEP_DRIVER_TEXT_UNICODE_UNICODE_H_
#define LOCKSTEP_DRIVER_TEXT_UNICODE_UNICODE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::text {

constexpr char32_t kEndOfUnicode = 0x110000;

// In the order of generate_tables.py.
enum class CharClass : uint8_t {
  kOther,
  kUpper,         // \p{Lu}, \p{Lt}
  kLower,         // \p{Ll}
  kLetter,        // \p{Lm}, \p{Lo}
  kMark,          // \p{M}
  kDigit,         // \p{Nd}
  kLetterNumber,  // \p{Nl}
  kNumber,        // \p{No}
  kSpace,         // White_Space
  kWord,          // other characters of \w: \p{Pc}, circled letters, joiners
};

// Sets of classes, as bits.
using CharSet = uint32_t;
constexpr CharSet SetOf(CharClass one) { return 1u << static_cast<unsigned>(one); }
constexpr CharSet kLetters =
    SetOf(CharClass::kUpper) | SetOf(CharClass::kLower) | SetOf(CharClass::kLetter);
constexpr CharSet kMarks = SetOf(CharClass::kMark);
constexpr CharSet kNumbers =
    SetOf(CharClass::kDigit) | SetOf(CharClass::kLetterNumber) | SetOf(CharClass::kNumber);
constexpr CharSet kSpaces = SetOf(CharClass::kSpace);
constexpr CharSet kWords = kLetters | kMarks | SetOf(CharClass::kDigit) |
                           SetOf(CharClass::kLetterNumber) | SetOf(CharClass::kWord);

// The class of each code point below kEndOfUnicode.
extern const uint8_t* const kCharClasses;

inline CharClass ClassOf(char32_t code) { return static_cast<CharClass>(kCharClasses[code]); }
inline bool IsIn(CharSet set, CharClass one) {
  return ((set >> static_cast<unsigned>(one)) & 1) != 0;
}

// --- UTF-8 ---------------------------------------------------------------------------------------

// Returns the offset of the first byte that is not valid UTF-8: a stray or missing continuation, an
// overlong form, a surrogate, or a code point from kEndOfUnicode on.
std::optional<size_t> FirstInvalidUtf8(std::string_view text);

struct Char {
  char32_t code;
  uint32_t size;  // bytes
};

// Reads the character at `p` of valid UTF-8.
inline Char CharAt(const char* p) {
  const auto byte = [p](int i) { return static_cast<uint32_t>(static_cast<unsigned char>(p[i])); };
  const uint32_t first = byte(0);
  if (first < 0x80) return {first, 1};
  if (first < 0xE0) return {(first & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  if (first < 0xF0) return {(first & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
  return {(first & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F),
          4};
}

// Reads the character that ends before `end`; `begin` < `end`, both in valid UTF-8.
inline Char CharBefore(const char* begin, const char* end) {
  const char* p = end - 1;
  while (p > begin && (static_cast<unsigned char>(*p) & 0xC0) == 0x80) --p;
  return CharAt(p);
}

void AppendUtf8(char32_t code, std::string& text);

// Returns the length of the longest prefix that ends with a whole character or an error; what
// remains is the beginning of a character that later bytes may complete.
size_t CompleteUtf8Prefix(std::string_view bytes);

// Replaces each longest beginning of a character that is not completed, and each other byte that is
// not UTF-8, by U+FFFD.
std::string ReplaceInvalidUtf8(std::string_view bytes);

// --- Normal forms and case -----------------------------------------------------------------------

enum class NormalForm { kC, kD, kKC, kKD };

// Returns the text in a normal form (Unicode Standard Annex 15). `text` is valid UTF-8.
std::string Normalize(std::string_view text, NormalForm form);

// Returns true where Normalize certainly changes nothing; false where it may.
bool IsSurelyNormal(std::string_view text, NormalForm form);

// Maps each character by itself; a capital sigma becomes U+03C3 at the end of a word too.
std::string LowerCase(std::string_view text);

}  // namespace lockstep::text

#endif  // LOCKSTEP_DRIVER_TEXT_UNICODE_UNICODE_H_
