// The parts of a Tokenizer, as the keys of tokenizer.json name them. Private to driver/text.

#ifndef LOCKSTEP_DRIVER_TEXT_TOKENIZER_PARTS_H_
#define LOCKSTEP_DRIVER_TEXT_TOKENIZER_PARTS_H_

#include <cstdint>
#include <string>
#include <unordered_map>
#include <variant>

#include "driver/text/added_tokens.h"
#include "driver/text/decoder.h"
#include "driver/text/json/json_node.h"
#include "driver/text/model/bpe.h"
#include "driver/text/model/unigram.h"
#include "driver/text/model/vocabulary.h"
#include "driver/text/normalizer.h"
#include "driver/text/post_processor.h"
#include "driver/text/pre_tokenizer.h"

namespace lockstep::text {

struct TokenizerParts {
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::variant<Bpe, Unigram> model;
  PostProcessor post_processor;
  DecoderPlan decoder;
  TokenMatcher raw_tokens{{}};         // looked for in the text as it is
  TokenMatcher normalized_tokens{{}};  // looked for in normalized text
  std::unordered_map<int32_t, AddedToken> added;
  std::unordered_map<std::string, int32_t> added_ids;
  int64_t size = 0;  // tokens, added ones included

  // Reads the whole file. Throws FormatError.
  static TokenizerParts Read(const Node& root);

  const Vocabulary& vocabulary() const {
    return std::visit([](const auto& one) -> const Vocabulary& { return one.vocabulary(); }, model);
  }

  // The token's text, an added one's first, or nullptr where no token has the id.
  const std::string* Token(int32_t id) const;

  // What decoders get for an id: as Token, but an added token as normalization leaves it.
  const std::string* DecodedToken(int32_t id) const;

 private:
  void ReadModel(const Node& node);
  void ReadAdded(const Node& node);
};

}  // namespace lockstep::text

#endif  // LOCKSTEP_DRIVER_TEXT_TOKENIZER_PARTS_H_
