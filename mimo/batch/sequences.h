// The sequences of a batch whose samples are packed: their tokens lie one behind the other, and
// "seq_lens" holds the length of each. See slice.h.

#ifndef LOCKSTEP_MIMO_BATCH_SEQUENCES_H_
#define LOCKSTEP_MIMO_BATCH_SEQUENCES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "mimo/batch/batch_rules.h"
#include "mimo/batch/slice.h"

namespace lockstep::mimo {

struct Sequences {
  std::string path;  // of seq_lens
  Declared tokens;   // a table whose items are the sequences

  int64_t num_samples() const { return tokens.table->num_samples(); }
  int64_t num_tokens() const { return tokens.table->num_tokens(); }
};

// Returns the sequences of a dict that has "seq_lens", unless it is declared to be passed on whole.
// Each sample has one, or as many as are declared. Throws c10::ValueError if these are not whole
// numbers of at least 0, as a list or as a tensor [sequences].
std::optional<Sequences> SequencesOf(const Dict& dict, const std::string& path,
                                     const SliceOptions& options, const Declarations& declared);

// Returns the dim of a tensor that has the tokens: the last one of "position_ids", 1 for
// [1, tokens, ...], else 0. Returns nothing if its size is not their number. Throws c10::ValueError
// if the dim could also have one row for each sample.
std::optional<int64_t> TokenDim(const Sequences& sequences, const std::string& path,
                                const std::string& key, const at::Tensor& tensor);

// Returns whether a list of `count` values has one for each token. Throws as TokenDim does.
bool HasTokens(const Sequences& sequences, const std::string& path, int64_t count);

// Returns the running sums of the lengths of these samples, in this order, for the place of
// `offsets`. Throws c10::ValueError if that does not hold the running sums of all lengths.
at::Tensor RunningSums(const Sequences& sequences, const std::string& path,
                       const at::Tensor& offsets, const std::vector<int64_t>& samples);

}  // namespace lockstep::mimo

#endif  // LOCKSTEP_MIMO_BATCH_SEQUENCES_H_
