// Packs samples of one kind so that the ranks of each micro-step have similar costs. This is the
// balance kMakespan. Private to plan.cc and ride.cc. Thread-safe: no state.

#ifndef LOCKSTEP_BATCHING_BALANCE_BALANCE_H_
#define LOCKSTEP_BATCHING_BALANCE_BALANCE_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "batching/balance/bins.h"
#include "batching/balance/queue.h"
#include "batching/plan.h"

namespace lockstep::batching {

// Returns bins of the samples in `members`: sorted into steps, and priced.
std::vector<Bin> BalanceForMakespan(absl::Span<const Sample> samples,
                                    const std::vector<int64_t>& members,
                                    const PlanOptions& options);

// Appends the bins of one step, filled up to the cost of the most expensive sample of the queue.
void FillLongStep(absl::Span<const Sample> samples, int64_t seq_len, int ranks, Queue& queue,
                  std::vector<Bin>& bins);

// Sorts bins of one kind into steps, and prices them. Drops empty bins. If the last step has fewer
// bins than ranks, splits those that hold several samples of their kind. Costs must be sums.
void SortIntoSteps(absl::Span<const Sample> samples, const PlanOptions& options,
                   std::vector<Bin>& bins);

}  // namespace lockstep::batching

#endif  // LOCKSTEP_BATCHING_BALANCE_BALANCE_H_
