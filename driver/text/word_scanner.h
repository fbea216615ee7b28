// The expressions by which byte-level tokenizers split text into words, scanned by hand.
//
//   WordScanner scan = FindWordScanner(pattern);  // nullptr: the expression is not known
//   for (const char* p = begin; p < end;) {
//     const char* next = scan(p, end);  // [p, next) is what the expression matches at p
//     ...
//     p = next;
//   }
//
// The general engine of expression.h takes several times longer. Each of these expressions matches
// at every position of every text, so the words cover the text without gaps. Every scanner gives
// exactly the first alternative that matches, as a backtracking engine does. word_scanner_test.cc
// holds them against a naive backtracking matcher.

#ifndef LOCKSTEP_DRIVER_TEXT_WORD_SCANNER_H_
#define LOCKSTEP_DRIVER_TEXT_WORD_SCANNER_H_

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::text {

// Returns the end of the word that begins at `p` < `end`; both lie in valid UTF-8.
using WordScanner = const char* (*)(const char* p, const char* end);

// The scanner of an expression as tokenizer.json spells it, or nullptr.
WordScanner FindWordScanner(std::string_view pattern);

// GPT-2's expression, which the pre-tokenizer ByteLevel brings along.
extern const char kGpt2Pattern[];

struct KnownPattern {
  const char* family;  // "GPT-2", "Llama 3"
  std::string pattern;
  WordScanner scanner;
};
const std::vector<KnownPattern>& KnownPatterns();

}  // namespace lockstep::text

#endif  // LOCKSTEP_DRIVER_TEXT_WORD_SCANNER_H_
