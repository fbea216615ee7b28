// How many samples a batch has, where nobody says it. See slice.h.

#ifndef LOCKSTEP_MIMO_BATCH_BATCH_SIZE_H_
#define LOCKSTEP_MIMO_BATCH_BATCH_SIZE_H_

#include <cstdint>
#include <string>

#include "mimo/batch/batch_rules.h"
#include "mimo/batch/slice.h"

namespace lockstep::mimo {

struct BatchSize {
  int64_t samples = 0;
  std::string named;      // whose it is, `of "input_ids" [4, 2]`; empty: nothing tells it
  bool is_guess = false;  // of a tensor of which neither its name nor an option tells anything
};

// Of "input_ids", or of the first by path that has one row for each sample. Nothing tells it where
// there are neither tensors nor tables; then FindListSize does.
BatchSize FindBatchSize(const Value& batch, const SliceOptions& options,
                        const Declarations& declared);

// The length of all lists, of which none holds tensors. Throws c10::ValueError, which asks for
// batch_size, where they differ or hold tensors. Nothing tells it where there are none.
BatchSize FindListSize(const Value& batch, const SliceOptions& options);

// `"x" [4, 2] has 4`: what would have told another size, or "".
std::string OtherBatchSize(const Value& batch, const SliceOptions& options,
                           const Declarations& declared, int64_t samples);

}  // namespace lockstep::mimo

#endif  // LOCKSTEP_MIMO_BATCH_BATCH_SIZE_H_
