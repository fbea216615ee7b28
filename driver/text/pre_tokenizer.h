// Pre-tokenizers of tokenizer.json: how text is split into words before the model sees it.
//
//   PreTokenizer pre = PreTokenizer::Read(root.At("pre_tokenizer"));
//   pre.Split(text, /*is_first=*/true, [&](std::string_view word) { ... });
//
// Known: ByteLevel, Split (by a string, or by an expression: word_scanner.h scans the usual ones),
// Metaspace, Digits, Whitespace, WhitespaceSplit, Sequence. Any other type is an error that names
// its path. ByteLevel must come last: after it the words are bytes. Here they stay as they are, and
// the model's vocabulary is turned into bytes in its place. Thread-safe.

#ifndef LOCKSTEP_DRIVER_TEXT_PRE_TOKENIZER_H_
#define LOCKSTEP_DRIVER_TEXT_PRE_TOKENIZER_H_

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "driver/text/expression.h"
#include "driver/text/json/json_node.h"
#include "driver/text/unicode/unicode.h"
#include "driver/text/word_scanner.h"

namespace lockstep::text {

// The treatment of the matches of a pattern, and of the text between them.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

struct PrefixSpace {};  // puts a space before a word that has none
struct ScanWords {      // each match of the expression is a word
  WordScanner scanner;
};
struct SplitString {
  std::string pattern;
  SplitBehavior behavior;
  bool invert;
};
struct SplitExpression {
  Expression expression;
  SplitBehavior behavior;
  bool invert;
};
struct SplitClass {  // each character of `set` is a match
  CharSet set;
  SplitBehavior behavior;
};
struct SplitWordsAndSigns {};  // \w+|[^\w\s]+
struct Metaspace {
  enum class Prepend { kAlways, kFirst, kNever };
  std::string replacement;
  Prepend prepend;
  bool split;
};
using PreTokenizerStep = std::variant<PrefixSpace, ScanWords, SplitString, SplitExpression,
                                      SplitClass, SplitWordsAndSigns, Metaspace>;

class PreTokenizer {
 public:
  // Reads the object, or null. Throws FormatError.
  static PreTokenizer Read(const Node& node);

  bool is_byte_level() const { return is_byte_level_; }

  // Calls `word` with each word of `text`, which is valid UTF-8, in order; none is empty.
  // `is_first` says whether `text` begins where the whole text begins. Throws SearchError.
  using Word = absl::FunctionRef<void(std::string_view)>;
  void Split(std::string_view text, bool is_first, Word word) const {
    if (!text.empty()) Run(0, text, is_first, word);
  }

 private:
  void ReadStep(const Node& node, int depth);
  void ReadSplit(const Node& node);
  void ReadMetaspace(const Node& node);
  void Run(size_t step, std::string_view text, bool is_first, Word word) const;

  std::vector<PreTokenizerStep> steps_;
  bool is_byte_level_ = false;
};

}  // namespace lockstep::text

#endif  // LOCKSTEP_DRIVER_TEXT_PRE_TOKENIZER_H_
