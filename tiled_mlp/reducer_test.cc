// Runs tiled MLPs under the real c10d::Reducer, the engine of PyTorch's DistributedDataParallel, in
// two processes over Gloo. Each failure of the strategies used elsewhere is reproduced, next to our
// version, which passes all cases.

#include "torch/csrc/distributed/c10d/reducer.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/gloo_world.h"
#include "tests/support/ranks.h"
#include "tiled_mlp/testing/strategies.h"
#include "tiled_mlp/testing/test_bodies.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/csrc/autograd/custom_function.h"
#include "torch/csrc/autograd/engine.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace lockstep::tiled_mlp {
namespace {

using ::testing::HasSubstr;
using tests::OnRanks;
using tests::Rank;

constexpr int kRanks = 2;

// Returns another group of all ranks. The world is made once: a second server of its store on the
// same port would race with the first.
c10::intrusive_ptr<c10d::ProcessGroup> MakeGroup(const Rank& rank) {
  static const tests::GlooWorld& world = *new tests::GlooWorld(tests::MeetOverGloo(rank));
  static int num_groups = 0;
  std::vector<int> ranks(static_cast<size_t>(rank.world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return tests::NewGlooGroup(world, "group" + std::to_string(num_groups++), ranks);
}

struct Mode {
  bool find_unused = false;
  bool static_graph = false;
};

std::shared_ptr<c10d::Reducer> MakeReducer(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                           const std::vector<at::Tensor>& weights,
                                           const Mode& mode) {
  std::vector<std::vector<size_t>> buckets;  // one for each weight: all orders are exercised
  for (size_t i = weights.size(); i-- > 0;) buckets.push_back({i});
  auto reducer = std::make_shared<c10d::Reducer>(
      weights, buckets, group, std::vector<bool>(weights.size(), false), int64_t{1} << 20,
      mode.find_unused, /*gradient_as_bucket_view=*/false,
      std::unordered_map<size_t, std::string>{}, int64_t{1} << 20,
      /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false,
      std::vector<int64_t>{});
  if (mode.static_graph) reducer->set_static_graph();
  return reducer;
}

// The node that DistributedDataParallel puts around the outputs of a static graph's first
// iteration.
struct DelayAllReduce : torch::autograd::Function<DelayAllReduce> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& y,
                            int64_t reducer) {
    context->saved_data["reducer"] = reducer;
    return y.view_as(y);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    auto* reducer = reinterpret_cast<c10d::Reducer*>(context->saved_data["reducer"].toInt());
    torch::autograd::Engine::get_default_engine().queue_callback(
        [reducer] { reducer->delay_all_reduce(); });
    return {gradients[0], at::Tensor()};
  }
};

at::Tensor Loss(const at::Tensor& y) {
  return (y * at::arange(y.numel(), at::kDouble).view_as(y).sin()).sum();
}

using MakeCase = std::function<TestCase(int seed)>;
using NumTiles = std::function<int64_t(int rank, int step)>;

int64_t Four(int, int) { return 4; }

// A network of the case's function, or of two such in a row.
struct Net {
  Strategy strategy;
  std::vector<TestCase> layers;

  at::Tensor Forward(const at::Tensor& x, int64_t num_tiles) const {
    at::Tensor y = x;
    for (const TestCase& layer : layers)
      y = RunStrategy(strategy, layer.body, y, layer.weights, num_tiles);
    return y;
  }
  std::vector<at::Tensor> Trained() const {
    std::vector<at::Tensor> trained;
    for (const TestCase& layer : layers)
      trained.insert(trained.end(), layer.trained.begin(), layer.trained.end());
    return trained;
  }
};

// The mean over ranks of the untiled network's gradients at this step.
std::vector<at::Tensor> Truth(const MakeCase& make, const Net& net, int step) {
  std::vector<at::Tensor> mean;
  for (int rank = 0; rank < kRanks; ++rank) {
    at::Tensor y = make(10 * step + rank).x;
    for (const TestCase& layer : net.layers) y = layer.body(y, layer.weights)[0];
    const std::vector<at::Tensor> found =
        torch::autograd::grad({Loss(y)}, net.Trained(), {}, std::nullopt, false, true);
    for (size_t i = 0; i < found.size(); ++i) {
      const at::Tensor share =
          found[i].defined() ? found[i] / kRanks : at::zeros_like(net.Trained()[i]);
      if (mean.size() <= i) {
        mean.push_back(share);
      } else {
        mean[i] = mean[i] + share;
      }
    }
  }
  return mean;
}

// Three steps of data parallel; "" where every gradient is right, else what went wrong.
std::string Train(const Rank& rank, Strategy strategy, const MakeCase& make, const Mode& mode,
                  int num_layers = 1, const NumTiles& num_tiles = Four) {
  Net net{strategy, {}};
  for (int i = 0; i < num_layers; ++i) net.layers.push_back(make(0));
  const std::vector<at::Tensor> trained = net.Trained();
  const auto reducer = MakeReducer(MakeGroup(rank), trained, mode);
  try {
    for (int step = 0; step < 3; ++step) {
      for (const at::Tensor& weight : trained) weight.mutable_grad() = at::Tensor();
      const at::Tensor x = make(10 * step + rank.rank).x;
      reducer->prepare_for_forward();
      reducer->rebuild_buckets();
      at::Tensor y = net.Forward(x, num_tiles(rank.rank, step));
      reducer->prepare_for_backward(mode.find_unused ? std::vector<at::Tensor>{y}
                                                     : std::vector<at::Tensor>{});
      if (mode.static_graph && step == 0)
        y = DelayAllReduce::apply(y, reinterpret_cast<int64_t>(reducer.get()));
      Loss(y).backward();
      const std::vector<at::Tensor> truth = Truth(make, net, step);
      for (size_t i = 0; i < truth.size(); ++i) {
        const at::Tensor& grad = trained[i].grad();
        if (!grad.defined() || !((grad - truth[i]).abs().max().item<double>() < 1e-12))
          return "the gradient of weight " + std::to_string(i) + " is wrong in step " +
                 std::to_string(step);
      }
    }
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

constexpr char kReadyTwice[] = "Expected to mark a variable ready only once";

// --- Ours ----------------------------------------------------------------------------------------

void ExpectOursTrains(const Rank& rank, const Mode& mode) {
  for (const auto make : {Dense, ExpertOfTheFirstTile, FrozenInput, Lora, Tied}) {
    SCOPED_TRACE(make(0).name);
    EXPECT_EQ(Train(rank, Strategy::kExplicit, make, mode), "");
    EXPECT_EQ(Train(rank, Strategy::kExplicit, make, mode, /*num_layers=*/2), "");
  }
}

TEST(Explicit, TrainsUnderTheReducer) {
  const std::optional<Rank> rank = OnRanks(kRanks);
  if (!rank.has_value()) return;
  ExpectOursTrains(*rank, {});
}

TEST(Explicit, TrainsWithFindUnused) {
  const std::optional<Rank> rank = OnRanks(kRanks);
  if (!rank.has_value()) return;
  ExpectOursTrains(*rank, {.find_unused = true});
}

TEST(Explicit, TrainsWithAStaticGraph) {
  const std::optional<Rank> rank = OnRanks(kRanks);
  if (!rank.has_value()) return;
  ExpectOursTrains(*rank, {.static_graph = true});
}

TEST(Explicit, TileCountsMayDifferByRankAndStep) {
  const std::optional<Rank> rank = OnRanks(kRanks);
  if (!rank.has_value()) return;
  const NumTiles num_tiles = [](int rank, int step) { return 1 + 6 * rank + 3 * step; };
  for (const Mode& mode : {Mode{}, Mode{.find_unused = true}, Mode{.static_graph = true}})
    EXPECT_EQ(Train(*rank, Strategy::kExplicit, Dense, mode, 2, num_tiles), "");
}

// --- The others ----------------------------------------------------------------------------------

TEST(BackwardPerTile, MarksAWeightReadyTwice) {
  const std::optional<Rank> rank = OnRanks(kRanks);
  if (!rank.has_value()) return;
  EXPECT_THAT(Train(*rank, Strategy::kBackwardPerTile, Dense, {}, 2), HasSubstr(kReadyTwice));
}

// All weights are ready after one tile: the Reducer averages, stops listening, and the other tiles'
// shares are added to one rank's gradient alone.
TEST(BackwardPerTile, AloneInAModelIsWrongInSilence) {
  const std::optional<Rank> rank = OnRanks(kRanks);
  if (!rank.has_value()) return;
  EXPECT_THAT(Train(*rank, Strategy::kBackwardPerTile, Dense, {}),
              HasSubstr("gradient of weight 0 is wrong"));
}

TEST(BackwardPerTile, WithAStaticGraphStopsWhenTheNumberOfTilesChanges) {
  const std::optional<Rank> rank = OnRanks(kRanks);
  if (!rank.has_value()) return;
  const NumTiles more_later = [](int, int step) { return 2 + step; };

  const std::string error =
      Train(*rank, Strategy::kBackwardPerTile, Dense, {.static_graph = true}, 2, more_later);

  EXPECT_THAT(error, HasSubstr("training graph has changed"));
}

TEST(ReadyFlag, MeansNothingToTheReducer) {
  const std::optional<Rank> rank = OnRanks(kRanks);
  if (!rank.has_value()) return;
  EXPECT_THAT(Train(*rank, Strategy::kReadyFlag, Dense, {}, 2), HasSubstr(kReadyTwice));
}

TEST(GradThenBackward, TrainsADenseMlp) {
  const std::optional<Rank> rank = OnRanks(kRanks);
  if (!rank.has_value()) return;
  EXPECT_EQ(Train(*rank, Strategy::kGradThenBackward, Dense, {}), "");
}

TEST(GradThenBackward, NeverMarksAnExpertOfAnEarlyTileReady) {
  const std::optional<Rank> rank = OnRanks(kRanks);
  if (!rank.has_value()) return;

  const std::string error = Train(*rank, Strategy::kGradThenBackward, ExpertOfTheFirstTile, {});

  // Its share is never averaged; and the next forward would say that the reduction never ended.
  EXPECT_THAT(error, HasSubstr("the gradient of weight"));
}

TEST(GradThenBackward, MarksHiddenWeightsReadyTwiceWithFindUnused) {
  const std::optional<Rank> rank = OnRanks(kRanks);
  if (!rank.has_value()) return;
  EXPECT_THAT(Train(*rank, Strategy::kGradThenBackward, Dense, {.find_unused = true}),
              HasSubstr(kReadyTwice));
}

TEST(GradThenBackward, CannotTrainOnAFrozenInput) {
  const std::optional<Rank> rank = OnRanks(kRanks);
  if (!rank.has_value()) return;
  EXPECT_THAT(Train(*rank, Strategy::kGradThenBackward, FrozenInput, {}),
              HasSubstr("does not require grad"));
}

TEST(OwnSums, MarkAWeightReadyTwice) {
  const std::optional<Rank> rank = OnRanks(kRanks);
  if (!rank.has_value()) return;
  EXPECT_THAT(Train(*rank, Strategy::kOwnSums, Dense, {}, 2), HasSubstr(kReadyTwice));
}

}  // namespace
}  // namespace lockstep::tiled_mlp
