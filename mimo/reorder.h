// An order of the samples of a micro-batch that gives every replica a like load.
//
// The replica that drew the large images keeps all others waiting. Inside one global micro-batch
// the order of samples is free as long as every module uses the same one: the sum over its tokens,
// and so what is learned with a per-token loss, stays the same. (A mean of each replica's mean does
// change, as it weighs a token by its neighbours.) The samples are dealt to as many groups as the
// largest dp size, equally many to each, dearest first, each to the group that has cost least so
// far. Replica r of a smaller dp size that divides the largest covers whole groups, so the modules
// stay aligned.
//
//   absl::StatusOr<std::vector<int64_t>> order = BalancedOrder({4, 16, 9, 25}, 2);
//   // {3, 0, 1, 2}: the first replica has samples 3 and 0 (cost 29), the second 1 and 2 (25)
//
// Source: Megatron-Bridge's pull request 4608; Graham's longest processing time first, with equally
// many in each group. Thread-safe: no state.

#ifndef LOCKSTEP_MIMO_REORDER_H_
#define LOCKSTEP_MIMO_REORDER_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "mimo/ownership.h"

namespace lockstep::mimo {

// Position p of the new order holds sample result[p]. Group g has positions [g * n / num_groups,
// (g + 1) * n / num_groups). Ties go to the lower sample, and to the lower group. InvalidArgument
// if a cost is negative or not finite, num_groups is not positive, or the samples are not divisible
// by it.
//
// Cost: O(n log n).
absl::StatusOr<std::vector<int64_t>> BalancedOrder(absl::Span<const double> costs,
                                                   int64_t num_groups);

// The sum of costs of each group under an order.
std::vector<double> GroupCosts(absl::Span<const double> costs, absl::Span<const int64_t> order,
                               int64_t num_groups);

// What each sample costs: per_item_token * its tokens in `items` + per_text_token * text_tokens.
// The sizes must be those of the table.
std::vector<double> SampleCosts(const Ownership& items, absl::Span<const int64_t> text_tokens,
                                double per_item_token, double per_text_token);

// The rows of a tensor in the new order: new row i is old row result[i]. `order` is a permutation
// of the samples of the table. Reordered(…) is the table that goes with it.
std::vector<int64_t> RowOrder(const Ownership& ownership, RowsOf rows_of,
                              absl::Span<const int64_t> order);
Ownership Reordered(const Ownership& ownership, absl::Span<const int64_t> order);

}  // namespace lockstep::mimo

#endif  // LOCKSTEP_MIMO_REORDER_H_
