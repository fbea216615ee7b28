// Unigram: of all ways to write a word in tokens, the one whose scores have the largest sum.
//
//   Unigram unigram = Unigram::Read(root.At("model"));
//   Unigram::Scratch scratch;
//   bool ok = unigram.Encode(word, scratch, ids);  // appends
//
// Found by Viterbi's algorithm over a trie of the tokens. Neighbouring characters that no token
// covers are one unknown token, or their bytes with `byte_fallback`.
//
// Kudo: Subword Regularization (2018). Thread-safe; a Scratch belongs to one thread.

#ifndef LOCKSTEP_DRIVER_TEXT_MODEL_UNIGRAM_H_
#define LOCKSTEP_DRIVER_TEXT_MODEL_UNIGRAM_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "driver/text/json/json_node.h"
#include "driver/text/model/vocabulary.h"

namespace lockstep::text {

class Unigram {
 public:
  // The last token on the best way to a place in the word.
  struct Step {
    double score = 0;
    int64_t begin = -1;  // where its last token begins; -1: no way yet
    int32_t id = -1;
  };
  struct Scratch {
    std::vector<Step> steps;
    std::vector<std::string_view> pieces;
  };

  // Reads the object. Throws FormatError.
  static Unigram Read(const Node& node);

  const Vocabulary& vocabulary() const { return vocabulary_; }

  // Appends the ids of a word, which is valid UTF-8. Returns false, with nothing appended, where a
  // character has no token and the model has no `unk_id`.
  bool Encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const;

 private:
  struct TrieNode {
    uint32_t children = 0;  // where they begin in edges_
    uint16_t num_children = 0;
    int32_t id = -1;
  };
  struct Edge {
    unsigned char byte;
    uint32_t node;
  };

  void BuildTrie();
  const TrieNode* Child(const TrieNode& node, unsigned char byte) const;
  void AppendPiece(std::string_view piece, std::vector<int32_t>& ids) const;

  Vocabulary vocabulary_;
  std::vector<double> scores_;  // of each id
  std::vector<TrieNode> nodes_;
  std::vector<Edge> edges_;
  std::vector<int32_t> fallback_;  // of each byte; empty without byte_fallback
  double unknown_score_ = 0;
  int32_t unknown_ = -1;  // -1: none
};

}  // namespace lockstep::text

#endif  // LOCKSTEP_DRIVER_TEXT_MODEL_UNIGRAM_H_
