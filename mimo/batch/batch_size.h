// Finds the number of samples of a batch if the caller does not give it. See slice.h.

#ifndef LOCKSTEP_MIMO_BATCH_BATCH_SIZE_H_
#define LOCKSTEP_MIMO_BATCH_BATCH_SIZE_H_

#include <cstdint>
#include <string>

#include "mimo/batch/batch_rules.h"
#include "mimo/batch/slice.h"

namespace lockstep::mimo {

struct BatchSize {
  int64_t samples = 0;
  std::string named;      // its source, `of "input_ids" [4, 2]`; empty: unknown
  bool is_guess = false;  // from a tensor that no rule and no option covers
};

// Returns the batch size of "seq_lens", else of "input_ids", or of the first tensor by path with
// one row for each sample. Unknown without tensors and tables; use FindListSize then.
BatchSize FindBatchSize(const Value& batch, const SliceOptions& options,
                        const Declarations& declared);

// Returns the common length of all lists. Throws c10::ValueError, which asks for batch_size, if
// lists differ in length or contain tensors. Unknown without lists.
BatchSize FindListSize(const Value& batch, const SliceOptions& options);

// Returns `"x" [4, 2] has 4` for a tensor that suggests another batch size, or "".
std::string OtherBatchSize(const Value& batch, const SliceOptions& options,
                           const Declarations& declared, int64_t samples);

}  // namespace lockstep::mimo

#endif  // LOCKSTEP_MIMO_BATCH_BATCH_SIZE_H_
