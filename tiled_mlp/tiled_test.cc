#include "tiled_mlp/tiled.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/autocast_mode.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/message_of.h"
#include "tests/support/relative_error.h"
#include "torch/csrc/autograd/autograd.h"

namespace lockstep::tiled_mlp {
namespace {

using ::testing::HasSubstr;
using tests::MessageOf;
using tests::RelativeError;

constexpr int64_t kHidden = 6, kIntermediate = 10;

std::vector<at::Tensor> SwiGlu(const at::Tensor& tile, at::TensorList w) {
  return {at::linear(at::silu(at::linear(tile, w[0])) * at::linear(tile, w[1]), w[2])};
}

std::vector<at::Tensor> Weights(at::ScalarType dtype, int64_t hidden = kHidden,
                                int64_t intermediate = kIntermediate) {
  at::manual_seed(1);
  const auto options = at::TensorOptions(dtype);
  std::vector<at::Tensor> weights;
  for (const auto& sizes : {std::vector<int64_t>{intermediate, hidden},
                            {intermediate, hidden},
                            {hidden, intermediate}}) {
    at::Tensor weight = at::randn(sizes, at::kDouble) / std::sqrt(static_cast<double>(sizes[1]));
    weights.push_back(weight.to(options).requires_grad_());
  }
  return weights;
}

at::Tensor Input(std::vector<int64_t> sizes, at::ScalarType dtype) {
  at::manual_seed(2);
  return at::randn(sizes, at::kDouble).to(dtype).requires_grad_();
}

// Gradients of x and the weights for an output gradient that differs at every element.
std::vector<at::Tensor> Gradients(const TileBody& body, const at::Tensor& x,
                                  const std::vector<at::Tensor>& weights,
                                  const TileOptions& options) {
  const at::Tensor y = RunTiled(body, x, weights, options)[0];
  at::manual_seed(3);
  const at::Tensor dy = at::randn(y.sizes(), at::kDouble).to(y.scalar_type());
  std::vector<at::Tensor> inputs = {x};
  inputs.insert(inputs.end(), weights.begin(), weights.end());
  return torch::autograd::grad({y}, inputs, {dy});
}

std::vector<at::Tensor> UntiledGradients(const TileBody& body, const at::Tensor& x,
                                         const std::vector<at::Tensor>& weights) {
  return Gradients(body, x, weights, {.size = {.tile_tokens = int64_t{1} << 40}});
}

double LargestDifference(const at::Tensor& a, const at::Tensor& b) {
  if (a.numel() == 0) return a.sizes() == b.sizes() ? 0 : 1;
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

TEST(RunTiled, HeaderExample) {
  const TileBody body = [](const at::Tensor& tile, at::TensorList w) -> std::vector<at::Tensor> {
    return {at::linear(at::silu(at::linear(tile, w[0])) * at::linear(tile, w[1]), w[2])};
  };
  const std::vector<at::Tensor> w = Weights(at::kFloat);
  const at::Tensor x = Input({2, 9, kHidden}, at::kFloat);

  const at::Tensor y = RunTiled(body, x, w, {.size = {.num_tiles = 4}})[0];
  y.sum().backward();

  EXPECT_LT(LargestDifference(y, SwiGlu(x, w)[0]), 1e-6);
  EXPECT_EQ(w[0].grad().sizes(), w[0].sizes());
}

// --- Accuracy ------------------------------------------------------------------------------------

at::Tensor InDouble(const at::Tensor& tensor) {
  return tensor.detach().to(at::kDouble).requires_grad_();
}

TEST(RunTiledGradients, AgreeWithTheUntiledForEveryShape) {
  const std::vector<at::Tensor> w32 = Weights(at::kFloat);
  std::vector<at::Tensor> w64;
  for (const at::Tensor& weight : w32) w64.push_back(InDouble(weight));
  for (const int64_t batch : {1, 2, 3}) {
    for (const int64_t tokens : {1, 7, 125, 4096}) {
      const at::Tensor x32 = Input({batch, tokens, kHidden}, at::kFloat);
      const at::Tensor x64 = InDouble(x32);
      const std::vector<at::Tensor> truth = UntiledGradients(SwiGlu, x64, w64);
      const std::vector<at::Tensor> untiled32 = UntiledGradients(SwiGlu, x32, w32);
      for (const int64_t num_tiles : {1, 2, 3, 7, 16}) {
        SCOPED_TRACE(testing::Message() << "batch " << batch << ", tokens " << tokens << ", "
                                        << num_tiles << " tiles");
        const TileOptions options = {.size = {.num_tiles = num_tiles}};
        const std::vector<at::Tensor> g64 = Gradients(SwiGlu, x64, w64, options);
        const std::vector<at::Tensor> g32 = Gradients(SwiGlu, x32, w32, options);
        for (size_t i = 0; i < truth.size(); ++i) {
          EXPECT_EQ(g64[i].sizes(), truth[i].sizes());
          EXPECT_LT(RelativeError(g64[i], truth[i]), 1e-12);
          // Sums over 12,288 tokens err by more than 1e-6 in float32, tiled or not.
          EXPECT_LT(RelativeError(g32[i], truth[i]),
                    std::max(1e-6, 1.2 * RelativeError(untiled32[i], truth[i])));
        }
      }
    }
  }
}

TEST(RunTiledGradients, AnyLeadingShapeAndStridesAreTaken) {
  const std::vector<at::Tensor> w = Weights(at::kDouble);
  const at::Tensor base = Input({5, 3, 2, kHidden}, at::kDouble).detach();
  for (at::Tensor x :
       {base, base.transpose(0, 1), base.permute({2, 0, 1, 3}), base.narrow(1, 1, 2),
        base.select(0, 2).transpose(0, 1), base.select(0, 1).select(0, 1).select(0, 1),
        base.narrow(0, 0, 1).expand({4, 3, 2, kHidden})}) {
    SCOPED_TRACE(testing::Message() << x.sizes() << " strides " << x.strides());
    x = x.detach().requires_grad_();
    const std::vector<at::Tensor> truth =
        UntiledGradients(SwiGlu, x.detach().clone().requires_grad_(), w);

    const std::vector<at::Tensor> tiled = Gradients(SwiGlu, x, w, {.size = {.num_tiles = 4}});

    for (size_t i = 0; i < truth.size(); ++i)
      EXPECT_LT(LargestDifference(tiled[i], truth[i]), 1e-12);
  }
}

TEST(RunTiledGradients, AnExpandedOutputGradientIsTaken) {
  const std::vector<at::Tensor> w = Weights(at::kDouble);
  const at::Tensor x = Input({3, 5, kHidden}, at::kDouble);
  SwiGlu(x, w)[0].sum().backward();
  const at::Tensor truth = x.grad().clone();
  x.mutable_grad() = at::Tensor();

  RunTiled(SwiGlu, x, w, {.size = {.num_tiles = 4}})[0].sum().backward();

  EXPECT_LT(LargestDifference(x.grad(), truth), 1e-12);
}

TEST(RunTiledGradients, EmptyInputGivesZeros) {
  const std::vector<at::Tensor> w = Weights(at::kDouble);
  const at::Tensor x = at::empty({2, 0, kHidden}, at::kDouble).requires_grad_();

  const at::Tensor y = RunTiled(SwiGlu, x, w, {.size = {.num_tiles = 4}})[0];
  y.sum().backward();

  EXPECT_EQ(y.sizes(), x.sizes());
  EXPECT_EQ(x.grad().sizes(), x.sizes());
  for (const at::Tensor& weight : w) EXPECT_TRUE(at::equal(weight.grad(), at::zeros_like(weight)));
}

TEST(RunTiledGradients, AddingUpInFloat32IsNearerToTheTruth) {
  const std::vector<at::Tensor> w = Weights(at::kBFloat16, 32, 64);
  const at::Tensor x = Input({1, 4096, 32}, at::kBFloat16);
  std::vector<at::Tensor> w64;
  for (const at::Tensor& weight : w) w64.push_back(InDouble(weight));
  const at::Tensor x64 = InDouble(x);
  const at::Tensor y64 = SwiGlu(x64, w64)[0];
  at::manual_seed(3);
  const at::Tensor dy = at::randn(y64.sizes(), at::kDouble).to(at::kBFloat16).to(at::kDouble);
  const std::vector<at::Tensor> truth = torch::autograd::grad({y64}, w64, {dy});
  const TileSize size = {.num_tiles = 64};

  const std::vector<at::Tensor> in_bf16 = Gradients(SwiGlu, x, w, {.size = size});
  const std::vector<at::Tensor> in_fp32 =
      Gradients(SwiGlu, x, w, {.size = size, .accumulate_fp32 = true});

  const std::vector<at::Tensor> untiled = UntiledGradients(SwiGlu, x, w);
  for (size_t i = 0; i < w.size(); ++i) {
    const double error = RelativeError(in_fp32[i + 1], truth[i]);
    EXPECT_LT(error, 0.75 * RelativeError(in_bf16[i + 1], truth[i])) << "weight " << i;
    // Each tile's share is rounded once; untiled, their sum is. mlp_test.cc has a form that is
    // nearer.
    EXPECT_LT(error, 1.2 * RelativeError(untiled[i + 1], truth[i])) << "weight " << i;
    EXPECT_EQ(in_fp32[i + 1].scalar_type(), at::kBFloat16);
  }
}

TEST(RunTiledGradients, ASecondBackwardOfARetainedGraphGivesTheSame) {
  const std::vector<at::Tensor> w = Weights(at::kDouble);
  const at::Tensor x = Input({11, kHidden}, at::kDouble);
  const at::Tensor y = RunTiled(SwiGlu, x, w, {.size = {.num_tiles = 4}})[0].sum();

  const at::Tensor first = torch::autograd::grad({y}, {w[0]}, {}, /*retain_graph=*/true)[0];
  const at::Tensor second = torch::autograd::grad({y}, {w[0]})[0];

  EXPECT_TRUE(at::equal(first, second));
}

// --- Several outputs -----------------------------------------------------------------------------

// y, router logits, and which expert each token goes to.
std::vector<at::Tensor> Routed(const at::Tensor& tile, at::TensorList w) {
  const at::Tensor logits = at::linear(tile, w[1]);
  return {at::linear(at::silu(at::linear(tile, w[0])), w[2]), logits, logits.argmax(-1)};
}

TEST(RunTiledOutputs, EachCarriesItsGradient) {
  const std::vector<at::Tensor> w = Weights(at::kDouble);
  const at::Tensor x = Input({2, 9, kHidden}, at::kDouble);
  const auto loss = [](const std::vector<at::Tensor>& outputs) {
    return outputs[0].square().sum() + outputs[1].logsumexp(-1).square().sum();
  };
  const std::vector<at::Tensor> untiled = Routed(x, w);
  const std::vector<at::Tensor> truth = torch::autograd::grad({loss(untiled)}, {x, w[0], w[1]});

  const std::vector<at::Tensor> outputs = RunTiled(Routed, x, w, {.size = {.num_tiles = 5}});
  const std::vector<at::Tensor> tiled = torch::autograd::grad({loss(outputs)}, {x, w[0], w[1]});

  EXPECT_EQ(outputs[1].sizes(), untiled[1].sizes());
  EXPECT_TRUE(at::equal(outputs[2], untiled[2]));
  EXPECT_FALSE(outputs[2].requires_grad());
  for (size_t i = 0; i < truth.size(); ++i) EXPECT_LT(LargestDifference(tiled[i], truth[i]), 1e-12);
}

TEST(RunTiledOutputs, OnesThatTheLossLeavesOutGetNoGradient) {
  const std::vector<at::Tensor> w = Weights(at::kDouble);
  const at::Tensor x = Input({9, kHidden}, at::kDouble);

  RunTiled(Routed, x, w, {.size = {.num_tiles = 2}})[1].sum().backward();

  EXPECT_TRUE(w[1].grad().defined());
  EXPECT_FALSE(w[0].grad().defined());
}

TEST(RunTiledOutputs, AnIdentityIsACopy) {
  const at::Tensor x = Input({4, kHidden}, at::kDouble);
  const auto identity = [](const at::Tensor& tile, at::TensorList) { return std::vector{tile}; };

  const at::Tensor y = RunTiled(identity, x, {}, {.size = {.num_tiles = 1}})[0];
  y.sum().backward();

  EXPECT_FALSE(y.is_alias_of(x));
  EXPECT_TRUE(at::equal(x.grad(), at::ones_like(x)));
}

// --- The second run is as the first --------------------------------------------------------------

TEST(RunTiledReplay, DropoutDropsTheSameElementsInBackward) {
  const at::Tensor x = at::ones({100, kHidden}).requires_grad_();
  const auto dropout = [](const at::Tensor& tile, at::TensorList) {
    return std::vector{at::dropout(tile, 0.5, true)};
  };

  const at::Tensor y = RunTiled(dropout, x, {}, {.size = {.num_tiles = 7}})[0];
  at::rand({5});  // what comes between
  y.sum().backward();

  EXPECT_TRUE(at::equal(x.grad(), y));
  EXPECT_GT(y.sum().item<double>(), 0);
  EXPECT_FALSE(at::equal(y.narrow(0, 0, 14), y.narrow(0, 15, 14)));  // tiles differ
}

TEST(RunTiledReplay, WithoutItTheyDiffer) {
  const at::Tensor x = at::ones({100, kHidden}).requires_grad_();
  const auto dropout = [](const at::Tensor& tile, at::TensorList) {
    return std::vector{at::dropout(tile, 0.5, true)};
  };

  const at::Tensor y =
      RunTiled(dropout, x, {}, {.size = {.num_tiles = 7}, .preserve_rng = false})[0];
  y.sum().backward();

  EXPECT_FALSE(at::equal(x.grad(), y));
}

TEST(RunTiledReplay, BackwardLeavesTheGeneratorWhereItStood) {
  const at::Tensor x = at::ones({100, kHidden}).requires_grad_();
  const auto dropout = [](const at::Tensor& tile, at::TensorList) {
    return std::vector{at::dropout(tile, 0.5, true)};
  };
  const at::Tensor y = RunTiled(dropout, x, {}, {.size = {.num_tiles = 7}})[0];
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  const at::Tensor before = generator.get_state();

  y.sum().backward();

  EXPECT_TRUE(at::equal(generator.get_state(), before));
}

TEST(RunTiledReplay, BackwardRunsUnderTheAutocastOfForward) {
  std::vector<at::ScalarType> dtypes;
  const TileBody body = [&](const at::Tensor& tile, at::TensorList w) {
    std::vector<at::Tensor> outputs = SwiGlu(tile, w);
    dtypes.push_back(outputs[0].scalar_type());
    return outputs;
  };
  const std::vector<at::Tensor> w = Weights(at::kFloat);
  const at::Tensor x = Input({9, kHidden}, at::kFloat);

  at::autocast::set_autocast_enabled(at::kCPU, true);
  const at::Tensor y = RunTiled(body, x, w, {.size = {.num_tiles = 2}})[0];
  const at::Tensor other = at::linear(x, w[0]);  // must not meet a cast weight without a gradient
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  y.sum().backward();

  EXPECT_EQ(dtypes, std::vector<at::ScalarType>(4, at::kBFloat16));
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
  EXPECT_TRUE(torch::autograd::grad({other.sum()}, {w[0]})[0].defined());
}

// --- Tiles without gradient ----------------------------------------------------------------------

TEST(RunTiledZeroGradients, TheirTilesAreLeftOut) {
  const std::vector<at::Tensor> w = Weights(at::kDouble);
  const at::Tensor x = Input({100, kHidden}, at::kDouble);
  const auto loss = [](const at::Tensor& y) { return y.narrow(0, 60, 25).square().sum(); };
  const std::vector<at::Tensor> truth = torch::autograd::grad({loss(SwiGlu(x, w)[0])}, {x, w[0]});
  const auto stats = std::make_shared<TileStats>();

  const at::Tensor y = RunTiled(SwiGlu, x, w, {.size = {.num_tiles = 10}, .stats = stats})[0];
  const std::vector<at::Tensor> tiled = torch::autograd::grad({loss(y)}, {x, w[0]});

  EXPECT_EQ(stats->skipped_tiles, 7);
  EXPECT_EQ(stats->backward_tiles, 3);
  for (size_t i = 0; i < 2; ++i) EXPECT_LT(LargestDifference(tiled[i], truth[i]), 1e-12);
}

TEST(RunTiledZeroGradients, IfAllTilesAreSkippedWeightsGetZeros) {
  const std::vector<at::Tensor> w = Weights(at::kDouble);
  const at::Tensor x = Input({100, kHidden}, at::kDouble);

  (RunTiled(SwiGlu, x, w, {.size = {.num_tiles = 10}})[0] * 0).sum().backward();

  EXPECT_TRUE(at::equal(w[0].grad(), at::zeros_like(w[0])));
  EXPECT_TRUE(at::equal(x.grad(), at::zeros_like(x)));
}

TEST(RunTiledZeroGradients, AreComputedWhereAskedFor) {
  const std::vector<at::Tensor> w = Weights(at::kDouble);
  const at::Tensor x = Input({100, kHidden}, at::kDouble);
  const auto stats = std::make_shared<TileStats>();

  (RunTiled(SwiGlu, x, w,
            {.size = {.num_tiles = 10}, .skip_zero_gradients = false, .stats = stats})[0] *
   0)
      .sum()
      .backward();

  EXPECT_EQ(stats->backward_tiles, 10);
  EXPECT_TRUE(at::equal(w[0].grad(), at::zeros_like(w[0])));
}

// --- When there is nothing to tile ---------------------------------------------------------------

TEST(RunTiledUntiled, BelowBreakEvenAndCounted) {
  const std::vector<at::Tensor> w = Weights(at::kDouble);
  const auto stats = std::make_shared<TileStats>();
  const TileOptions options = {.stats = stats};  // tiles of 1,024 tokens

  RunTiled(SwiGlu, Input({2, 512, kHidden}, at::kDouble), w, options);
  RunTiled(SwiGlu, Input({3, 512, kHidden}, at::kDouble), w, options);

  EXPECT_EQ(stats->calls, 2);
  EXPECT_EQ(stats->untiled, 1);
  EXPECT_EQ(stats->tiles, 2);
  EXPECT_EQ(stats->tile_tokens, 768);
}

TEST(RunTiledUntiled, WithoutGradModeThereIsNoGraph) {
  const std::vector<at::Tensor> w = Weights(at::kDouble);
  const at::NoGradGuard no_grad;

  const at::Tensor y =
      RunTiled(SwiGlu, Input({9, kHidden}, at::kDouble), w, {.size = {.num_tiles = 2}})[0];

  EXPECT_FALSE(y.requires_grad());
}

// --- Errors --------------------------------------------------------------------------------------

TEST(RunTiledErrors, ACapturedWeightIsAnErrorInBackward) {
  const std::vector<at::Tensor> w = Weights(at::kDouble);
  const at::Tensor hidden_weight = at::randn({kHidden}, at::kDouble).requires_grad_();
  const TileBody body = [&](const at::Tensor& tile, at::TensorList weights) {
    return std::vector{SwiGlu(tile, weights)[0] * hidden_weight};
  };
  const at::Tensor x = Input({9, kHidden}, at::kDouble);
  const at::Tensor y = RunTiled(body, x, w, {.size = {.num_tiles = 3}})[0];

  const std::string error = MessageOf([&] { y.sum().backward(); });

  EXPECT_THAT(
      error,
      HasSubstr("a tensor of shape [6] that requires a gradient but is none of the weights"));
}

TEST(RunTiledErrors, ACapturedWeightIsAnErrorInForwardWhereNothingElseIsTrained) {
  const at::Tensor weight = at::randn({kHidden}, at::kDouble).requires_grad_();
  const TileBody body = [&](const at::Tensor& tile, at::TensorList) {
    return std::vector{tile * weight};
  };

  const std::string error = MessageOf([&] {
    RunTiled(body, at::randn({9, kHidden}, at::kDouble), {}, {.size = {.num_tiles = 3}});
  });

  EXPECT_THAT(error, HasSubstr("none of the weights given"));
}

TEST(RunTiledErrors, AWeightChangedBeforeBackwardIsSeen) {
  const std::vector<at::Tensor> w = Weights(at::kDouble);
  const at::Tensor y =
      RunTiled(SwiGlu, Input({9, kHidden}, at::kDouble), w, {.size = {.num_tiles = 3}})[0];
  {
    const at::NoGradGuard no_grad;
    w[1].mul_(2);
  }

  const std::string error = MessageOf([&] { y.sum().backward(); });

  EXPECT_THAT(error, HasSubstr("modified by an inplace operation"));
}

TEST(RunTiledErrors, NameTheTile) {
  const TileBody body = [](const at::Tensor& tile, at::TensorList) {
    return std::vector{at::linear(tile, at::ones({3, tile.size(0) == 3 ? kHidden : 5}))};
  };

  const std::string error = MessageOf([&] {
    RunTiled(body, at::ones({5, kHidden}), {}, {.size = {.num_tiles = 2}});
  });

  EXPECT_THAT(error, HasSubstr("tiled_mlp: in tile 2 of 2"));
}

TEST(RunTiledErrors, SayWhatWasGiven) {
  const at::Tensor x = at::ones({5, kHidden});
  const TileOptions two = {.size = {.num_tiles = 2}};
  const auto sum = [](const at::Tensor& tile, at::TensorList) { return std::vector{tile.sum()}; };
  const auto none = [](const at::Tensor&, at::TensorList) { return std::vector<at::Tensor>(); };
  const auto uneven = [](const at::Tensor& tile, at::TensorList) {
    return std::vector{at::ones({tile.size(0), tile.size(0)})};
  };
  const auto fewer = [](const at::Tensor& tile, at::TensorList) {
    return std::vector<at::Tensor>(static_cast<size_t>(tile.size(0)), tile);
  };

  EXPECT_THAT(MessageOf([&] { RunTiled(sum, x, {}, two); }),
              HasSubstr("is [] for a tile of 3 rows"));
  EXPECT_THAT(MessageOf([&] { RunTiled(none, x, {}, two); }), HasSubstr("returned no tensor"));
  EXPECT_THAT(MessageOf([&] { RunTiled(uneven, x, {}, two); }),
              HasSubstr("[2] for tile 2, but Float [3] for the first"));
  EXPECT_THAT(MessageOf([&] { RunTiled(fewer, x, {}, two); }), HasSubstr("and 2 for tile 2"));
  EXPECT_THAT(MessageOf([&] { RunTiled(sum, at::ones({5}, at::kLong), {}, two); }),
              HasSubstr("must be a floating-point tensor [..., hidden], not CPULongType"));
  EXPECT_THAT(
      MessageOf([&] { RunTiled(sum, x, {}, {.size = {.num_tiles = 2, .tile_tokens = 3}}); }),
      HasSubstr("not both"));
}

TEST(RunTiledErrors, CreateGraphIsRefused) {
  const std::vector<at::Tensor> w = Weights(at::kDouble);
  const at::Tensor y =
      RunTiled(SwiGlu, Input({9, kHidden}, at::kDouble), w, {.size = {.num_tiles = 3}})[0];

  const std::string error = MessageOf([&] {
    torch::autograd::grad({y.sum()}, {w[0]}, {}, /*retain_graph=*/true, /*create_graph=*/true);
  });

  EXPECT_THAT(error, HasSubstr("create_graph is not supported"));
}

}  // namespace
}  // namespace lockstep::tiled_mlp
