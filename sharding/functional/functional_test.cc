#include "sharding/functional/functional.h"

#include <cmath>
#include <cstdint>
#include <functional>
#include <numeric>
#include <optional>
#include <vector>

#include "ATen/ATen.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/gloo_world.h"
#include "tests/support/message_of.h"
#include "tests/support/ranks.h"
#include "torch/csrc/autograd/autograd.h"

namespace lockstep::sharding::functional {
namespace {

using ::testing::HasSubstr;
using tests::GlooWorld;
using tests::MeetOverGloo;
using tests::MessageOf;
using tests::OnRanks;
using tests::Rank;

using Map = std::function<at::Tensor(const at::Tensor&)>;

// A leaf that differs from rank to rank.
at::Tensor Input(const Rank& rank, at::IntArrayRef sizes) {
  at::Tensor x = at::arange(1, 1 + c10::multiply_integers(sizes), at::kDouble).reshape(sizes);
  return (x * (1 + 0.25 * rank.rank)).sin().requires_grad_(true);
}

// A loss that weighs each element, and each rank, differently, and is not linear.
at::Tensor LossOf(const at::Tensor& y, const Rank& rank) {
  const at::Tensor weights = at::arange(1, 1 + y.numel(), at::kDouble).reshape(y.sizes());
  return (y * y * weights.cos() * (1 + rank.rank) + y * weights).sum();
}

double SumOverRanks(double value, const GlooWorld& world) {
  return AllReduce(at::tensor({value}, at::kDouble), world.group).item<double>();
}

// Compares the gradient of x on every rank with finite differences of the sum of all losses.
void CheckGradient(const Rank& rank, const GlooWorld& world, const at::Tensor& x, const Map& loss) {
  const at::Tensor gradient = torch::autograd::grad({loss(x)}, {x})[0];
  ASSERT_EQ(gradient.sizes(), x.sizes());
  constexpr double kStep = 1e-5;
  for (int owner = 0; owner < rank.world_size; ++owner) {
    for (int64_t i = 0; i < x.numel(); ++i) {
      double difference = 0;
      for (const double sign : {1.0, -1.0}) {
        at::Tensor moved = x.detach().clone();
        if (rank.rank == owner) moved.view({-1})[i] += sign * kStep;
        difference += sign * SumOverRanks(loss(moved.requires_grad_(true)).item<double>(), world);
      }
      if (rank.rank != owner) continue;
      EXPECT_NEAR(gradient.reshape({-1})[i].item<double>(), difference / (2 * kStep), 1e-6)
          << "element " << i << " of rank " << owner;
    }
  }
}

// The first gradient, and the gradient of that.
void CheckGradients(const Rank& rank, const GlooWorld& world, at::IntArrayRef sizes,
                    const Map& map) {
  const at::Tensor x = Input(rank, sizes);
  CheckGradient(rank, world, x, [&](const at::Tensor& t) { return LossOf(map(t), rank); });
  CheckGradient(rank, world, x, [&](const at::Tensor& t) {
    const at::Tensor first =
        torch::autograd::grad({LossOf(map(t), rank)}, {t}, {}, true, /*create_graph=*/true)[0];
    return LossOf(first, rank);
  });
}

class Gradients : public testing::TestWithParam<int> {};  // ranks

TEST_P(Gradients, AgreeWithFiniteDifferences) {
  const std::optional<Rank> rank = OnRanks(GetParam());
  if (!rank.has_value()) return;
  const GlooWorld world = MeetOverGloo(*rank);
  const auto& group = world.group;
  const int64_t n = rank->world_size;

  CheckGradients(*rank, world, {2, 2}, [&](const at::Tensor& x) { return AllReduce(x, group); });
  CheckGradients(*rank, world, {3},
                 [&](const at::Tensor& x) { return AllReduce(x, group, Reduction::kMean); });
  CheckGradients(*rank, world, {2, 2}, [&](const at::Tensor& x) { return AllGather(x, 0, group); });
  CheckGradients(*rank, world, {2},
                 [&](const at::Tensor& x) { return AllGather(x, 0, group).mul_(3); });
  CheckGradients(*rank, world, {2, 1, 2},
                 [&](const at::Tensor& x) { return AllGather(x, -2, group); });
  CheckGradients(*rank, world, {2 * n},
                 [&](const at::Tensor& x) { return ReduceScatter(x, 0, group); });
  CheckGradients(*rank, world, {2, n},
                 [&](const at::Tensor& x) { return ReduceScatter(x.t(), 0, group); });
  CheckGradients(*rank, world, {2, n},
                 [&](const at::Tensor& x) { return AllToAll(x, 1, 0, group); });
  CheckGradients(*rank, world, {n, 2},
                 [&](const at::Tensor& x) { return AllToAll(x, 0, 0, group); });
  // From rank r to rank s go (r - s) mod n rows: as many from every rank, which the differences
  // need, and 0 for some pairs.
  std::vector<int64_t> sent, received;
  for (int64_t r = 0; r < n; ++r) {
    sent.push_back((rank->rank - r + n) % n);
    received.push_back((r - rank->rank + n) % n);
  }
  CheckGradients(*rank, world, {std::accumulate(sent.begin(), sent.end(), int64_t{0}), 2},
                 [&](const at::Tensor& x) { return AllToAllRows(x, sent, received, group); });
  const std::vector<int64_t> none(n, 0);
  CheckGradients(*rank, world, {0, 2},
                 [&](const at::Tensor& x) { return AllToAllRows(x, none, none, group); });
  for (int source = 0; source < n; ++source) {
    CheckGradients(*rank, world, {3},
                   [&](const at::Tensor& x) { return Broadcast(x, source, group); });
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Gradients, testing::Values(1, 2, 3));

// The case that an in-place collective gets wrong: it gives the gradient of its own rank's term
// only.
TEST(AllReduce, GivesTheGradientOfTheSumOfAllLosses) {
  const std::optional<Rank> rank = OnRanks(2);
  if (!rank.has_value()) return;
  const GlooWorld world = MeetOverGloo(*rank);
  const at::Tensor w = at::full({1}, 0.5, at::kDouble).requires_grad_(true);

  const at::Tensor y = AllReduce((w * (rank->rank + 1)).exp(), world.group);
  const at::Tensor gradient = torch::autograd::grad({y.sum()}, {w})[0];

  // Both ranks' losses hold this rank's term.
  EXPECT_NEAR(gradient.item<double>(), 2 * (rank->rank + 1) * std::exp(0.5 * (rank->rank + 1)),
              1e-12);
}

TEST(Functional, ReturnsTheValuesOfTheCollectives) {
  const std::optional<Rank> rank = OnRanks(3);
  if (!rank.has_value()) return;
  const auto group = MeetOverGloo(*rank).group;
  const at::Tensor x = at::arange(6).view({2, 3}) + 10 * rank->rank;
  const at::Tensor before = x.clone();
  const auto of = [](int64_t r) { return at::arange(6).view({2, 3}) + 10 * r; };

  EXPECT_TRUE(AllReduce(x, group).equal(of(0) + of(1) + of(2)));
  EXPECT_TRUE(AllGather(x, 1, group).equal(at::cat({of(0), of(1), of(2)}, 1)));
  EXPECT_TRUE(ReduceScatter(x, 1, group).equal((of(0) + of(1) + of(2)).narrow(1, rank->rank, 1)));
  EXPECT_TRUE(
      AllToAll(x, 1, 0, group).equal(at::cat({of(0), of(1), of(2)}, 0).narrow(1, rank->rank, 1)));
  EXPECT_TRUE(Broadcast(x, 2, group).equal(of(2)));
  EXPECT_TRUE(x.equal(before)) << "x stays as it is";
  EXPECT_FALSE(AllReduce(x, group).requires_grad());
  EXPECT_EQ(AllGather(at::zeros({0, 2}), 0, group).sizes(), at::IntArrayRef({0, 2}));
}

TEST(Functional, AllToAllRowsSendsAsManyAsTheCountsSay) {
  const std::optional<Rank> rank = OnRanks(2);
  if (!rank.has_value()) return;
  const auto group = MeetOverGloo(*rank).group;
  const bool first = rank->rank == 0;
  const at::Tensor x = at::arange(first ? 3 : 2) + 10 * rank->rank;  // 0 1 2, and 10 11

  const at::Tensor y =
      first ? AllToAllRows(x, {0, 3}, {0, 2}, group) : AllToAllRows(x, {2, 0}, {3, 0}, group);

  EXPECT_TRUE(y.equal(at::arange(first ? 2 : 3) + (first ? 10 : 0)));
}

// A rank whose loss does not need the gradient of the result takes part all the same.
TEST(Gradients, OfARankWithoutAShareAreZero) {
  const std::optional<Rank> rank = OnRanks(2);
  if (!rank.has_value()) return;
  const GlooWorld world = MeetOverGloo(*rank);
  const at::Tensor x = at::ones({2}, at::kDouble).requires_grad_(true);

  const at::Tensor y = AllReduce(x, world.group);
  const at::Tensor loss = rank->rank == 0 ? (3 * y).sum() : (0 * y).sum();

  EXPECT_TRUE(torch::autograd::grad({loss}, {x})[0].equal(at::full({2}, 3, at::kDouble)));
}

TEST(Functional, RefusesMistakesBeforeAnyRankWaits) {
  const std::optional<Rank> rank = OnRanks(2);
  if (!rank.has_value()) return;
  const auto group = MeetOverGloo(*rank).group;

  EXPECT_THAT(MessageOf([&] {
                ReduceScatter(at::ones({3, 2}), 0, group);
              }),
              HasSubstr("dimension 0 has size 3, which is not divisible by the 2 ranks"));
  EXPECT_THAT(MessageOf([&] {
                AllToAll(at::ones({2, 5}), -1, 0, group);
              }),
              HasSubstr("all_to_all: dimension 1 has size 5"));
  EXPECT_THAT(MessageOf([&] { AllGather(at::ones({2}), 1, group); }),
              HasSubstr("all_gather: dimension 1 is out of range for a tensor of 1 dimensions"));
  EXPECT_THAT(MessageOf([&] { AllGather(at::ones({}), 0, group); }),
              HasSubstr("a tensor without dimensions has no parts"));
  EXPECT_THAT(MessageOf([&] {
                AllToAllRows(at::ones({2}), {2}, {1, 1}, group);
              }),
              HasSubstr("sent has 1 counts of rows, but the group has 2 ranks"));
  EXPECT_THAT(MessageOf([&] {
                AllToAllRows(at::ones({2}), {1, 1}, {3, -1}, group);
              }),
              HasSubstr("received has the count -1"));
  EXPECT_THAT(MessageOf([&] {
                AllToAllRows(at::ones({2}), {1, 2}, {1, 1}, group);
              }),
              HasSubstr("sent adds up to 3 rows, but the tensor has 2"));
  EXPECT_THAT(MessageOf([&] { Broadcast(at::ones({2}), 2, group); }),
              HasSubstr("position 2 is not one of the group's 2"));
  EXPECT_THAT(MessageOf([&] { AllReduce(at::ones({2}, at::kLong), group, Reduction::kMean); }),
              HasSubstr("the mean of whole numbers would be rounded"));
}

}  // namespace
}  // namespace lockstep::sharding::functional
