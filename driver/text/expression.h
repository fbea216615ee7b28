// Regular expressions of tokenizer.json, by Oniguruma, which Hugging Face's tokenizers call too.
//
//   Expression expression("\\p{N}{1,2}");  // throws std::invalid_argument with Oniguruma's reason
//   for (const auto& [begin, end] : expression.Matches("a123")) ...  // {1, 3}, {3, 4}
//
// Slow beside the scanners of word_scanner.h, which the usual expressions have. Thread-safe.

#ifndef LOCKSTEP_DRIVER_TEXT_EXPRESSION_H_
#define LOCKSTEP_DRIVER_TEXT_EXPRESSION_H_

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

struct re_pattern_buffer;

namespace lockstep::text {

// A search that took too many steps, or whose memory was not there.
struct SearchError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Expression {
 public:
  // `pattern`: valid UTF-8, in Oniguruma's own syntax.
  explicit Expression(std::string pattern);

  // Returns the first and last-plus-one bytes of each match in `text`, which is valid UTF-8, from
  // left to right. A match may be empty, but not where the match before it ends. Throws
  // SearchError.
  std::vector<std::pair<size_t, size_t>> Matches(std::string_view text) const;

  const std::string& pattern() const { return pattern_; }

 private:
  std::string pattern_;
  std::shared_ptr<re_pattern_buffer> compiled_;
};

}  // namespace lockstep::text

#endif  // LOCKSTEP_DRIVER_TEXT_EXPRESSION_H_
