#include "sharding/point_to_point/link.h"

#include <memory>
#include <optional>
#include <vector>

#include "ATen/ops/arange.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/full.h"
#include "gtest/gtest.h"
#include "tests/support/gloo_world.h"
#include "tests/support/ranks.h"

namespace lockstep::sharding {
namespace {

using tests::GlooWorld;
using tests::MeetOverGloo;
using tests::OnRanks;
using tests::Rank;

TEST(Link, HeaderExample) {
  const std::optional<Rank> rank = OnRanks(2);
  if (!rank.has_value()) return;
  const GlooWorld world = MeetOverGloo(*rank);
  const int other = 1 - static_cast<int>(rank->rank);
  Link link(world.group, other, other);

  const at::Tensor own = at::full({3, 4}, rank->rank, at::kDouble);
  const at::Tensor theirs = at::empty({3, 4}, at::kDouble);
  const std::unique_ptr<MessageBatch> batch = link.Start({own}, {theirs});
  batch->Wait();

  EXPECT_TRUE(theirs.equal(at::full({3, 4}, other, at::kDouble)));
  batch->Wait();
}

TEST(Link, MessagesArriveInTheirOrderBeforeAnyIsWaitedFor) {
  const std::optional<Rank> rank = OnRanks(2);
  if (!rank.has_value()) return;
  const GlooWorld world = MeetOverGloo(*rank);
  const int other = 1 - static_cast<int>(rank->rank);
  Link link(world.group, other, other);
  std::vector<std::unique_ptr<MessageBatch>> batches;
  std::vector<at::Tensor> received;

  for (int i = 0; i < 8; ++i) {
    const at::Tensor x = at::arange(10 * i, 10 * i + 5, at::kLong).view({5, 1}).expand({5, 2});
    received.push_back(at::empty({5, 2}, at::kLong));
    batches.push_back(link.Start({x}, {received.back()}));
  }
  for (const auto& batch : batches) batch->Wait();

  for (int i = 0; i < 8; ++i) {
    EXPECT_TRUE(received[static_cast<size_t>(i)].equal(
        at::arange(10 * i, 10 * i + 5, at::kLong).view({5, 1}).expand({5, 2})));
  }
}

}  // namespace
}  // namespace lockstep::sharding
