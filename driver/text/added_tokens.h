// Added tokens: texts such as "<|im_end|>" that are one token wherever they appear.
//
//   TokenMatcher matcher(tokens);  // content and AddedToken
//   matcher.Split(text, segments);
//
// A segment is a token, or text between tokens. The leftmost token wins, of several the longest.
// Thread-safe.

#ifndef LOCKSTEP_DRIVER_TEXT_ADDED_TOKENS_H_
#define LOCKSTEP_DRIVER_TEXT_ADDED_TOKENS_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "driver/text/json/json_node.h"

namespace lockstep::text {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;  // not inside a word
  bool lstrip = false;       // takes the spaces before it
  bool rstrip = false;       // takes the spaces behind it
  bool normalized = false;   // is looked for in normalized text
  std::string decoded;       // what decoders get: the content, or what normalization leaves of it
  bool special = false;
};

// Reads "added_tokens". Throws FormatError, also where two tokens share an id or a content.
std::vector<AddedToken> ReadAddedTokens(const Node& node);

struct Segment {
  static constexpr int32_t kText = -1;
  std::string_view text;
  int32_t id = kText;
};

class TokenMatcher {
 public:
  // `contents` holds what to look for, and whose token it is.
  explicit TokenMatcher(const std::vector<std::pair<std::string, AddedToken>>& contents);

  bool empty() const { return tokens_.empty(); }

  // Appends the segments of `text`, which is valid UTF-8. No segment of text is empty.
  void Split(std::string_view text, std::vector<Segment>& segments) const;

 private:
  struct TrieNode {
    std::vector<std::pair<char, int32_t>> children;  // sorted
    int32_t token = -1;                              // index into tokens_
  };

  int32_t Child(int32_t node, char byte) const;
  size_t NextCandidate(std::string_view text, size_t from) const;

  std::vector<AddedToken> tokens_;
  std::vector<TrieNode> trie_;
  std::array<bool, 256> is_first_{};
  int only_first_ = -1;  // the one first byte, where all tokens share it
};

}  // namespace lockstep::text

#endif  // LOCKSTEP_DRIVER_TEXT_ADDED_TOKENS_H_
