// What no plan can go below, for samples of one kind. Of plan.cc alone.

#ifndef LOCKSTEP_BATCHING_LOWER_BOUND_H_
#define LOCKSTEP_BATCHING_LOWER_BOUND_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "batching/plan.h"

namespace lockstep::batching {

// At most the makespan of every plan of the samples in `members`, of which there is one at least:
// indices into `samples`, all of one kind, where a micro-batch costs the sum of its samples' costs.
// O(n log n).
double LowerBound(absl::Span<const Sample> samples, const std::vector<int64_t>& members,
                  int64_t seq_len, int ranks);

}  // namespace lockstep::batching

#endif  // LOCKSTEP_BATCHING_LOWER_BOUND_H_
