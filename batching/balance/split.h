// Splits long samples over groups of ranks, so that no step lasts as long as one sample. Private to
// plan.cc. Thread-safe: no state.

#ifndef LOCKSTEP_BATCHING_BALANCE_SPLIT_H_
#define LOCKSTEP_BATCHING_BALANCE_SPLIT_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "batching/balance/bins.h"
#include "batching/plan.h"

namespace lockstep::batching {

// Returns the most ranks that may share the sample; 1 if it must stay whole.
int MostRanksOf(const Sample& sample, const PlanOptions& options);

// Returns bins of the samples in `members`, which have one kind, with some samples split. The bin
// of a rank in a step is at step * ranks + rank; it may be empty. Returns nullopt if splitting
// makes the plan no better than `whole`, the bins of BalanceForMakespan.
std::optional<std::vector<Bin>> SplitLongSamples(absl::Span<const Sample> samples,
                                                 const std::vector<int64_t>& members,
                                                 const PlanOptions& options,
                                                 const std::vector<Bin>& whole);

}  // namespace lockstep::batching

#endif  // LOCKSTEP_BATCHING_BALANCE_SPLIT_H_
