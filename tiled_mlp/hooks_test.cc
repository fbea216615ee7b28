// Tests how often autograd accumulates into each weight in one backward. c10d's Reducer, and every
// optimizer in backward, waits for this hook.

#include <cstdint>
#include <vector>

#include "ATen/ATen.h"
#include "gtest/gtest.h"
#include "tiled_mlp/testing/strategies.h"
#include "tiled_mlp/testing/test_bodies.h"
#include "tiled_mlp/tiled.h"
#include "torch/csrc/autograd/autograd.h"

namespace lockstep::tiled_mlp {
namespace {

at::Tensor Loss(const at::Tensor& y) {
  return (y * at::arange(y.numel(), at::kDouble).view_as(y).sin()).sum();
}

std::vector<int> CountsOf(Strategy strategy, const TestCase& test, int64_t num_tiles) {
  AccumulateCounter counter(test.trained);
  Loss(RunStrategy(strategy, test.body, test.x, test.weights, num_tiles)).backward();
  return counter.Take();
}

TEST(AccumulateHooks, FireOncePerWeightAndStepWithTheRightGradient) {
  for (const TestCase& test : {Dense(), ExpertOfTheFirstTile(), FrozenInput(), Lora(), Tied()}) {
    const std::vector<at::Tensor> truth =
        torch::autograd::grad({Loss(test.body(test.x, test.weights)[0])}, test.trained);
    for (const int64_t num_tiles : {1, 2, 3, 7, 16}) {
      SCOPED_TRACE(testing::Message() << test.name << ", " << num_tiles << " tiles");
      for (const at::Tensor& weight : test.trained) weight.mutable_grad() = at::Tensor();

      const std::vector<int> counts = CountsOf(Strategy::kExplicit, test, num_tiles);

      EXPECT_EQ(counts, std::vector<int>(test.trained.size(), 1));
      for (size_t i = 0; i < truth.size(); ++i)
        EXPECT_LT((test.trained[i].grad() - truth[i]).abs().max().item<double>(), 1e-12);
    }
  }
}

TEST(AccumulateHooks, FireOnceForAWeightThatIsAlsoUsedOutside) {
  const TestCase test = Dense();
  AccumulateCounter counter(test.trained);

  const at::Tensor y =
      RunTiled(test.body, at::linear(test.x, test.weights[0].t().mm(test.weights[1])), test.weights,
               {.size = {.num_tiles = 4}})[0];
  Loss(y).backward();

  EXPECT_EQ(counter.Take(), (std::vector<int>{1, 1, 1}));
}

TEST(TensorHooks, SeeTheSumOfAWeightOnce) {
  const TestCase test = Dense();
  std::vector<at::Tensor> seen;
  test.weights[0].register_hook([&](const at::Tensor& gradient) { seen.push_back(gradient); });

  Loss(RunTiled(test.body, test.x, test.weights, {.size = {.num_tiles = 7}})[0]).backward();

  ASSERT_EQ(seen.size(), 1u);
  EXPECT_TRUE(at::equal(seen[0], test.weights[0].grad()));
}

// --- What other strategies do --------------------------------------------------------------------

TEST(OtherStrategies, BackwardPerTileFiresOncePerTile) {
  for (const Strategy strategy :
       {Strategy::kBackwardPerTile, Strategy::kReadyFlag, Strategy::kOwnSums}) {
    EXPECT_EQ(CountsOf(strategy, Dense(), 4), (std::vector<int>{4, 4, 4}))
        << testing::PrintToString(strategy);
  }
}

TEST(OtherStrategies, AReadyFlagIsNeverSetWhereChunkGivesFewerTiles) {
  const TestCase test = Dense();
  const auto counts = [&](int64_t num_tiles) {
    AccumulateCounter counter(test.trained, IsReady);
    Loss(RunStrategy(Strategy::kReadyFlag, test.body, test.x, test.weights, num_tiles)).backward();
    return counter.Take();
  };

  EXPECT_EQ(counts(4), (std::vector<int>{1, 1, 1}));
  EXPECT_EQ(counts(16), (std::vector<int>{0, 0, 0}));  // 100 rows in 16 chunks are 15 of 7
}

TEST(OtherStrategies, GradThenBackwardNeverFiresForAnExpertOfAnEarlyTile) {
  EXPECT_EQ(CountsOf(Strategy::kGradThenBackward, Dense(), 4), (std::vector<int>{1, 1, 1}));
  EXPECT_EQ(CountsOf(Strategy::kGradThenBackward, ExpertOfTheFirstTile(), 4),
            (std::vector<int>{1, 0}));
}

TEST(OtherStrategies, AFrozenInputLeavesHiddenWeightsWithoutGradient) {
  const TestCase test = FrozenInput();
  for (const Strategy strategy : {Strategy::kBackwardPerTile, Strategy::kReadyFlag,
                                  Strategy::kGradThenBackward, Strategy::kOwnSums}) {
    EXPECT_FALSE(RunStrategy(strategy, test.body, test.x, test.weights, 4).requires_grad());
  }
  EXPECT_TRUE(RunStrategy(Strategy::kExplicit, test.body, test.x, test.weights, 4).requires_grad());
}

}  // namespace
}  // namespace lockstep::tiled_mlp
