#include "sharding/fully_shard/fully_shard.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Functions.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/torch/copies/copy_engine.h"
#include "gtest/gtest.h"
#include "sharding/testing/fixture.h"
#include "tests/support/ranks.h"

namespace lockstep::sharding {
namespace {

using ::lockstep::tests::OnRanks;
using ::lockstep::tests::Rank;

// The layers that a rank calls in a step, in order; several lists are micro-batches.
using Schedule = std::function<std::vector<std::vector<size_t>>(int rank, int step)>;

Schedule Always(std::vector<size_t> calls, int micro_batches = 1) {
  return [=](int, int) {
    return std::vector<std::vector<size_t>>(static_cast<size_t>(micro_batches), calls);
  };
}

void Descend(const std::vector<at::Tensor>& parameters, double rate) {
  const at::NoGradGuard no_grad;
  for (at::Tensor p : parameters) {
    if (!p.grad().defined()) continue;
    p.sub_(p.grad(), rate);
    p.mutable_grad().reset();
  }
}

std::vector<at::Tensor> Tensors(const std::vector<NamedTensor>& named) {
  std::vector<at::Tensor> tensors;
  for (const NamedTensor& one : named) tensors.push_back(one.tensor);
  return tensors;
}

struct Case {
  std::string name;
  FullyShardOptions options;
  Schedule schedule;
  bool no_sync = false;  // all micro-batches of a step but the last
  bool clips = false;
  bool root_only = false;
  int replicas = 1;
  int steps = 10;
  int64_t hidden = 6;
  double rate = 0.3;
};

// Trains the sharded net and, on this rank alone, one whose loss is the mean over all ranks.
void ExpectParity(World& world, const Case& one, bool strict) {
  SCOPED_TRACE(absl::StrCat(one.name, strict ? ", strict" : ""));
  const World::Groups groups = world.Make(one.replicas, strict);
  const Net net(4, 1, one.hidden), reference(4, 1, one.hidden);
  FullyShard model(net.Units(one.root_only), {}, groups.shard, groups.control, one.options);
  const std::vector<at::Tensor> shards = Tensors(model.Shards());
  for (int step = 0; step < one.steps; ++step) {
    for (int rank = 0; rank < world.size(); ++rank) {
      int micro = 0;
      for (const auto& calls : one.schedule(rank, step)) {
        const at::Tensor loss = reference.Loss(nullptr, Tokens(rank, step + 100 * micro++), calls);
        (loss / world.size()).backward();
      }
    }
    const auto lists = one.schedule(world.rank(), step);
    for (size_t micro = 0; micro < lists.size(); ++micro) {
      model.set_sync(!one.no_sync || micro + 1 == lists.size());
      FullyShard* const calls_units = one.root_only ? nullptr : &model;
      if (one.root_only) model.BeginForward(0, {});
      const at::Tensor loss = net.Loss(
          calls_units, Tokens(world.rank(), step + 100 * static_cast<int>(micro)), lists[micro]);
      if (one.root_only) model.EndForward(0, {loss});
      loss.backward();
    }
    if (one.clips) {
      const at::Tensor norm = model.ClipGradNorm(0.05);
      at::Tensor squares = at::zeros({}, at::kDouble);
      for (const NamedTensor& p : reference.Parameters()) squares += p.tensor.grad().pow(2).sum();
      ASSERT_NEAR(norm.item<double>(), squares.sqrt().item<double>(), 1e-12);
      for (const NamedTensor& p : reference.Parameters())
        p.tensor.mutable_grad().mul_(0.05 / (squares.sqrt() + 1e-6));
    }
    Descend(shards, one.rate);
    Descend(Tensors(reference.Parameters()), one.rate);
  }
  std::vector<NamedTensor> whole;
  for (size_t unit = 0; unit < net.Units(one.root_only).size(); ++unit) {
    for (const NamedTensor& p : model.GatherWhole(unit)) whole.push_back(p);
  }
  const std::vector<NamedTensor> expected = reference.Parameters();
  ASSERT_EQ(whole.size(), expected.size());
  for (size_t i = 0; i < whole.size(); ++i) {
    ASSERT_EQ(whole[i].name, expected[i].name);
    ASSERT_LT((whole[i].tensor - expected[i].tensor).abs().max().item<double>(), 1e-12)
        << whole[i].name;
  }
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const bool reshard : {true, false}) {
    for (const int64_t prefetch : {0, 1, 2}) {
      for (const bool root_only : {false, true}) {
        Case one{absl::StrCat("reshard ", reshard, ", prefetch ", prefetch, ", root ", root_only),
                 {},
                 Always({0, 1, 2, 3})};
        one.options.reshard_after_forward = reshard;
        one.options.prefetch = prefetch;
        one.root_only = root_only;
        cases.push_back(one);
      }
    }
    Case one{absl::StrCat("a layer called several times, reshard ", reshard),
             {},
             Always({0, 1, 1, 2, 0, 3, 3})};
    one.options.reshard_after_forward = reshard;
    cases.push_back(one);
    one.schedule = Always({2, 0, 1, 3}, 3);
    one.name = absl::StrCat("three micro-batches, reshard ", reshard);
    cases.push_back(one);
    one.no_sync = true;
    one.name += ", no_sync";
    cases.push_back(one);
  }
  Case another{"another order in each step", {}, [](int, int step) {
                 std::vector<size_t> calls = {0, 1, 2, 3};
                 std::shuffle(calls.begin(), calls.end(), std::mt19937(step));
                 calls.resize(2 + static_cast<size_t>(step % 3));
                 return std::vector<std::vector<size_t>>{calls};
               }};
  cases.push_back(another);
  another.name += ", deterministic";
  another.options.unit.deterministic = true;
  cases.push_back(another);
  Case clips{"clipped", {}, Always({0, 1, 2, 3})};
  clips.clips = true;
  cases.push_back(clips);
  Case joins{"ranks skip layers and join", {}, [](int rank, int step) {
               std::vector<std::vector<size_t>> lists(2);
               std::mt19937 random(static_cast<unsigned>(rank + 10 * step));
               for (auto& list : lists) {
                 for (size_t layer = 0; layer < 4; ++layer) {
                   if (random() % 2 == 0) list.push_back(layer);
                 }
               }
               return lists;
             }};
  joins.options.joins = true;
  cases.push_back(joins);
  joins.name += ", no_sync";
  joins.no_sync = true;
  cases.push_back(joins);
  Case offloads = joins;
  offloads.name += ", masters on the host";
  offloads.options.unit.offload = true;
  offloads.options.unit.engine = base::PlainCopies();
  cases.push_back(offloads);
  // The root travels with its comparison, and the layers go through the groups; or none does.
  for (const int64_t bytes : {2500, 0}) {
    for (Case one : {joins, Case{"in order", {}, Always({0, 1, 1, 2, 3}, 2)}}) {
      absl::StrAppend(&one.name, ", at most ", bytes, " bytes with a comparison");
      one.options.exchange_bytes = bytes;
      one.hidden = 32;
      one.rate = 0.01;  // a larger one diverges at this size
      cases.push_back(one);
    }
  }
  return cases;
}

// The number of ranks, and whether they use the strict backend.
class Parity : public testing::TestWithParam<std::pair<int, bool>> {};

TEST_P(Parity, WithOneModelThatSeesAllBatches) {
  const auto [size, strict] = GetParam();
  // Three ranks on two busy cores take more than a minute.
  const std::optional<Rank> rank = OnRanks(size, absl::Minutes(4));
  if (!rank.has_value()) return;
  World world(*rank);
  for (const Case& one : Cases()) ExpectParity(world, one, strict);
}

INSTANTIATE_TEST_SUITE_P(Ranks, Parity,
                         testing::Values(std::pair(1, false), std::pair(2, false),
                                         std::pair(3, false), std::pair(2, true),
                                         std::pair(3, true)));

// Returns the values of all shards after some steps, and the counts. The last layer is called
// twice, and frozen and trained weights of two dtypes lie in the first.
std::pair<std::vector<at::Tensor>, FullyShardStats> TrainBriefly(World& world, bool strict,
                                                                 int64_t exchange_bytes) {
  const World::Groups groups = world.Make(1, strict);
  Net net(4, 1);
  net.layers[0].weight.requires_grad_(false);
  net.layers[0].scale = net.layers[0].scale.detach().to(at::kFloat).requires_grad_(true);
  FullyShardOptions options;
  options.exchange_bytes = exchange_bytes;
  FullyShard model(net.Units(), {}, groups.shard, groups.control, options);
  const std::vector<at::Tensor> shards = Tensors(model.Shards());
  for (int step = 0; step < 5; ++step) {
    net.Loss(&model, Tokens(world.rank(), step), {0, 1, 2, 3, 3}).backward();
    Descend(shards, 0.3);
  }
  return {shards, model.Stats()};
}

// Weights of a lower dtype are cast before they travel to the device; the values are the same.
TEST(FullyShard, MastersOnTheHostChangeNoBit) {
  const std::optional<Rank> rank = OnRanks(2);
  if (!rank.has_value()) return;
  World world(*rank);
  std::vector<at::Tensor> values[2];
  for (const bool offload : {false, true}) {
    const World::Groups groups = world.Make(1, /*strict=*/true);
    Net net(4, 1);
    for (Net::Layer& layer : net.layers) {
      for (at::Tensor* const p : {&layer.weight, &layer.bias, &layer.scale})
        *p = p->detach().to(at::kFloat).requires_grad_(true);
    }
    for (at::Tensor* const p : {&net.embedding, &net.head})
      *p = p->detach().to(at::kFloat).requires_grad_(true);
    FullyShardOptions options;
    options.unit.param_dtype = at::kBFloat16;
    options.unit.reduce_dtype = at::kFloat;
    options.unit.offload = offload;
    if (offload) options.unit.engine = base::PlainCopies();
    FullyShard model(net.Units(), {}, groups.shard, groups.control, options);
    const std::vector<at::Tensor> shards = Tensors(model.Shards());
    for (int step = 0; step < 4; ++step) {
      for (int micro = 0; micro < 2; ++micro)
        net.Loss(&model, Tokens(world.rank(), 10 * step + micro), {0, 1, 2, 3, 3}).backward();
      Descend(shards, 0.3);
    }
    values[offload ? 1 : 0] = shards;
  }
  for (size_t i = 0; i < values[0].size(); ++i)
    EXPECT_TRUE(at::equal(values[0][i], values[1][i])) << i;
}

TEST(FullyShard, SmallCollectivesTravelWithTheirComparisonAndChangeNoBit) {
  const std::optional<Rank> rank = OnRanks(3);
  if (!rank.has_value()) return;
  World world(*rank);

  const auto [shards, stats] = TrainBriefly(world, /*strict=*/false, 1 << 20);
  const auto [through_groups, stats_of_groups] = TrainBriefly(world, /*strict=*/false, 0);
  const auto [strict, stats_of_strict] = TrainBriefly(world, /*strict=*/true, 1 << 20);

  EXPECT_GT(stats.gathers, 0);
  EXPECT_GT(stats.reductions, 0);
  EXPECT_EQ(stats.exchanged, stats.gathers + stats.reductions);
  EXPECT_EQ(stats_of_groups.exchanged, 0);
  EXPECT_EQ(stats_of_strict.exchanged, 0);
  EXPECT_EQ(stats.gathers, stats_of_groups.gathers);
  EXPECT_EQ(stats.peak_pool_bytes, stats_of_groups.peak_pool_bytes);
  for (size_t i = 0; i < shards.size(); ++i) {
    EXPECT_TRUE(at::equal(shards[i], through_groups[i])) << i;
    EXPECT_TRUE(at::equal(shards[i], strict[i])) << i;
  }
}

TEST(FullyShard, ReplicasOfShardsTrainAlike) {
  const std::optional<Rank> rank = OnRanks(4);
  if (!rank.has_value()) return;
  World world(*rank);
  for (const int replicas : {2, 4}) {
    Case one{absl::StrCat("replicas ", replicas), {}, Always({0, 1, 2, 3}, 2)};
    one.replicas = replicas;
    one.clips = true;
    ExpectParity(world, one, /*strict=*/false);
    ExpectParity(world, one, /*strict=*/true);
  }
}

}  // namespace
}  // namespace lockstep::sharding
