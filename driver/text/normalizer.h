// Normalizers of tokenizer.json: what happens to text before it is split.
//
//   Normalizer normalizer = Normalizer::Read(root.At("normalizer"));
//   normalizer.Apply(text);
//
// Known: NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Strip, Sequence and Replace: of a string, or of
// an expression. Any other type is an error that names its path. Thread-safe.

#ifndef LOCKSTEP_DRIVER_TEXT_NORMALIZER_H_
#define LOCKSTEP_DRIVER_TEXT_NORMALIZER_H_

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "driver/text/expression.h"
#include "driver/text/json/json_node.h"
#include "driver/text/unicode/unicode.h"

namespace lockstep::text {

struct Lowercase {};
struct Prepend {
  std::string text;
};
struct Replace {
  std::string pattern;
  std::string content;
  bool runs = false;  // of two or more of `pattern`, each run at once
};
struct ReplaceExpression {
  Expression expression;
  std::string content;
};
struct Strip {
  bool left = true;
  bool right = true;
};
using NormalizerStep =
    std::variant<NormalForm, Lowercase, Prepend, Replace, ReplaceExpression, Strip>;

class Normalizer {
 public:
  // Reads the object, or null. Throws FormatError.
  static Normalizer Read(const Node& node);

  bool empty() const { return steps_.empty(); }

  // Returns true where Apply certainly changes nothing.
  bool IsSurelyUnchanged(std::string_view text) const;

  // `text` is valid UTF-8, and so is the result. Throws SearchError.
  void Apply(std::string& text) const;

 private:
  void ReadStep(const Node& node, int depth);

  std::vector<NormalizerStep> steps_;
};

// Reads {"String": ...} or {"Regex": ...}: the text and whether it is an expression. Throws
// FormatError.
struct SplitPattern {
  std::string text;
  bool is_regex = false;
};
SplitPattern ReadPattern(const Node& node);

// Compiles the expression that `node` holds. Throws FormatError.
Expression ReadExpression(const Node& node, const std::string& pattern);

// Replaces each occurrence, from left to right. `pattern` is not empty.
void ReplaceAll(std::string_view pattern, std::string_view content, std::string& text);

}  // namespace lockstep::text

#endif  // LOCKSTEP_DRIVER_TEXT_NORMALIZER_H_
