#include "mimo/batch/reorder.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "mimo/topology/problems.h"

namespace lockstep::mimo {
namespace {

absl::Status Check(absl::Span<const double> costs, int64_t num_groups) {
  if (num_groups < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("mimo: num_groups is ", num_groups, "; it must be positive"));
  }
  const int64_t samples = static_cast<int64_t>(costs.size());
  if (samples % num_groups != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("mimo: ", samples, " samples cannot be dealt equally to ", num_groups,
                     " groups; ", NearestMultiples(samples, num_groups)));
  }
  for (size_t i = 0; i < costs.size(); ++i) {
    if (std::isfinite(costs[i]) && costs[i] >= 0) continue;
    return absl::InvalidArgumentError(absl::StrCat("mimo: sample ", i, " costs ", costs[i],
                                                   "; a cost is finite and not negative"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<int64_t>> BalancedOrder(absl::Span<const double> costs,
                                                   int64_t num_groups) {
  const absl::Status status = Check(costs, num_groups);
  if (!status.ok()) return status;
  std::vector<int64_t> most_expensive_first(costs.size());
  std::iota(most_expensive_first.begin(), most_expensive_first.end(), 0);
  std::stable_sort(most_expensive_first.begin(), most_expensive_first.end(),
                   [&](int64_t a, int64_t b) {
                     return costs[static_cast<size_t>(a)] > costs[static_cast<size_t>(b)];
                   });

  const int64_t room = static_cast<int64_t>(costs.size()) / num_groups;
  std::vector<int64_t> order(costs.size());
  std::vector<int64_t> filled(static_cast<size_t>(num_groups), 0);
  using Load = std::pair<double, int64_t>;  // cost so far, group: cheapest, then lowest, on top
  std::priority_queue<Load, std::vector<Load>, std::greater<Load>> with_room;
  for (int64_t g = 0; g < num_groups; ++g) with_room.push({0, g});
  for (int64_t sample : most_expensive_first) {
    auto [cost, group] = with_room.top();
    with_room.pop();
    int64_t& count = filled[static_cast<size_t>(group)];
    order[static_cast<size_t>(group * room + count)] = sample;
    if (++count < room) with_room.push({cost + costs[static_cast<size_t>(sample)], group});
  }
  return order;
}

std::vector<double> GroupCosts(absl::Span<const double> costs, absl::Span<const int64_t> order,
                               int64_t num_groups) {
  std::vector<double> sums;
  for (int64_t g = 0; g < num_groups; ++g) {
    const Range positions = Part({0, static_cast<int64_t>(order.size())}, g, num_groups);
    double sum = 0;
    for (int64_t p = positions.begin; p < positions.end; ++p) {
      sum += costs[static_cast<size_t>(order[static_cast<size_t>(p)])];
    }
    sums.push_back(sum);
  }
  return sums;
}

std::vector<double> SampleCosts(const Ownership& items, absl::Span<const int64_t> text_tokens,
                                double per_item_token, double per_text_token) {
  std::vector<double> costs;
  for (int64_t s = 0; s < items.num_samples(); ++s) {
    const Range tokens = RowsOfSamples(items, RowsOf::kTokens, {s, s + 1});
    costs.push_back(per_item_token * static_cast<double>(tokens.size()) +
                    per_text_token * static_cast<double>(text_tokens[static_cast<size_t>(s)]));
  }
  return costs;
}

std::vector<int64_t> RowOrder(const Ownership& ownership, RowsOf rows_of,
                              absl::Span<const int64_t> order) {
  std::vector<int64_t> row_order;
  row_order.reserve(static_cast<size_t>(NumRows(ownership, rows_of)));
  for (int64_t sample : order) {
    const Range rows = RowsOfSamples(ownership, rows_of, {sample, sample + 1});
    for (int64_t row = rows.begin; row < rows.end; ++row) row_order.push_back(row);
  }
  return row_order;
}

Ownership Reordered(const Ownership& ownership, absl::Span<const int64_t> order) {
  Ownership reordered;
  for (int64_t sample : order) {
    const Range items = RowsOfSamples(ownership, RowsOf::kItems, {sample, sample + 1});
    reordered.item_offsets.push_back(reordered.item_offsets.back() + items.size());
    for (int64_t item = items.begin; item < items.end; ++item) {
      const auto i = static_cast<size_t>(item);
      const int64_t tokens = ownership.token_offsets[i + 1] - ownership.token_offsets[i];
      reordered.token_offsets.push_back(reordered.token_offsets.back() + tokens);
    }
  }
  return reordered;
}

}  // namespace lockstep::mimo
