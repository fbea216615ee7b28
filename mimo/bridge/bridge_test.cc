// The bridge and the gradients as a C++ caller uses them, on real processes over Gloo. Grids of
// every kind, and errors, are tested from Lua: driver/lualib/lockstep/mimo.

#include "mimo/bridge/bridge.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "ATen/ops/arange.h"
#include "ATen/ops/equal.h"
#include "ATen/ops/full.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/tensor.h"
#include "ATen/ops/zeros.h"
#include "ATen/ops/zeros_like.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "c10/core/InferenceMode.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "mimo/gradient/gradients.h"
#include "tests/support/gloo_world.h"
#include "tests/support/message_of.h"
#include "tests/support/ranks.h"
#include "torch/csrc/distributed/c10d/PrefixStore.hpp"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace lockstep::mimo {
namespace {

using ::testing::HasSubstr;
using tests::MessageOf;
using tests::OnRanks;
using tests::Rank;

// A group that counts what NCCL does not forgive.
class CountingGroup : public c10d::ProcessGroup {
 public:
  using ProcessGroup::ProcessGroup;

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    has_met = true;
    return ProcessGroup::allreduce(tensors, options);
  }
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int tag) override {
    ++num_sends;
    return ProcessGroup::send(tensors, to, tag);
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int from,
                                      int tag) override {
    ++num_receives;
    bytes_received += static_cast<int64_t>(tensors[0].nbytes());
    return ProcessGroup::recv(tensors, from, tag);
  }

  bool has_met = false;  // all ranks, in a collective
  int num_sends = 0, num_receives = 0;
  int64_t bytes_received = 0;
};

// Groups of ranks that meet in one store.
class Groups {
 public:
  explicit Groups(const Rank& rank) : rank_(rank.rank), world_(tests::MeetOverGloo(rank)) {}

  c10::intrusive_ptr<c10d::ProcessGroup> Make(const std::vector<int>& ranks,
                                              const std::string& purpose) {
    const auto store = c10::make_intrusive<c10d::PrefixStore>(
        absl::StrCat(purpose, "/", absl::StrJoin(ranks, ",")), world_.store);
    const int position =
        static_cast<int>(std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin());
    const auto group =
        c10::make_intrusive<CountingGroup>(store, position, static_cast<int>(ranks.size()));
    group->setBackend(c10::kCPU, c10d::ProcessGroup::BackendType::GLOO,
                      tests::NewGlooBackend(store, purpose, position, ranks));
    group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
    made[purpose] = group;
    return group;
  }

  NewGroup Maker() {
    return [this](const std::vector<int>& ranks, const std::string& purpose) {
      return Make(ranks, purpose);
    };
  }

  std::map<std::string, c10::intrusive_ptr<CountingGroup>> made;  // by purpose

 private:
  int rank_;
  // Keeps the first group, too: a rank that destroyed it at once would close a connection that the
  // other one may still be making.
  tests::GlooWorld world_;
};

// A process ends once all have what it sent.
void End(c10d::ProcessGroup& world) {
  Bridge::FinishAll();
  world.barrier()->wait();
}

Topology VisionOfTwoLanguageOfOne() {
  return *Topology::Make(3, {{.name = "vision", .dp = 2}, {.name = "language", .first_rank = 2}});
}

TEST(Bridge, HeaderExample) {
  const std::optional<Rank> rank = OnRanks(3);
  if (!rank.has_value()) return;
  Groups groups(*rank);
  const auto world = groups.Make({0, 1, 2}, "world");
  const Topology topology = VisionOfTwoLanguageOfOne();
  Bridge bridge(topology, /*edge=*/0, rank->rank, groups.Maker(), {});
  const Ownership images = *MakeOwnership({1, 0, 2, 1}, {4, 4, 4, 4});
  const at::Tensor whole = at::arange(32, at::kFloat).view({16, 2});

  if (rank->rank < 2) {
    const Range own = *RowsOfShard(images, RowsOf::kTokens, rank->rank, 2);
    const at::Tensor x = whole.narrow(0, own.begin, own.size()).clone().requires_grad_();

    const at::Tensor y = bridge.Run({x}, images)[0];
    y.sum().backward();

    EXPECT_EQ(y.sizes(), (std::vector<int64_t>{0, 2}));
    EXPECT_TRUE(at::equal(x.grad(), 2 * whole.narrow(0, own.begin, own.size())));
  } else {
    const at::Tensor tokens = bridge.Run({}, images)[0];

    EXPECT_TRUE(at::equal(tokens, whole));
    tokens.square().sum().backward();
  }
  End(*world);
}

// Sends 12 rows of 2 floats, 96 bytes, from rank 0 to a replica of three ranks. Expects that each
// receives a third from rank 0, and that a group gathers the rest only if it is to have all rows.
void ExpectAThirdOnEachRank(const Module& language, Receives receives) {
  const std::optional<Rank> rank = OnRanks(4);
  if (!rank.has_value()) return;
  Groups groups(*rank);
  const auto world = groups.Make({0, 1, 2, 3}, "world");
  const Topology topology = *Topology::Make(4, {{.name = "vision"}, language});
  Bridge bridge(topology, /*edge=*/0, rank->rank, groups.Maker(), {.receives = receives});
  const bool needs_all = receives == Receives::kReplica;
  const std::optional<Needs> thirds = Needs{{{0, 2}, {10, 12}}, {{2, 4}, {8, 10}}, {{4, 8}}};
  std::vector<at::Tensor> x;
  if (rank->rank == 0) x = {at::arange(24, at::kFloat).view({12, 2})};

  const at::Tensor y =
      bridge.Run(x, UniformOwnership(3, 4), "", needs_all ? std::nullopt : thirds)[0];

  EXPECT_EQ(groups.made["bridge vision -> language"]->bytes_received, rank->rank == 0 ? 0 : 32);
  EXPECT_EQ(groups.made.count("bridge vision -> language, replica of language"),
            rank->rank > 0 && needs_all ? 1 : 0);
  EXPECT_EQ(y.nbytes(), rank->rank == 0 ? 0 : needs_all ? 96 : 32);
  End(*world);
}

TEST(Bridge, ARankReceivesItsShareAndGathersTheOthers) {
  ExpectAThirdOnEachRank({.name = "language", .cp = 3, .first_rank = 1}, Receives::kReplica);
}

TEST(Bridge, ARankThatNeedsAChunkReceivesNoOtherRow) {
  ExpectAThirdOnEachRank({.name = "language", .cp = 3, .first_rank = 1}, Receives::kChunk);
}

TEST(Bridge, ARankThatNeedsAShardReceivesNoOtherRow) {
  ExpectAThirdOnEachRank({.name = "language", .tp = 3, .first_rank = 1}, Receives::kShard);
}

TEST(Bridge, ADisagreementIsAnErrorOnBothSides) {
  const std::optional<Rank> rank = OnRanks(3);
  if (!rank.has_value()) return;
  Groups groups(*rank);
  const auto world = groups.Make({0, 1, 2}, "world");
  Bridge bridge(VisionOfTwoLanguageOfOne(), /*edge=*/0, rank->rank, groups.Maker(), {});
  const bool sends = rank->rank < 2;
  const Ownership rows =
      *MakeOwnership({1, 1}, sends ? std::vector<int64_t>{1, 1} : std::vector<int64_t>{1, 2});
  std::string message;

  try {
    const at::Tensor x = at::ones({1, 2}).requires_grad_();
    const at::Tensor y =
        bridge.Run(sends ? std::vector<at::Tensor>{x} : std::vector<at::Tensor>(), rows)[0];
    y.sum().backward();
  } catch (const c10::Error& error) {
    message = error.what_without_backtrace();
  }

  EXPECT_THAT(message, HasSubstr("the ranks disagree about the micro-batch"));
  EXPECT_THAT(message, HasSubstr("rank 2 (language) has rows per sample {1, 2}"));
  world->barrier()->wait();
}

TEST(Bridge, AllRanksMeetInAGroupBeforeItsFirstRows) {
  const std::optional<Rank> rank = OnRanks(3);
  if (!rank.has_value()) return;
  Groups groups(*rank);
  const auto world = groups.Make({0, 1, 2}, "world");
  Bridge bridge(VisionOfTwoLanguageOfOne(), /*edge=*/0, rank->rank, groups.Maker(), {});
  for (const char* purpose : {"bridge vision -> language", "bridge vision -> language, gradient"})
    EXPECT_TRUE(groups.made[purpose]->has_met) << purpose;

  // Rank 1 has no rows.
  const Ownership images = *OwnershipOfRows({2, 0});
  const at::Tensor x = at::ones({rank->rank == 0 ? 2 : 0, 2});
  const at::Tensor y = bridge.Run(
      rank->rank < 2 ? std::vector<at::Tensor>{x} : std::vector<at::Tensor>(), images)[0];
  EXPECT_EQ(y.size(0), rank->rank == 2 ? 2 : 0);
  EXPECT_EQ(groups.made["bridge vision -> language"]->num_sends, rank->rank == 0 ? 1 : 0);
  End(*world);
}

TEST(Bridge, RanksThatDisagreeReceiveNoRows) {
  const std::optional<Rank> rank = OnRanks(3);
  if (!rank.has_value()) return;
  Groups groups(*rank);
  const auto world = groups.Make({0, 1, 2}, "world");
  Bridge bridge(VisionOfTwoLanguageOfOne(), /*edge=*/0, rank->rank, groups.Maker(), {});
  const bool sends = rank->rank < 2;
  const Ownership agreed = *OwnershipOfRows({1, 1});
  const Ownership rows =
      *OwnershipOfRows(sends ? std::vector<int64_t>{1, 1} : std::vector<int64_t>{1, 2});
  const std::vector<at::Tensor> x =
      sends ? std::vector<at::Tensor>{at::ones({1, 2})} : std::vector<at::Tensor>();
  bridge.Run(x, agreed);
  const int received = groups.made["bridge vision -> language"]->num_receives;

  const std::string message = MessageOf([&] {
    for (int call = 0; call < 3; ++call) bridge.Run(x, rows);
  });

  EXPECT_THAT(message, HasSubstr("the ranks disagree about the micro-batch"));
  EXPECT_EQ(groups.made["bridge vision -> language"]->num_receives, received);
  End(*world);
}

TEST(Bridge, AGradientIsFreedAsSoonAsItWasTaken) {
  const std::optional<Rank> rank = OnRanks(3);
  if (!rank.has_value()) return;
  Groups groups(*rank);
  const auto world = groups.Make({0, 1, 2}, "world");
  Bridge bridge(VisionOfTwoLanguageOfOne(), /*edge=*/0, rank->rank, groups.Maker(), {});
  const auto forward = [&] {
    const at::Tensor x = at::ones({1, 2}).requires_grad_();
    return bridge.Run(rank->rank < 2 ? std::vector<at::Tensor>{x} : std::vector<at::Tensor>())[0];
  };
  std::vector<at::Tensor> ys = {forward(), forward(), forward()};

  // Language sends three gradients; vision takes one of them before the next call.
  const size_t num_early = rank->rank < 2 ? 1 : 3;
  for (size_t i = 0; i < num_early; ++i) ys[i].sum().backward();
  if (rank->rank == 2) {
    EXPECT_EQ(bridge.num_gradients_kept(), 3);
  }
  ys.push_back(forward());

  if (rank->rank == 2) {
    EXPECT_EQ(bridge.num_gradients_kept(), 2);
  }
  for (size_t i = num_early; i < 4; ++i) ys[i].sum().backward();
  End(*world);
}

TEST(Bridge, ARankThatHasLeftIsNamed) {
  const std::optional<Rank> rank = OnRanks(3);
  if (!rank.has_value()) return;
  Groups groups(*rank);
  const auto world = groups.Make({0, 1, 2}, "world");
  Bridge bridge(VisionOfTwoLanguageOfOne(), /*edge=*/0, rank->rank, groups.Maker(), {});
  const std::vector<at::Tensor> x =
      rank->rank < 2 ? std::vector<at::Tensor>{at::ones({1, 2})} : std::vector<at::Tensor>();
  bridge.Run(x);

  if (rank->rank != 0) {  // which makes one call less
    const std::string message = MessageOf([&] {
      for (int call = 0; call < 3; ++call) bridge.Run(x);
    });
    EXPECT_THAT(message, HasSubstr("rank 2 (language) waited for rank 0 (vision), which has left"));
  }
  End(*world);
}

TEST(Bridge, AnExceptionElsewhereInOneRanksProgramIsReported) {
  const std::optional<Rank> rank = OnRanks(3);
  if (!rank.has_value()) return;
  Groups groups(*rank);
  const auto world = groups.Make({0, 1, 2}, "world");
  const std::vector<at::Tensor> x =
      rank->rank < 2 ? std::vector<at::Tensor>{at::ones({1, 2})} : std::vector<at::Tensor>();

  try {
    Bridge bridge(VisionOfTwoLanguageOfOne(), /*edge=*/0, rank->rank, groups.Maker(), {});
    bridge.Run(x);
    if (rank->rank == 0) throw std::runtime_error("no image");
    const std::string message = MessageOf([&] {
      for (int call = 0; call < 3; ++call) bridge.Run(x);
    });
    EXPECT_THAT(message, HasSubstr("rank 0 (vision) failed: an exception in its program"));
  } catch (const std::runtime_error& error) {
    EXPECT_EQ(rank->rank, 0) << error.what();
  }
  End(*world);
}

TEST(Gradients, AreSummedScaledNormedAndClipped) {
  const std::optional<Rank> rank = OnRanks(2);
  if (!rank.has_value()) return;
  Groups groups(*rank);
  const auto world = groups.Make({0, 1}, "world");
  const at::Tensor both = at::ones({3}).requires_grad_(), one = at::ones({2}).requires_grad_(),
                   none = at::ones({2}).requires_grad_();
  both.mutable_grad() = at::full({3}, 1.0 + rank->rank);
  if (rank->rank == 1) one.mutable_grad() = at::full({2}, 4.0);
  const std::vector<at::Tensor> parameters = {both, one, none};

  ReduceGradients(parameters, world.get(), 0.5, /*bucket_bytes=*/8);

  EXPECT_TRUE(at::equal(both.grad(), at::full({3}, 1.5)));
  EXPECT_TRUE(at::equal(one.grad(), at::full({2}, 2.0)));
  EXPECT_FALSE(none.grad().defined());

  // Two replicas: counted once. As shards of two tp ranks they count each.
  const Coordinates replica{.dp = rank->rank}, shard{.tp = rank->rank};
  const double square = 3 * 1.5 * 1.5 + 2 * 4;
  const std::vector<bool> divided = {false, true, false};
  const at::Tensor norm = GradientNorm({{parameters, divided, replica}}, world.get(), at::kCPU);
  EXPECT_DOUBLE_EQ(norm.item<double>(), std::sqrt(square));
  EXPECT_DOUBLE_EQ(
      GradientNorm({{parameters, divided, shard}}, world.get(), at::kCPU).item<double>(),
      std::sqrt(square + 2 * 4));

  ClipGradients(parameters, norm, 1.0);
  EXPECT_NEAR(both.grad()[0].item<double>(), 1.5 / std::sqrt(square), 1e-6);
}

// A tensor with this gradient.
at::Tensor WithGradient(const at::Tensor& gradient) {
  const at::Tensor parameter = at::zeros_like(gradient).requires_grad_();
  parameter.mutable_grad() = gradient;
  return parameter;
}

TEST(Gradients, TheNormBringsEveryRanksLimit) {
  const std::optional<Rank> rank = OnRanks(3);
  if (!rank.has_value()) return;
  Groups groups(*rank);
  const auto world = groups.Make({0, 1, 2}, "world");
  const at::Tensor weight = WithGradient(at::full({1}, std::numeric_limits<double>::quiet_NaN()));
  const std::vector<bool> divided = {false};
  const std::vector<NormPart> parts = {{{weight}, divided, {.dp = rank->rank}}};

  const NormAndLimits all =
      GradientNormAndLimits(parts, world.get(), at::kCPU, 0.1 * (1 + rank->rank));

  EXPECT_TRUE(std::isnan(all.norm.item<double>()));
  EXPECT_TRUE(at::equal(all.limits, at::tensor({0.1, 0.1 * 2, 0.1 * 3}, at::kDouble)));
}

TEST(Gradients, AreUnchangedUntilTheyAreModifiedOrMadeAgain) {
  const at::Tensor weight = WithGradient(at::full({1}, 3.0)), other = at::zeros({1});
  ReducedGradients reduced;
  EXPECT_FALSE(reduced.AreUnchanged({weight}));
  EXPECT_FALSE(reduced.AreUnchanged({other})) << "no gradient";

  reduced.Remember({weight, other});

  EXPECT_TRUE(reduced.AreUnchanged({weight, other}));
  weight.mutable_grad() = weight.grad().clone();
  EXPECT_FALSE(reduced.AreUnchanged({weight, other}));
  reduced.Remember({weight, other});
  weight.grad().add_(0);
  EXPECT_FALSE(reduced.AreUnchanged({weight, other}));
  {
    const c10::InferenceMode without_versions;
    weight.mutable_grad() = at::full({1}, 3.0);
  }
  reduced.Remember({weight});
  EXPECT_FALSE(reduced.AreUnchanged({weight}));
  // The next gradient may lie where a freed one was.
  for (int i = 0; i < 100; ++i) {
    reduced.Remember({weight});
    weight.mutable_grad() = at::Tensor();
    weight.mutable_grad() = at::full({1}, 3.0);
    EXPECT_FALSE(reduced.AreUnchanged({weight}));
  }
}

TEST(Gradients, LowPrecisionIsSummedInFloat32AndRoundedOnce) {
  const std::optional<Rank> rank = OnRanks(2);
  if (!rank.has_value()) return;
  Groups groups(*rank);
  const auto world = groups.Make({0, 1}, "world");
  // In bfloat16, 256 + 1 is 256; in float16, 60,000 + 60,000 is infinite.
  const at::Tensor small = WithGradient(at::full({2}, rank->rank == 0 ? 256 : 1, at::kBFloat16)),
                   large = WithGradient(at::full({2}, 60000, at::kHalf));

  ReduceGradients({small}, world.get(), 1.0 / 257);
  ReduceGradients({large}, world.get(), 0.5);

  EXPECT_TRUE(at::equal(small.grad(), at::full({2}, 1, at::kBFloat16))) << small.grad()[0];
  EXPECT_TRUE(at::equal(large.grad(), at::full({2}, 60000, at::kHalf))) << large.grad()[0];
}

TEST(Gradients, AParameterThatIsListedTwiceCountsOnce) {
  const at::Tensor both = WithGradient(at::full({1}, 3.0));
  const std::vector<at::Tensor> twice = {both, both};

  ReduceGradients(twice, nullptr, 0.5);
  const std::vector<bool> divided = {false};
  const at::Tensor norm =
      GradientNorm({{{both}, divided, {}}, {{both}, divided, {}}}, nullptr, at::kCPU);
  ClipGradients(twice, norm, 0.5);

  EXPECT_DOUBLE_EQ(norm.item<double>(), 1.5);
  EXPECT_NEAR(both.grad().item<double>(), 0.5, 1e-6);
}

}  // namespace
}  // namespace lockstep::mimo
