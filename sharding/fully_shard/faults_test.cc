// Mistakes around a sharded model, and the errors that the ranks get.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Functions.h"
#include "ATen/core/grad_mode.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sharding/fully_shard/fully_shard.h"
#include "sharding/testing/fixture.h"
#include "tests/support/ranks.h"

namespace lockstep::sharding {
namespace {

using ::lockstep::tests::OnRanks;
using ::lockstep::tests::Rank;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

FullyShard Sharded(const Net& net, const World::Groups& groups,
                   FullyShardOptions options = FullyShardOptions()) {
  return FullyShard(net.Units(), {}, groups.shard, groups.control, std::move(options));
}

FullyShardOptions AtLine(int rank) {
  FullyShardOptions options;
  options.place = [rank] { return absl::StrCat("train.lua:4", rank); };
  return options;
}

TEST(Faults, ASkippedUnitIsNamedOnEveryRank) {
  const std::optional<Rank> rank = OnRanks(3);
  if (!rank.has_value()) return;
  World world(*rank);
  const World::Groups groups = world.Make();
  const Net net(3, 1);
  FullyShardOptions options = AtLine(world.rank());
  options.prefetch = 0;
  FullyShard model = Sharded(net, groups, options);
  const bool skips = world.rank() == 1;
  net.Loss(&model, Tokens(world.rank(), 0), {0, 1, 2}).backward();

  const std::string message = Message([&] {
    net.Loss(&model, Tokens(world.rank(), 1),
             skips ? std::vector<size_t>{0, 2} : std::vector<size_t>{0, 1, 2});
  });

  EXPECT_THAT(message, AllOf(HasSubstr("fully_shard: the ranks differ in pass 2:"),
                             HasSubstr("rank 1: gathers \"layers.2\" for forward (train.lua:41)"),
                             HasSubstr("Give each rank a micro-batch of the same kind")));
}

// All ranks have gathered "layers.1" ahead. The collectives of this pass are the same on all.
TEST(Faults, ASkippedUnitThatWasGatheredAheadIsNamedInTheSameForward) {
  const std::optional<Rank> rank = OnRanks(2);
  if (!rank.has_value()) return;
  World world(*rank);
  const World::Groups groups = world.Make();
  const Net net(3, 1);
  FullyShard model = Sharded(net, groups, AtLine(world.rank()));
  const bool skips = world.rank() == 1;
  const at::NoGradGuard no_grad;
  net.Loss(&model, Tokens(0, 0), {0, 1, 2});

  EXPECT_THAT(Message([&] {
                net.Loss(&model, Tokens(0, 1),
                         skips ? std::vector<size_t>{0, 2} : std::vector<size_t>{0, 1, 2});
              }),
              AllOf(HasSubstr("the ranks differ in pass 2:"),
                    HasSubstr("rank 0: gathers \"layers.2\" for forward (train.lua:40), after "
                              "\"layers.0\", \"layers.1\"\n"),
                    HasSubstr("rank 1: gathers \"layers.2\" for forward (train.lua:41), after "
                              "\"layers.0\"\n")));
}

TEST(Faults, ASkippedLastUnitIsNamedBeforeTheRanksLeaveThePass) {
  const std::optional<Rank> rank = OnRanks(2);
  if (!rank.has_value()) return;
  World world(*rank);
  const World::Groups groups = world.Make();
  const Net net(2, 1);
  FullyShard model = Sharded(net, groups, AtLine(world.rank()));

  EXPECT_THAT(Message([&] {
                net.Loss(&model, Tokens(0, 0),
                         world.rank() == 0 ? std::vector<size_t>{0, 1} : std::vector<size_t>{0});
              }),
              AllOf(HasSubstr("rank 0: gathers \"layers.1\" for forward (train.lua:40)"),
                    HasSubstr("rank 1: ends forward (train.lua:41)")));
}

// Ranks whose graphs differ where their forward passes did not.
TEST(Faults, AUnitThatOneRanksBackwardLeavesOutIsNamed) {
  const std::optional<Rank> rank = OnRanks(2);
  if (!rank.has_value()) return;
  World world(*rank);
  const World::Groups groups = world.Make();
  const Net net(2, 1);
  FullyShard model = Sharded(net, groups, AtLine(world.rank()));
  model.BeginForward(0, {});
  const at::Tensor x = at::embedding(net.embedding, Tokens(0, 0));
  const at::Tensor y = net.Call(&model, 0, x);
  const at::Tensor loss = at::linear(world.rank() == 0 ? y : x, net.head).sum();
  model.EndForward(0, {loss});

  EXPECT_THAT(Message([&] { loss.backward(); }),
              AllOf(HasSubstr("rank 0: reduces the gradients of \"layers.0\" in backward"),
                    HasSubstr("rank 1: reduces the gradients of the root in backward")));
}

TEST(Faults, ARankThatDiesIsNamed) {
  const std::optional<Rank> rank = OnRanks(2);
  if (!rank.has_value()) return;
  World world(*rank);
  const World::Groups groups = world.Make();
  const Net net(2, 1);
  FullyShard model = Sharded(net, groups);
  net.Loss(&model, Tokens(0, 0), {0, 1}).backward();
  if (world.rank() == 1) return;  // its connections close

  EXPECT_THAT(Message([&] {
                net.Loss(&model, Tokens(0, 0), {0, 1}).backward();
              }),
              HasSubstr("fully_shard: rank 0 gathers the root for forward in pass 2, and not all "
                        "ranks came: "));
}

TEST(Faults, DifferentModelsAndOptionsAreNamed) {
  const std::optional<Rank> rank = OnRanks(2);
  if (!rank.has_value()) return;
  World world(*rank);
  const World::Groups groups = world.Make();
  FullyShardOptions options;
  options.prefetch = 1 + world.rank();
  const Net same(2, 1), other(2, 1, /*hidden=*/6 + world.rank());

  EXPECT_THAT(Message([&] { Sharded(same, groups, options); }),
              AllOf(HasSubstr("in 1 places"), HasSubstr("rank 0: prefetch: 1"),
                    HasSubstr("rank 1: prefetch: 2")));
  EXPECT_THAT(Message([&] { Sharded(other, groups); }),
              AllOf(HasSubstr("rank 0: unit \"\", embedding: Double [11, 6], trained"),
                    HasSubstr("rank 1: unit \"\", embedding: Double [11, 7], trained")));
}

// All ranks take the values of rank 0.
TEST(Faults, DifferentFirstValuesBecomeThoseOfRank0) {
  const std::optional<Rank> rank = OnRanks(2);
  if (!rank.has_value()) return;
  World world(*rank);
  const World::Groups groups = world.Make();
  const Net net(2, 1 + static_cast<uint64_t>(world.rank())), first(2, 1);
  const at::Tensor buffer = at::full({3}, world.rank());
  FullyShard model(net.Units(), {buffer}, groups.shard, groups.control, {});

  EXPECT_TRUE(at::equal(model.GatherWhole(1)[0].tensor, first.layers[0].weight));
  EXPECT_TRUE(at::equal(buffer, at::zeros({3}, buffer.options())));
}

TEST(Faults, AWeightOutsideItsUnitIsNamed) {
  const std::optional<Rank> rank = OnRanks(2);
  if (!rank.has_value()) return;
  World world(*rank);
  const World::Groups groups = world.Make();
  const Net net(1, 1);
  FullyShard model = Sharded(net, groups);

  EXPECT_THAT(Message([&] { net.layers[0].weight.sum(); }),
              HasSubstr("\"layers.0.weight\" is sharded now, and its values are not here"));
  model.BeginFull();
  EXPECT_EQ(Message([&] { net.Compute(0, at::zeros({1, 6}, at::kDouble)); }), "");
  model.EndFull();
}

// A graph that no hook can see: the output left the unit by another way than its results.
TEST(Faults, AHiddenOutputIsAnErrorAndNeverAWrongGradient) {
  const std::optional<Rank> rank = OnRanks(2);
  if (!rank.has_value()) return;
  World world(*rank);
  const World::Groups groups = world.Make();
  const Net net(2, 1);
  FullyShard model = Sharded(net, groups);
  const at::Tensor x = at::ones({1, 6}, at::kDouble).set_requires_grad(true);
  model.BeginForward(1, {x});
  const at::Tensor hidden = net.Compute(0, x);
  model.EndForward(1, {});
  net.Call(&model, 1, x);

  EXPECT_THAT(Message([&] { hidden.sum().backward(); }),
              AnyOf(HasSubstr("modified by an inplace"), HasSubstr("is sharded now")));
}

// The hook on the output's own node is lost there, and that on its base's node remains.
TEST(Faults, AChangeInPlaceOfAViewThatAUnitReturnsKeepsItsBackward) {
  const std::optional<Rank> rank = OnRanks(2);
  if (!rank.has_value()) return;
  World world(*rank);
  const World::Groups groups = world.Make();
  const Net net(2, 1), reference(2, 1);
  FullyShard model = Sharded(net, groups);
  const auto loss_of = [&](const Net& one, FullyShard* sharded) {
    const at::Tensor x = at::ones({2, 6}, at::kDouble).set_requires_grad(true);
    if (sharded != nullptr) sharded->BeginForward(1, {x});
    const at::Tensor view = one.Compute(0, x)[0];
    if (sharded != nullptr) sharded->EndForward(1, {view});
    view.mul_(2);
    one.Call(sharded, 1, x.detach());  // takes the first unit's place
    return view.sum();
  };

  loss_of(net, &model).backward();

  loss_of(reference, nullptr).backward();
  const std::vector<NamedTensor> shards = model.Shards();
  std::vector<at::Tensor> gradients;
  for (const NamedTensor& shard : shards) {
    if (shard.name.rfind("layers.0", 0) == 0) gradients.push_back(shard.tensor.grad());
  }
  const auto whole = model.GatherWhole(1, gradients);
  EXPECT_LT((whole[0].tensor - reference.layers[0].weight.grad()).abs().max().item<double>(),
            1e-12);
}

TEST(Faults, AnErrorInBackwardLeavesTheModelUsable) {
  const std::optional<Rank> rank = OnRanks(2);
  if (!rank.has_value()) return;
  World world(*rank);
  const World::Groups groups = world.Make();
  const Net net(3, 1);
  FullyShard model = Sharded(net, groups);
  at::Tensor loss = net.Loss(&model, Tokens(0, 0), {0, 1, 2});
  loss.register_hook([](const at::Tensor&) { TORCH_CHECK(false, "in backward"); });
  EXPECT_THAT(Message([&] { loss.backward(); }), HasSubstr("in backward"));
  model.BeginForward(1, {});
  model.AbandonForward(1);

  for (int step = 0; step < 3; ++step) net.Loss(&model, Tokens(0, step), {0, 1, 2}).backward();
  EXPECT_EQ(model.Stats().joined, 0);
}

}  // namespace
}  // namespace lockstep::sharding
