// Orders the samples of a micro-batch so that every replica gets about the same load.
//
// The problem: a replica with large images keeps all other replicas waiting. Inside one global
// micro-batch the order of samples is free, as long as every module uses the same order. A loss
// that sums over tokens stays the same. A mean of each replica's mean changes, because it weighs a
// token by the other tokens of its replica.
//
//    absl::StatusOr<std::vector<int64_t>> order = BalancedOrder({4, 16, 9, 25}, 2);
//    // {3, 0, 1, 2}: the first replica has samples 3 and 0 (cost 29), the second 1 and 2 (25)
//
// Method. There are as many groups as the largest dp size. The most expensive sample goes first, to
// the group with the lowest cost so far, and each group gets equally many samples. A dp size that
// divides the largest covers whole groups, so all modules stay aligned. Sources: Megatron-Bridge's
// pull request 4608; Graham's longest processing time first. Thread-safe: no state.

#ifndef LOCKSTEP_MIMO_BATCH_REORDER_H_
#define LOCKSTEP_MIMO_BATCH_REORDER_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "mimo/batch/ownership.h"

namespace lockstep::mimo {

// Returns the new order: position p holds sample result[p]. Group g has positions
// [g * n / num_groups, (g + 1) * n / num_groups). Ties go to the lower sample and the lower group.
// Returns InvalidArgument if a cost is negative or not finite, if num_groups is not positive, or if
// the number of samples is not divisible by num_groups.
//
// Cost: O(n log n).
absl::StatusOr<std::vector<int64_t>> BalancedOrder(absl::Span<const double> costs,
                                                   int64_t num_groups);

// Returns the sum of costs of each group under an order.
std::vector<double> GroupCosts(absl::Span<const double> costs, absl::Span<const int64_t> order,
                               int64_t num_groups);

// Returns each sample's cost: per_item_token * its tokens in `items` + per_text_token *
// text_tokens. `text_tokens` has one element for each sample of `items`.
std::vector<double> SampleCosts(const Ownership& items, absl::Span<const int64_t> text_tokens,
                                double per_item_token, double per_text_token);

// RowOrder returns the rows of a tensor in the new order: new row i is old row result[i].
// Reordered returns the ownership table of the reordered batch. `order` is a permutation of the
// samples of `ownership`.
std::vector<int64_t> RowOrder(const Ownership& ownership, RowsOf rows_of,
                              absl::Span<const int64_t> order);
Ownership Reordered(const Ownership& ownership, absl::Span<const int64_t> order);

}  // namespace lockstep::mimo

#endif  // LOCKSTEP_MIMO_BATCH_REORDER_H_
