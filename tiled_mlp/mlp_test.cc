#include "tiled_mlp/mlp.h"

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
#include "tiled_mlp/testing/strategies.h"
#include "torch/csrc/autograd/autograd.h"

namespace lockstep::tiled_mlp {
namespace {

using ::testing::HasSubstr;
using tests::MessageOf;
using tests::RelativeError;

constexpr int64_t kHidden = 6, kIntermediate = 10, kOut = 5;

struct Mlp {
  MlpWeights weights;
  Activation activation = Activation::kSilu;

  std::vector<at::Tensor> All() const {
    std::vector<at::Tensor> all;
    for (const at::Tensor& w : {weights.gate, weights.up, weights.down, weights.gate_bias,
                                weights.up_bias, weights.down_bias}) {
      if (w.defined()) all.push_back(w);
    }
    return all;
  }

  // The formula in ordinary operators.
  at::Tensor Plain(const at::Tensor& x) const {
    const auto linear = [](const at::Tensor& input, const at::Tensor& w, const at::Tensor& b) {
      const at::Tensor y = input.matmul(w.t());
      return b.defined() ? y + b : y;
    };
    const auto act = [&](const at::Tensor& z) {
      if (activation == Activation::kSilu) return z * at::sigmoid(z);
      return at::gelu(z, activation == Activation::kGelu ? "none" : "tanh");
    };
    const at::Tensor up = linear(x, weights.up, weights.up_bias);
    const at::Tensor h =
        weights.gate.defined() ? act(linear(x, weights.gate, weights.gate_bias)) * up : act(up);
    return linear(h, weights.down, weights.down_bias);
  }
};

Mlp MakeMlp(bool gated, bool biased, Activation activation, at::ScalarType dtype = at::kDouble,
            int64_t scale = 1) {
  at::manual_seed(1);
  const auto make = [&](std::vector<int64_t> sizes) {
    return at::randn(sizes, at::kDouble).mul_(0.4).to(dtype).requires_grad_();
  };
  const int64_t hidden = kHidden * scale, wide = kIntermediate * scale, out = kOut * scale;
  Mlp mlp{{make({wide, hidden}), make({wide, hidden}), make({out, wide})}, activation};
  if (!gated) mlp.weights.gate = at::Tensor();
  if (biased) {
    if (gated) mlp.weights.gate_bias = make({wide});
    mlp.weights.up_bias = make({wide});
    mlp.weights.down_bias = make({out});
  }
  return mlp;
}

at::Tensor Input(std::vector<int64_t> sizes, at::ScalarType dtype = at::kDouble) {
  at::manual_seed(2);
  return at::randn(sizes, at::kDouble).to(dtype).requires_grad_();
}

// Returns the gradients of x and all weights, for an output gradient that differs at every element.
std::vector<at::Tensor> GradientsOf(const at::Tensor& y, const at::Tensor& x, const Mlp& mlp) {
  at::manual_seed(3);
  const at::Tensor dy = at::randn(y.sizes(), at::kDouble).to(y.scalar_type());
  std::vector<at::Tensor> inputs = {x};
  for (const at::Tensor& w : mlp.All()) inputs.push_back(w);
  return torch::autograd::grad({y}, inputs, {dy});
}

TEST(RunTiledMlp, HeaderExample) {
  const Mlp mlp = MakeMlp(true, false, Activation::kSilu);
  const at::Tensor x = Input({2, 7, kHidden});

  const at::Tensor y =
      RunTiledMlp(x, {.gate = mlp.weights.gate, .up = mlp.weights.up, .down = mlp.weights.down},
                  Activation::kSilu, {.size = {.tile_tokens = 8192}});

  EXPECT_LT(RelativeError(y, mlp.Plain(x)), 1e-12);
}

TEST(RunTiledMlp, GradientsAreThoseOfTheFormula) {
  for (const bool gated : {true, false}) {
    for (const bool biased : {true, false}) {
      for (const Activation activation :
           {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh}) {
        const Mlp mlp = MakeMlp(gated, biased, activation);
        for (const std::vector<int64_t>& sizes :
             {std::vector<int64_t>{125, kHidden}, {1, 1, kHidden}, {3, 7, kHidden}, {kHidden}}) {
          const at::Tensor x = Input(sizes);
          const at::Tensor plain = mlp.Plain(x);
          const std::vector<at::Tensor> truth = GradientsOf(plain, x, mlp);
          for (const int64_t num_tiles : {1, 2, 7, 200}) {
            const at::Tensor y =
                RunTiledMlp(x, mlp.weights, activation, {.size = {.num_tiles = num_tiles}});
            const std::vector<at::Tensor> tiled = GradientsOf(y, x, mlp);

            EXPECT_EQ(y.sizes(), plain.sizes());
            EXPECT_LT(RelativeError(y, plain), 1e-12);
            for (size_t i = 0; i < truth.size(); ++i)
              EXPECT_LT(RelativeError(tiled[i], truth[i]), 1e-12)
                  << gated << biased << static_cast<int>(activation) << " gradient " << i;
          }
          // Below break-even the same weights go through ordinary operators.
          const at::Tensor untiled = RunTiledMlp(x, mlp.weights, activation, {});
          EXPECT_LT(RelativeError(GradientsOf(untiled, x, mlp)[1], truth[1]), 1e-12);
        }
      }
    }
  }
}

TEST(RunTiledMlp, StridedInputAndExpandedGradientAreTaken) {
  const Mlp mlp = MakeMlp(true, true, Activation::kSilu);
  const at::Tensor x = Input({5, 3, kHidden}).detach().transpose(0, 1).requires_grad_();
  const at::Tensor truth = torch::autograd::grad({mlp.Plain(x).sum()}, {x})[0];

  const at::Tensor y = RunTiledMlp(x, mlp.weights, Activation::kSilu, {.size = {.num_tiles = 4}});

  EXPECT_LT(RelativeError(torch::autograd::grad({y.sum()}, {x})[0], truth), 1e-12);
}

TEST(RunTiledMlp, FrozenWeightsGetNoneAndCostNothing) {
  const Mlp mlp = MakeMlp(true, true, Activation::kSilu);
  const at::Tensor x = Input({9, kHidden}).detach();
  mlp.weights.gate.requires_grad_(false);
  mlp.weights.down_bias.requires_grad_(false);
  AccumulateCounter counter({mlp.weights.up, mlp.weights.down});
  const at::Tensor truth = torch::autograd::grad({mlp.Plain(x).sum()}, {mlp.weights.up})[0];

  RunTiledMlp(x, mlp.weights, Activation::kSilu, {.size = {.num_tiles = 4}}).sum().backward();

  EXPECT_EQ(counter.Take(), (std::vector<int>{1, 1}));
  EXPECT_FALSE(mlp.weights.gate.grad().defined());
  EXPECT_FALSE(mlp.weights.down_bias.grad().defined());
  EXPECT_LT(RelativeError(mlp.weights.up.grad(), truth), 1e-12);
}

TEST(RunTiledMlp, TiedWeightsGetTheSum) {
  Mlp mlp = MakeMlp(true, false, Activation::kSilu);
  mlp.weights.gate = mlp.weights.up;
  const at::Tensor x = Input({9, kHidden});
  AccumulateCounter counter({mlp.weights.up});
  const at::Tensor truth = torch::autograd::grad({mlp.Plain(x).sum()}, {mlp.weights.up})[0];

  RunTiledMlp(x, mlp.weights, Activation::kSilu, {.size = {.num_tiles = 4}}).sum().backward();

  EXPECT_EQ(counter.Take(), std::vector<int>{1});
  EXPECT_LT(RelativeError(mlp.weights.up.grad(), truth), 1e-12);
}

TEST(RunTiledMlp, EmptyInputAndZeroGradientsGiveZeros) {
  const Mlp mlp = MakeMlp(true, true, Activation::kSilu);
  const auto stats = std::make_shared<TileStats>();
  const TileOptions options = {.size = {.num_tiles = 4}, .stats = stats};

  RunTiledMlp(Input({2, 0, kHidden}), mlp.weights, Activation::kSilu, options).sum().backward();
  const at::Tensor x = Input({9, kHidden});
  (RunTiledMlp(x, mlp.weights, Activation::kSilu, options) * 0).sum().backward();

  for (const at::Tensor& w : mlp.All()) EXPECT_TRUE(at::equal(w.grad(), at::zeros_like(w)));
  EXPECT_TRUE(at::equal(x.grad(), at::zeros_like(x)));
  EXPECT_EQ(stats->skipped_tiles, 4);
}

TEST(RunTiledMlp, AddingUpInFloat32IsNearerToTheTruthThanUntiledBfloat16) {
  const Mlp low = MakeMlp(true, false, Activation::kSilu, at::kBFloat16, /*scale=*/16);
  Mlp high = low;
  for (at::Tensor* w : {&high.weights.gate, &high.weights.up, &high.weights.down})
    *w = w->detach().to(at::kDouble).requires_grad_();
  const at::Tensor x = Input({2048, 16 * kHidden}, at::kBFloat16);
  const at::Tensor x64 = x.detach().to(at::kDouble).requires_grad_();
  at::manual_seed(3);
  const at::Tensor dy = at::randn({2048, 16 * kOut}, at::kDouble).to(at::kBFloat16);
  const auto gradients = [&](const at::Tensor& y, const Mlp& mlp) {
    return torch::autograd::grad({y}, mlp.All(), {dy.to(y.scalar_type())});
  };
  const std::vector<at::Tensor> truth = gradients(high.Plain(x64), high);

  const std::vector<at::Tensor> untiled = gradients(
      RunTiledMlp(x, low.weights, low.activation, {.size = {.tile_tokens = 1 << 30}}), low);
  const std::vector<at::Tensor> tiled =
      gradients(RunTiledMlp(x, low.weights, low.activation,
                            {.size = {.num_tiles = 16}, .accumulate_fp32 = true}),
                low);

  for (size_t i = 0; i < truth.size(); ++i)
    EXPECT_LT(RelativeError(tiled[i], truth[i]), 0.95 * RelativeError(untiled[i], truth[i])) << i;
}

TEST(RunTiledMlp, ComputesInTheDtypeOfAutocast) {
  const Mlp mlp = MakeMlp(true, true, Activation::kSilu, at::kFloat);
  const at::Tensor x = Input({9, kHidden}, at::kFloat);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const at::Tensor plain = mlp.Plain(x);

  const at::Tensor y = RunTiledMlp(x, mlp.weights, Activation::kSilu, {.size = {.num_tiles = 4}});

  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  const std::vector<at::Tensor> gradients = GradientsOf(y, x, mlp);
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  EXPECT_LT(RelativeError(y, plain), 0.02);
  const std::vector<at::Tensor> truth = GradientsOf(mlp.Plain(x), x, mlp);
  for (size_t i = 0; i < truth.size(); ++i) {
    EXPECT_EQ(gradients[i].scalar_type(), at::kFloat);
    EXPECT_LT(RelativeError(gradients[i], truth[i]), 0.03);
  }
}

std::string ErrorOf(const MlpWeights& weights, const at::Tensor& x) {
  return MessageOf([&] { RunTiledMlp(x, weights, Activation::kSilu, {}); });
}

TEST(RunTiledMlp, NamesTheWeightThatDoesNotFit) {
  const MlpWeights good = MakeMlp(true, true, Activation::kSilu).weights;
  const at::Tensor x = Input({9, kHidden});
  MlpWeights narrow = good, mixed = good, lone = good, none = good;
  narrow.gate = good.gate.narrow(0, 0, 3);
  mixed.down_bias = good.down_bias.to(at::kFloat);
  lone.gate = at::Tensor();
  none.down = at::Tensor();

  EXPECT_THAT(ErrorOf(narrow, x), HasSubstr("gate is [3, 6]"));
  EXPECT_THAT(ErrorOf(mixed, x), HasSubstr("down_bias is Float and x Double"));
  EXPECT_THAT(ErrorOf(lone, x), HasSubstr("gate_bias is given, but no gate"));
  EXPECT_THAT(ErrorOf(none, x), HasSubstr("up and down must be matrices"));
}

}  // namespace
}  // namespace lockstep::tiled_mlp
