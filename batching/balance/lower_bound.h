// A lower bound on the makespan of samples. Private to //batching.

#ifndef LOCKSTEP_BATCHING_BALANCE_LOWER_BOUND_H_
#define LOCKSTEP_BATCHING_BALANCE_LOWER_BOUND_H_

#include <cstdint>
#include <map>
#include <vector>

#include "absl/types/span.h"
#include "batching/plan.h"

namespace lockstep::batching {

// Returns a makespan that no plan of the samples in `members` is below, if a micro-batch costs the
// sum of its samples' costs. `members` are indices into `samples`: at least one, all of one kind.
// O(n log n).
double LowerBound(absl::Span<const Sample> samples, const std::vector<int64_t>& members,
                  int64_t seq_len, int ranks);

// Returns a makespan that no plan of samples of several kinds is below. `kinds` holds the samples
// of each kind. With kMakespan, kinds may ride with their options.hosts. Costs are sums here, too.
double LowerBoundOfKinds(absl::Span<const Sample> samples,
                         const std::map<int, std::vector<int64_t>>& kinds,
                         const PlanOptions& options);

}  // namespace lockstep::batching

#endif  // LOCKSTEP_BATCHING_BALANCE_LOWER_BOUND_H_
