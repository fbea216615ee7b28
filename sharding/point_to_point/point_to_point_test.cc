#include "sharding/point_to_point/point_to_point.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/gloo_world.h"
#include "tests/support/message_of.h"
#include "tests/support/ranks.h"

namespace lockstep::sharding {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using tests::GlooWorld;
using tests::MeetOverGloo;
using tests::MessageOf;
using tests::OnRanks;
using tests::Rank;

Peer PeerAt(const GlooWorld& world, int position, int tag = 0) {
  return {.group = world.group, .position = position, .rank = position, .tag = tag};
}

TEST(SendTensor, HeaderExample) {
  const std::optional<Rank> rank = OnRanks(2);
  if (!rank.has_value()) return;
  const GlooWorld world = MeetOverGloo(*rank);
  const auto group = world.group;
  const at::Tensor x = at::arange(6).view({2, 3}), y = at::zeros({2, 3}, at::kLong);

  if (rank->rank == 0) SendTensor(x, {.group = group, .position = 1, .rank = 1}, "train.cc:9");
  if (rank->rank == 1) {
    ReceiveTensor(y, {.group = group, .position = 0, .rank = 0});

    EXPECT_TRUE(y.equal(x)) << y;
  }
}

TEST(SendTensor, KeepsTheValuesOfEveryDtypeAndOfEveryView) {
  const std::optional<Rank> rank = OnRanks(2);
  if (!rank.has_value()) return;
  const GlooWorld world = MeetOverGloo(*rank);
  std::vector<at::Tensor> cases = {at::arange(6).view({2, 3}).t(),
                                   at::complex(at::ones({2}), at::arange(2, at::kFloat)).conj(),
                                   at::zeros({0}), at::ones({}, at::kDouble).requires_grad_(true)};
  for (const at::ScalarType dtype : {at::kBool, at::kChar, at::kInt, at::kLong, at::kHalf,
                                     at::kBFloat16, at::kFloat, at::kDouble}) {
    cases.push_back(at::arange(3).to(dtype));
  }
  for (const at::Tensor& x : cases) {
    if (rank->rank == 0) {
      SendTensor(x, PeerAt(world, 1), "");
      continue;
    }
    const at::Tensor y = at::full_like(x.detach(), 1, at::MemoryFormat::Contiguous);
    ReceiveTensor(y, PeerAt(world, 0));

    EXPECT_TRUE(y.equal(x.detach())) << y << x;
  }
}

TEST(ReceiveTensor, OfAnotherDtypeOrShapeIsAnErrorAndTheNextMessageIsInOrder) {
  const std::optional<Rank> rank = OnRanks(2);
  if (!rank.has_value()) return;
  const GlooWorld world = MeetOverGloo(*rank);
  const struct {
    at::Tensor sent, x;
    std::string message;
  } cases[] = {
      {at::ones({3}), at::zeros({3}, at::kHalf),
       "rank 0 sends float32 {3} on cpu (train.cc:9), but x is float16 {3} on cpu; receive into"},
      {at::ones({3}, at::kHalf), at::zeros({3}),
       "float16 {3} on cpu (train.cc:9), but x is float3"},
      {at::ones({3}), at::zeros({3}, at::kInt), "but x is int32 {3} on cpu"},
      {at::ones({2, 3}), at::zeros({3, 2}), "float32 {2, 3} on cpu (train.cc:9), but x is float32"},
      {at::ones({70000}), at::zeros({0}),
       "float32 {70000} on cpu (train.cc:9), but x is float32 {0"},
  };
  for (const auto& test_case : cases) {
    const at::Tensor& x = test_case.x;
    if (rank->rank == 0) {
      SendTensor(test_case.sent, PeerAt(world, 1), "train.cc:9");
      SendTensor(at::full({2}, 7), PeerAt(world, 1), "train.cc:10");
      continue;
    }
    EXPECT_THAT(MessageOf([&] { ReceiveTensor(x, PeerAt(world, 0)); }),
                AllOf(StartsWith("rank 0 sends "), HasSubstr(test_case.message)));
    EXPECT_EQ(x.count_nonzero().item<int64_t>(), 0) << x;
    const at::Tensor next = at::zeros({2}, at::kLong);
    ReceiveTensor(next, PeerAt(world, 0));
    EXPECT_TRUE(next.equal(at::full({2}, 7))) << next;
  }
}

TEST(ReceiveTensor, TakesTheMessageOfItsTag) {
  const std::optional<Rank> rank = OnRanks(2);
  if (!rank.has_value()) return;
  const GlooWorld world = MeetOverGloo(*rank);
  for (const int tag : {5, 6}) {
    const at::Tensor x = at::zeros({}, at::kLong);
    if (rank->rank == 0) SendTensor(at::scalar_tensor(tag, at::kLong), PeerAt(world, 1, tag), "");
    if (rank->rank == 0) continue;
    ReceiveTensor(x, PeerAt(world, 0, tag));
    EXPECT_EQ(x.item<int64_t>(), tag);
  }
}

TEST(ReceiveTensor, OfAMessageWithoutAHeaderIsAnError) {
  const std::optional<Rank> rank = OnRanks(2);
  if (!rank.has_value()) return;
  const GlooWorld world = MeetOverGloo(*rank);
  if (rank->rank == 0) {
    std::vector<at::Tensor> bare = {at::ones({512}, at::kByte)};
    bare[0][511] = 0;
    world.group->send(bare, 1, 0)->wait();
    return;
  }
  EXPECT_THAT(MessageOf([&] { ReceiveTensor(at::zeros({3}), PeerAt(world, 0)); }),
              StartsWith("rank 0 has sent a message without a header"));
}

TEST(SendTensor, ShortensALongPlace) {
  const std::optional<Rank> rank = OnRanks(2);
  if (!rank.has_value()) return;
  const GlooWorld world = MeetOverGloo(*rank);
  if (rank->rank == 0) {
    SendTensor(at::ones({3}), PeerAt(world, 1), std::string(10000, 'x'));
    return;
  }
  EXPECT_THAT(MessageOf([&] { ReceiveTensor(at::ones({2}), PeerAt(world, 0)); }),
              HasSubstr("xxx), but x is float32 {2}"));
}

}  // namespace
}  // namespace lockstep::sharding
