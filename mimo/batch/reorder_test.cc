#include "mimo/batch/reorder.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "mimo/testing/random_topology.h"

namespace lockstep::mimo {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<int64_t> Order(const std::vector<double>& costs, int64_t num_groups) {
  absl::StatusOr<std::vector<int64_t>> order = BalancedOrder(costs, num_groups);
  EXPECT_TRUE(order.ok()) << order.status();
  return *order;
}

// Section 2.7 of the report.
TEST(BalancedOrder, WorkedVectors) {
  const std::vector<double> four = {4, 16, 9, 25};
  const std::vector<double> eight = {10, 1, 1, 1, 9, 1, 1, 8};

  EXPECT_THAT(Order(four, 2), ElementsAre(3, 0, 1, 2));
  EXPECT_THAT(GroupCosts(four, Order(four, 2), 2), ElementsAre(29, 25));
  EXPECT_THAT(Order(eight, 4), ElementsAre(0, 6, 4, 5, 7, 3, 1, 2));
  EXPECT_THAT(GroupCosts(eight, Order(eight, 4), 4), ElementsAre(11, 10, 9, 2));
  EXPECT_THAT(Order({0, 0, 5, 5}, 2), ElementsAre(2, 0, 3, 1));
}

TEST(BalancedOrder, OneGroupAndNoSamples) {
  EXPECT_THAT(Order({1, 2}, 1), ElementsAre(1, 0));
  EXPECT_THAT(Order({}, 3), IsEmpty());
  EXPECT_THAT(GroupCosts({}, {}, 2), ElementsAre(0, 0));
}

// The rule, written naively: the most expensive sample first, ties to the lower sample; each goes
// to the cheapest group with room, ties to the lower group.
std::vector<int64_t> ByTheRule(const std::vector<double>& costs, int64_t num_groups) {
  std::vector<std::vector<int64_t>> groups(static_cast<size_t>(num_groups));
  std::vector<double> sums(groups.size(), 0);
  std::vector<bool> dealt(costs.size(), false);
  for (size_t turn = 0; turn < costs.size(); ++turn) {
    size_t sample = costs.size();
    for (size_t i = costs.size(); i-- > 0;) {
      if (!dealt[i] && (sample == costs.size() || costs[i] >= costs[sample])) sample = i;
    }
    size_t group = groups.size();
    for (size_t g = groups.size(); g-- > 0;) {
      if (groups[g].size() == costs.size() / groups.size()) continue;
      if (group == groups.size() || sums[g] <= sums[group]) group = g;
    }
    dealt[sample] = true;
    groups[group].push_back(static_cast<int64_t>(sample));
    sums[group] += costs[sample];
  }
  std::vector<int64_t> order;
  for (const auto& group : groups) order.insert(order.end(), group.begin(), group.end());
  return order;
}

TEST(BalancedOrder, FollowsTheRuleOnRandomCosts) {
  std::mt19937 random(27);
  for (int c = 0; c < 10'000; ++c) {
    const int64_t groups = Draw(random, 1, 6);
    std::vector<double> costs(static_cast<size_t>(groups * Draw(random, 0, 5)));
    for (double& cost : costs) cost = static_cast<double>(Draw(random, 0, 20));

    ASSERT_EQ(Order(costs, groups), ByTheRule(costs, groups)) << "case " << c;
  }
}

// Costs like those of documents with images: the spread (most expensive group / mean) falls to 1.1
// or less.
TEST(BalancedOrder, EvensOutSkewedCosts) {
  std::mt19937 random(4608);
  std::lognormal_distribution<double> cost(6.5, 0.7);
  double before = 0;
  double after = 0;
  for (int c = 0; c < 100; ++c) {
    std::vector<double> costs(64);
    for (double& value : costs) value = cost(random);
    std::vector<int64_t> as_is(costs.size());
    std::iota(as_is.begin(), as_is.end(), int64_t{0});
    const double mean = std::accumulate(costs.begin(), costs.end(), 0.0) / 8;
    const auto spread = [&](const std::vector<int64_t>& order) {
      const std::vector<double> sums = GroupCosts(costs, order, 8);
      return *std::max_element(sums.begin(), sums.end()) / mean / 100;
    };
    before += spread(as_is);
    after += spread(Order(costs, 8));
  }
  EXPECT_GT(before, 1.3);
  EXPECT_LT(after, 1.1);
}

TEST(BalancedOrder, ErrorsNameTheValues) {
  const auto message = [](const std::vector<double>& costs, int64_t num_groups) {
    return std::string(BalancedOrder(costs, num_groups).status().message());
  };

  EXPECT_EQ(message({1, 2, 3}, 2),
            "mimo: 3 samples cannot be dealt equally to 2 groups; use 2 or 4");
  EXPECT_EQ(message({1}, 0), "mimo: num_groups is 0; it must be positive");
  EXPECT_EQ(message({1, -1}, 1), "mimo: sample 1 costs -1; a cost is finite and not negative");
  EXPECT_THAT(message({std::nan("")}, 1), HasSubstr("sample 0 costs"));
  EXPECT_THAT(message({std::numeric_limits<double>::infinity()}, 1),
              HasSubstr("sample 0 costs inf"));
}

TEST(SampleCosts, CountTokensOfItemsAndOfText) {
  const Ownership images = *MakeOwnership({0, 2}, {4, 6});

  EXPECT_THAT(SampleCosts(images, {100, 50}, 2.0, 0.5), ElementsAre(50, 45));
}

TEST(RowOrder, RowsAndTheirTableMoveTogether) {
  const Ownership images = *MakeOwnership({1, 0, 2}, {2, 1, 3});

  EXPECT_THAT(RowOrder(images, RowsOf::kSamples, {2, 0, 1}), ElementsAre(2, 0, 1));
  EXPECT_THAT(RowOrder(images, RowsOf::kItems, {2, 0, 1}), ElementsAre(1, 2, 0));
  EXPECT_THAT(RowOrder(images, RowsOf::kTokens, {2, 0, 1}), ElementsAre(2, 3, 4, 5, 0, 1));
  EXPECT_EQ(Reordered(images, {2, 0, 1}), *MakeOwnership({2, 1, 0}, {1, 3, 2}));
}

TEST(RowOrder, EverySampleKeepsItsRows) {
  std::mt19937 random(5);
  for (int c = 0; c < 1'000; ++c) {
    const Ownership before = RandomOwnership(random, Draw(random, 0, 8));
    std::vector<int64_t> order(static_cast<size_t>(before.num_samples()));
    std::iota(order.begin(), order.end(), int64_t{0});
    std::shuffle(order.begin(), order.end(), random);

    const Ownership after = Reordered(before, order);

    ASSERT_TRUE(ValidateOwnership(after).ok());
    for (RowsOf rows_of : {RowsOf::kSamples, RowsOf::kItems, RowsOf::kTokens}) {
      const std::vector<int64_t> rows = RowOrder(before, rows_of, order);
      for (size_t p = 0; p < order.size(); ++p) {
        const auto position = static_cast<int64_t>(p);
        const Range now = RowsOfSamples(after, rows_of, {position, position + 1});
        const Range then = RowsOfSamples(before, rows_of, {order[p], order[p] + 1});
        ASSERT_EQ(now.size(), then.size());
        for (int64_t i = 0; i < now.size(); ++i) {
          ASSERT_EQ(rows[static_cast<size_t>(now.begin + i)], then.begin + i);
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::mimo
