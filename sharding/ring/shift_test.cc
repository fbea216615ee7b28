#include "sharding/ring/shift.h"

#include <cstdint>
#include <optional>
#include <vector>

#include "ATen/ATen.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/gloo_world.h"
#include "tests/support/message_of.h"
#include "tests/support/ranks.h"

namespace lockstep::sharding {
namespace {

using ::testing::HasSubstr;
using tests::MeetOverGloo;
using tests::MessageOf;
using tests::OnRanks;
using tests::Rank;

// The tensor that begins at a rank: as many rows as the rank's number, so rank 0 has none.
at::Tensor BeginsAt(int64_t rank) { return at::arange(rank * 3).view({rank, 3}) + 100 * rank; }

class Shifts : public testing::TestWithParam<int> {};  // ranks

TEST_P(Shifts, BringEveryRanksTensorToEveryRank) {
  const std::optional<Rank> rank = OnRanks(GetParam());
  if (!rank.has_value()) return;
  const auto group = MeetOverGloo(*rank).group;
  const int64_t ranks = rank->world_size;
  const at::Tensor own = BeginsAt(rank->rank);

  at::Tensor now = own;
  for (int64_t step = 1; step <= ranks; ++step) {
    const int64_t source = (rank->rank - step + ranks) % ranks;
    Shift shift(now, {source, 3}, group);
    const at::Tensor sum = now.sum();  // the tensor stays as it is while it travels
    now = shift.Wait();

    EXPECT_TRUE(now.equal(BeginsAt(source))) << "step " << step;
  }
  EXPECT_TRUE(own.equal(BeginsAt(rank->rank)));
}

INSTANTIATE_TEST_SUITE_P(Ranks, Shifts, testing::Values(1, 2, 3));

// Values that travel and gradients that follow them are under way together.
TEST(Shift, HasSeveralUnderWay) {
  const std::optional<Rank> rank = OnRanks(2);
  if (!rank.has_value()) return;
  const auto group = MeetOverGloo(*rank).group;

  Shift first(at::full({2}, rank->rank), {2}, group);
  Shift second(at::full({3}, rank->rank + 10.0), {3}, group);

  EXPECT_TRUE(second.Wait().equal(at::full({3}, 11.0 - rank->rank)));
  EXPECT_TRUE(first.Wait().equal(at::full({2}, 1 - rank->rank)));
}

TEST(Shift, TakesValuesInTheirOwnOrderAndNoGradient) {
  const std::optional<Rank> rank = OnRanks(2);
  if (!rank.has_value()) return;
  const auto group = MeetOverGloo(*rank).group;
  const at::Tensor x = at::arange(6, at::kDouble).view({2, 3}).requires_grad_(true);

  const at::Tensor y = Shift(x.t(), {3, 2}, group).Wait();

  EXPECT_TRUE(y.equal(x.t()));
  EXPECT_FALSE(y.requires_grad());
}

TEST(Shift, ThrowsWhereATensorIsTakenTwice) {
  const std::optional<Rank> rank = OnRanks(1);
  if (!rank.has_value()) return;
  Shift shift(at::ones({1}), {1}, MeetOverGloo(*rank).group);
  shift.Wait();

  EXPECT_THAT(MessageOf([&] { shift.Wait(); }), HasSubstr("the tensor has been taken before"));
}

}  // namespace
}  // namespace lockstep::sharding
