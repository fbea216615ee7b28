// Tokens and their ids, and the alphabet by which byte-level tokenizers write bytes as text.
//
//   Vocabulary vocabulary;
//   vocabulary.Add("hello", 17);
//   std::optional<int32_t> id = vocabulary.Id("hello");
//
// Thread-safe once filled.

#ifndef LOCKSTEP_DRIVER_TEXT_MODEL_VOCABULARY_H_
#define LOCKSTEP_DRIVER_TEXT_MODEL_VOCABULARY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "driver/text/json/json_node.h"

namespace lockstep::text {

constexpr int32_t kMaxId = (1 << 30) - 1;

class Vocabulary {
 public:
  // Reads {"token": id, ...}. Throws FormatError, also where two tokens share an id.
  static Vocabulary Read(const Node& node);

  // Returns false where the token or the id is there already.
  bool Add(std::string token, int32_t id);

  size_t size() const { return tokens_.size(); }
  std::optional<int32_t> Id(std::string_view token) const;
  const std::string* Token(int32_t id) const;  // nullptr where no token has the id

  const std::unordered_map<int32_t, std::string>& tokens() const { return tokens_; }

 private:
  std::unordered_map<int32_t, std::string> tokens_;  // its strings do not move
  std::unordered_map<std::string_view, int32_t> ids_;
};

// Returns the ids of "<0x00>" to "<0xFF>". Throws FormatError, in the name of `node`, where one is
// missing.
std::vector<int32_t> ByteTokens(const Vocabulary& vocabulary, const Node& node);

// The byte-level alphabet: each byte is a visible character. Printable ones of Latin-1 are
// themselves, the others follow U+00FF.
char32_t ByteCharacter(uint8_t byte);
std::optional<uint8_t> CharacterByte(char32_t code);

// Returns the bytes that a token of the alphabet stands for, or nothing where a character of it is
// not in the alphabet. `token` is valid UTF-8.
std::optional<std::string> BytesOf(std::string_view token);

}  // namespace lockstep::text

#endif  // LOCKSTEP_DRIVER_TEXT_MODEL_VOCABULARY_H_
