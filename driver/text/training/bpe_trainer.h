// Learns the tokens and merges of a byte-level BPE from texts.
//
//   BpeTrainer trainer(tokenizer);  // gives the normalizer and the pre-tokenizer
//   absl::Status status = trainer.Add("some text");
//   absl::StatusOr<LearnedBpe> learned = trainer.Learn({.num_tokens = 4096});
//
// The first 256 tokens are the bytes, sorted by the characters that stand for them. Each further
// token joins the two neighbouring tokens that occur most often within words. Ties go to the pair
// with the smaller ids, left before right. PyPI's tokenizers defines them in the same way, so its
// BpeTrainer learns the same merges (see bpe_trainer_test.cc).
//
// Time: each merge visits the words that hold its pair. Memory: the different words.
//
// Sennrich, Haddow, Birch: Neural Machine Translation of Rare Words with Subword Units (2016).
// Not thread-safe.

#ifndef LOCKSTEP_DRIVER_TEXT_TRAINING_BPE_TRAINER_H_
#define LOCKSTEP_DRIVER_TEXT_TRAINING_BPE_TRAINER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "driver/text/tokenizer.h"

namespace lockstep::text {

struct LearnedBpe {
  std::vector<std::string> tokens;                          // by id, in the byte-level alphabet
  std::vector<std::pair<std::string, std::string>> merges;  // in the order in which they apply
};

struct LearnOptions {
  int64_t num_tokens = 0;     // at most; fewer where the texts hold no more pairs
  int64_t min_frequency = 1;  // of a pair that becomes a token
};

class BpeTrainer {
 public:
  // Uses the normalizer and the pre-tokenizer of `tokenizer`, and not its model.
  explicit BpeTrainer(std::shared_ptr<const Tokenizer> tokenizer);

  // Counts the words of a text. InvalidArgument where it is not UTF-8.
  absl::Status Add(std::string_view text);

  // InvalidArgument where num_tokens is below 256, where min_frequency is below 1, or where the
  // tokenizer is not byte-level.
  absl::StatusOr<LearnedBpe> Learn(const LearnOptions& options) const;

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::unordered_map<std::string, int64_t> word_counts_;
};

}  // namespace lockstep::text

#endif  // LOCKSTEP_DRIVER_TEXT_TRAINING_BPE_TRAINER_H_
