// Lets samples ride in micro-batches of another kind, as text in micro-batches with images. Private
// to plan.cc. Thread-safe: no state.

#ifndef LOCKSTEP_BATCHING_BALANCE_RIDE_H_
#define LOCKSTEP_BATCHING_BALANCE_RIDE_H_

#include <vector>

#include "absl/types/span.h"
#include "batching/balance/bins.h"
#include "batching/plan.h"

namespace lockstep::batching {

// Moves samples of `riders`, the bins of one kind, into bins of `hosts`, if the plan gets better:
// by makespan, then micro-steps, then padding, with options.worth_a_step. Neither makespan nor
// micro-steps grow. The bins come from BalanceForMakespan, and stay sorted into steps and priced;
// `riders` may become empty. O(n log n) for the samples and bins of these kinds.
void Ride(absl::Span<const Sample> samples, const PlanOptions& options, std::vector<Bin>& riders,
          const std::vector<std::vector<Bin>*>& hosts);

}  // namespace lockstep::batching

#endif  // LOCKSTEP_BATCHING_BALANCE_RIDE_H_
