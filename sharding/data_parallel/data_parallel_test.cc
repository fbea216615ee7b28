#include "sharding/data_parallel/data_parallel.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ATen/ops/full.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/zeros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sharding/agreement/c10d_collective.h"
#include "tests/support/gloo_world.h"
#include "tests/support/ranks.h"
#include "torch/csrc/autograd/autograd.h"

namespace lockstep::sharding {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using tests::GlooWorld;
using tests::MeetOverGloo;
using tests::OnRanks;
using tests::Rank;

at::Tensor Parameter(double value) {
  return at::full({3}, value, at::kDouble).requires_grad_(true);
}

float First(const at::Tensor& tensor) { return tensor[0].item<float>(); }

// Returns the message of what `body` throws.
std::string Message(const std::function<void()>& body) {
  try {
    body();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing was thrown";
}

TEST(DataParallel, HeaderExample) {
  const std::optional<Rank> rank = OnRanks(2);
  if (!rank.has_value()) return;
  const GlooWorld world = MeetOverGloo(*rank);
  const at::Tensor weight = Parameter(1 + rank->rank);
  const std::vector<NamedTensor> parameters = {{"weight", weight}}, buffers;
  const auto control = std::make_shared<C10dCollective>(world.group);
  DataParallel replicas(parameters, buffers, world.group, {.control = control});
  EXPECT_EQ(First(weight), 1) << "the weights are rank 0's";

  replicas.BeginPass(parameters, buffers);
  replicas.BeforeForward(buffers);
  const std::vector<at::Tensor> outputs = replicas.AfterForward({weight * (10 + rank->rank)});
  outputs[0].sum().backward();

  EXPECT_EQ(First(weight.grad()), 10.5);
}

// Without a control, too: a parameter that is thawed is averaged, and a new one gets rank 0's
// values.
TEST(DataParallel, FollowsTheParametersThatEachPassGives) {
  const std::optional<Rank> rank = OnRanks(2);
  if (!rank.has_value()) return;
  const GlooWorld world = MeetOverGloo(*rank);
  const at::Tensor weight = Parameter(1), frozen = Parameter(2).detach();
  DataParallel replicas({{"weight", weight}, {"frozen", frozen}}, {}, world.group, {});
  frozen.requires_grad_(true);
  const at::Tensor added = Parameter(3 + rank->rank);
  const std::vector<NamedTensor> now = {{"weight", weight}, {"frozen", frozen}, {"added", added}};

  EXPECT_TRUE(replicas.BeginPass(now, {}));
  EXPECT_FALSE(replicas.BeginPass(now, {}));
  EXPECT_EQ(First(added), 3);
  replicas.BeforeForward({});
  replicas.AfterForward({(weight + frozen + added) * (10 + rank->rank)})[0].sum().backward();

  for (const NamedTensor& parameter : now)
    EXPECT_EQ(First(parameter.tensor.grad()), 10.5) << parameter.name;
}

// Both ranks get the error in the pass in which they differ.
TEST(DataParallel, NamesRanksThatBeginDifferentPassesOrHoldDifferentWeights) {
  const std::optional<Rank> rank = OnRanks(2);
  if (!rank.has_value()) return;
  const GlooWorld world = MeetOverGloo(*rank);
  const auto new_replicas = [&](const std::vector<NamedTensor>& parameters) {
    const auto control = std::make_shared<C10dCollective>(world.group);
    return std::make_unique<DataParallel>(parameters, std::vector<NamedTensor>(), world.group,
                                          DataParallelOptions{.control = control});
  };
  const std::vector<NamedTensor> parameters = {{"weight", Parameter(1)}};
  const auto first = new_replicas(parameters), second = new_replicas(parameters);
  (rank->rank == 0 ? first : second)->BeginPass(parameters, {});
  EXPECT_THAT(Message([&] { first->BeginPass(parameters, {}); }),
              HasSubstr("the ranks begin different passes; by rank: 2, 1"));

  const std::vector<NamedTensor> drifting = {{"weight", Parameter(1)}};
  const auto third = new_replicas(drifting);
  third->BeginPass(drifting, {});
  drifting[0].tensor.detach().add_(rank->rank);
  EXPECT_THAT(Message([&] { third->BeginPass(drifting, {}); }),
              HasSubstr("the replicas have drifted apart before pass 2: \"weight\" is equal only "
                        "among the ranks of each of {0}, {1}, and no other parameter differs. "
                        "They were equal before pass 1"));
}

TEST(DataParallel, TakesTheBuffersThatEachForwardGives) {
  const std::optional<Rank> rank = OnRanks(2);
  if (!rank.has_value()) return;
  const GlooWorld world = MeetOverGloo(*rank);
  const at::Tensor weight = Parameter(1);
  DataParallel replicas({{"weight", weight}}, {{"mean", at::zeros({2})}}, world.group, {});
  const at::Tensor other = at::full({2}, 5.0 + rank->rank);

  replicas.BeforeForward({{"mean", other}});

  EXPECT_EQ(First(other), 5);
  const std::string message = Message([&] { replicas.BeforeForward({{"mean", at::zeros({4})}}); });
  EXPECT_THAT(message,
              AllOf(HasSubstr("rank " + std::to_string(rank->rank)),
                    HasSubstr("mean: Float [2], buffer"), HasSubstr("mean: Float [4], buffer")));
}

TEST(DataParallel, WithoutBroadcastBuffersTheyMayEvenDiffer) {
  const std::optional<Rank> rank = OnRanks(2);
  if (!rank.has_value()) return;
  const GlooWorld world = MeetOverGloo(*rank);
  const at::Tensor weight = Parameter(1);
  const std::vector<NamedTensor> buffers = {{"mean", at::full({2 + rank->rank}, 7.0 + rank->rank)}};
  DataParallelOptions options;
  options.broadcast_buffers = false;
  DataParallel replicas({{"weight", weight}}, buffers, world.group, options);

  replicas.BeforeForward(buffers);

  EXPECT_EQ(First(buffers[0].tensor), 7 + rank->rank);
}

TEST(DataParallel, MessagesNameTheRanksOfTheWorld) {
  const std::optional<Rank> rank = OnRanks(2);
  if (!rank.has_value()) return;
  const GlooWorld world = MeetOverGloo(*rank);
  DataParallelOptions options;
  options.ranks = {3, 8};

  EXPECT_THAT(Message([&] {
                DataParallel({{"weight", at::ones({2 + rank->rank}).requires_grad_(true)}}, {},
                             world.group, options);
              }),
              AllOf(HasSubstr("rank 3: weight: Float [2], trained"),
                    HasSubstr("rank 8: weight: Float [3], trained")));
  options.bucket_bytes += rank->rank;
  EXPECT_THAT(Message([&] {
                DataParallel({{"weight", Parameter(1)}}, {}, world.group, options);
              }),
              AllOf(HasSubstr("rank 3: bucket_bytes"), HasSubstr("rank 8: bucket_bytes")));
}

// The memory that a view of the bucket saves: the gradient is not a tensor of its own.
TEST(DataParallel, AGradientIsAViewOfItsBucket) {
  const std::optional<Rank> rank = OnRanks(2);
  if (!rank.has_value()) return;
  const GlooWorld world = MeetOverGloo(*rank);
  for (const bool view : {true, false}) {
    const at::Tensor weight = Parameter(1);
    DataParallelOptions options;
    options.gradient_as_bucket_view = view;
    DataParallel replicas({{"weight", weight}}, {}, world.group, options);

    replicas.BeforeForward({});
    replicas.AfterForward({weight * 2})[0].sum().backward();

    EXPECT_EQ(weight.grad().is_view(), view);
    EXPECT_EQ(First(weight.grad()), 2);
  }
}

// The first backward of a static graph uses the Reducer. Without an owner in the graph it would use
// freed memory here.
TEST(DataParallel, AStaticGraphMayOutliveTheReplicas) {
  const std::optional<Rank> rank = OnRanks(2);
  if (!rank.has_value()) return;
  const GlooWorld world = MeetOverGloo(*rank);
  const at::Tensor weight = Parameter(1);
  DataParallelOptions options;
  options.static_graph = true;
  auto replicas =
      std::make_optional<DataParallel>(std::vector<NamedTensor>{{"weight", weight}},
                                       std::vector<NamedTensor>{}, world.group, options);
  replicas->BeforeForward({});
  const at::Tensor loss = replicas->AfterForward({weight * (10 + rank->rank)})[0].sum();

  replicas.reset();
  loss.backward();

  EXPECT_EQ(First(weight.grad()), 10.5);
}

TEST(DataParallel, WithoutSyncGradientsAddUpLocally) {
  const std::optional<Rank> rank = OnRanks(2);
  if (!rank.has_value()) return;
  const GlooWorld world = MeetOverGloo(*rank);
  const at::Tensor weight = Parameter(1);
  DataParallel replicas({{"weight", weight}}, {}, world.group, {});
  const auto pass = [&](double factor) {
    replicas.BeforeForward({});
    replicas.AfterForward({weight * factor})[0].sum().backward();
  };

  replicas.set_sync(false);
  pass(1 + rank->rank);
  EXPECT_EQ(First(weight.grad()), 1 + rank->rank);
  replicas.set_sync(true);
  pass(10 + rank->rank);

  EXPECT_EQ(First(weight.grad()), 12) << "the mean of 11 and 13";
}

// The Reducer alone would leave the rank's own gradient of the second backward, and no error.
TEST(DataParallel, ASecondBackwardSinceTheLastForwardIsAnError) {
  const std::optional<Rank> rank = OnRanks(2);
  if (!rank.has_value()) return;
  const GlooWorld world = MeetOverGloo(*rank);
  const at::Tensor weight = Parameter(1);
  DataParallel replicas({{"weight", weight}}, {}, world.group, {});
  const auto forward = [&](double factor) {
    replicas.BeforeForward({});
    return replicas.AfterForward({weight * factor})[0].sum();
  };
  const std::string second =
      "rank " + std::to_string(rank->rank) + " this backward pass is the second";

  const at::Tensor first_loss = forward(1), second_loss = forward(2);
  first_loss.backward();
  EXPECT_THAT(Message([&] { second_loss.backward(); }), HasSubstr(second));

  const at::Tensor kept = forward(1);
  kept.backward({}, /*retain_graph=*/true);
  EXPECT_THAT(Message([&] { kept.backward(); }), HasSubstr(second));
}

TEST(DataParallel, OneBackwardOfSeveralForwardsIsAveraged) {
  const std::optional<Rank> rank = OnRanks(2);
  if (!rank.has_value()) return;
  const GlooWorld world = MeetOverGloo(*rank);
  const at::Tensor weight = Parameter(1);
  DataParallel replicas({{"weight", weight}}, {}, world.group, {});
  const auto forward = [&](double factor) {
    replicas.BeforeForward({});
    return replicas.AfterForward({weight * factor})[0].sum();
  };

  const at::Tensor dropped = forward(100);
  const at::Tensor loss = forward(1) + forward(2 + rank->rank);
  // Gradients of the output alone fill none of the parameters.
  torch::autograd::grad({loss}, {weight}, {}, /*retain_graph=*/true);
  loss.backward();
  EXPECT_EQ(First(weight.grad()), 3.5);

  // The backward of a pass without averaging may come later.
  replicas.set_sync(false);
  const at::Tensor own = forward(1 + rank->rank);
  replicas.set_sync(true);
  own.backward();
  EXPECT_EQ(First(weight.grad()), 4.5 + rank->rank);
}

TEST(DataParallel, BucketsMustHoldEachParameterOnce) {
  const std::optional<Rank> rank = OnRanks(1);
  if (!rank.has_value()) return;
  const GlooWorld world = MeetOverGloo(*rank);
  DataParallel replicas({{"a", Parameter(1)}, {"b", Parameter(1)}}, {}, world.group, {});

  EXPECT_THAT(Message([&] { replicas.SetBuckets({{0, 0}}); }), HasSubstr("or is there twice"));
  EXPECT_THAT(Message([&] { replicas.SetBuckets({{1}}); }), HasSubstr("hold 1 of 2"));
  replicas.SetBuckets({{1}, {0}});
}

}  // namespace
}  // namespace lockstep::sharding
