#include "sharding/ring/exchange.h"

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

class Exchanges : public testing::TestWithParam<int> {};  // ranks

// Rank a gives rank b (a + 2 b) % 3 elements of the value 10 a + b: some give nothing to some.
TEST_P(Exchanges, BringEachRankWhatTheOthersGiveIt) {
  const std::optional<Rank> rank = OnRanks(GetParam());
  if (!rank.has_value()) return;
  const auto group = MeetOverGloo(*rank).group;
  const auto parts = [&](auto count, auto value) {
    std::vector<at::Tensor> tensors;
    for (int64_t other = 0; other < rank->world_size; ++other)
      tensors.push_back(at::full({count(other)}, value(other), at::kLong));
    return at::cat(tensors);
  };
  const auto counts = [&](auto count) {
    std::vector<int64_t> of_ranks;
    for (int64_t other = 0; other < rank->world_size; ++other) of_ranks.push_back(count(other));
    return of_ranks;
  };
  const int64_t own = rank->rank;
  const auto gives = [&](int64_t other) { return (own + 2 * other) % 3; };
  const auto takes = [&](int64_t other) { return (other + 2 * own) % 3; };
  const at::Tensor x = parts(gives, [&](int64_t other) { return 10 * own + other; });

  Exchange exchange(x, counts(gives), counts(takes), group);
  const at::Tensor sum = x.sum();  // the tensor stays as it is while it travels

  EXPECT_TRUE(exchange.Wait().equal(parts(takes, [&](int64_t other) { return 10 * other + own; })));
}

INSTANTIATE_TEST_SUITE_P(Ranks, Exchanges, testing::Values(1, 2, 3, 4));

// A rank that gives and takes nothing has joined all the same.
TEST(Exchange, HasSeveralUnderWay) {
  const std::optional<Rank> rank = OnRanks(3);
  if (!rank.has_value()) return;
  const auto group = MeetOverGloo(*rank).group;
  const bool swaps = rank->rank < 2;
  std::vector<int64_t> counts = {0, 0, 0};
  if (swaps) counts[static_cast<size_t>(1 - rank->rank)] = 2;
  const at::Tensor x = at::full({swaps ? 2 : 0}, rank->rank, at::kDouble);

  Exchange first(x, counts, counts, group);
  Exchange second(x + 10, counts, counts, group);

  EXPECT_TRUE(second.Wait().equal(at::full({swaps ? 2 : 0}, 11.0 - rank->rank, at::kDouble)));
  EXPECT_TRUE(first.Wait().equal(at::full({swaps ? 2 : 0}, 1.0 - rank->rank, at::kDouble)));
}

TEST(Exchange, NamesMistakes) {
  const std::optional<Rank> rank = OnRanks(1);
  if (!rank.has_value()) return;
  const auto group = MeetOverGloo(*rank).group;
  const at::Tensor x = at::ones({2});

  EXPECT_THAT(MessageOf([&] {
                Exchange(x, {1, 1}, {2}, group);
              }),
              HasSubstr("gives has 2 counts, but the group has 1 ranks"));
  EXPECT_THAT(MessageOf([&] { Exchange(x, {2}, {-1}, group); }), HasSubstr("the count -1"));
  EXPECT_THAT(MessageOf([&] { Exchange(x, {1}, {1}, group); }),
              HasSubstr("gives adds up to 1 elements, but x has 2"));
  Exchange exchange(x, {2}, {2}, group);
  exchange.Wait();
  EXPECT_THAT(MessageOf([&] { exchange.Wait(); }), HasSubstr("have been taken before"));
}

}  // namespace
}  // namespace lockstep::sharding
