#include "tiled_mlp/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
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

constexpr int64_t kHidden = 6, kVocabulary = 37;

struct Inputs {
  at::Tensor hidden, weight, bias, labels;
};

// Every third label is ignored.
Inputs MakeInputs(std::vector<int64_t> leading, at::ScalarType dtype = at::kDouble) {
  at::manual_seed(1);
  Inputs in;
  in.labels = at::randint(kVocabulary, leading, at::kLong);
  std::vector<int64_t> sizes = leading;
  sizes.push_back(kHidden);
  in.hidden = at::randn(sizes, at::kDouble).to(dtype).requires_grad_();
  in.weight = at::randn({kVocabulary, kHidden}, at::kDouble).to(dtype).requires_grad_();
  in.bias = at::randn({kVocabulary}, at::kDouble).to(dtype).requires_grad_();
  at::Tensor flat = in.labels.view(-1);
  for (int64_t i = 1; i < flat.numel(); i += 3) flat[i] = -100;
  return in;
}

// By the formula in the header, in ordinary operators; losses of all tokens.
at::Tensor PlainLosses(const Inputs& in, const CrossEntropyOptions& options) {
  at::Tensor logits = at::linear(in.hidden, in.weight);
  if (options.bias.defined()) logits = logits + options.bias;
  if (options.softcap > 0) logits = options.softcap * at::tanh(logits / options.softcap);
  const at::Tensor counts = in.labels.ne(options.ignore_index);
  const at::Tensor lse = logits.logsumexp(-1);
  const at::Tensor at_label =
      logits.gather(-1, in.labels.masked_fill(counts.logical_not(), 0).unsqueeze(-1)).squeeze(-1);
  const double e = options.label_smoothing;
  const at::Tensor losses =
      (1 - e) * (lse - at_label) + e * (lse - logits.mean(-1)) + options.z_loss * lse.square();
  return losses.masked_fill(counts.logical_not(), 0);
}

std::vector<at::Tensor> GradientsOf(const at::Tensor& loss, const Inputs& in, bool bias) {
  std::vector<at::Tensor> inputs = {in.hidden, in.weight};
  if (bias) inputs.push_back(in.bias);
  return torch::autograd::grad({loss}, inputs);
}

void ExpectSame(const at::Tensor& loss, const at::Tensor& plain, const Inputs& in, bool bias) {
  EXPECT_LT(RelativeError(loss, plain), 1e-12);
  const std::vector<at::Tensor> actual = GradientsOf(loss, in, bias);
  const std::vector<at::Tensor> truth = GradientsOf(plain, in, bias);
  for (size_t i = 0; i < truth.size(); ++i) {
    EXPECT_EQ(actual[i].sizes(), truth[i].sizes());
    EXPECT_LT(RelativeError(actual[i], truth[i]), 1e-12) << "gradient " << i;
  }
}

TEST(TiledCrossEntropy, HeaderExample) {
  const Inputs in = MakeInputs({2, 9});

  const CrossEntropy result =
      TiledCrossEntropy(in.hidden, in.weight, in.labels, {.ignore_index = -100});
  result.loss.backward();

  const at::Tensor torchs = at::cross_entropy_loss(
      at::linear(in.hidden, in.weight).view({18, kVocabulary}), in.labels.view(-1));
  EXPECT_LT(RelativeError(result.loss, torchs), 1e-12);
  EXPECT_EQ(result.count.item<int64_t>(), 12);
  EXPECT_TRUE(in.weight.grad().defined());
}

TEST(TiledCrossEntropy, ALabelAtMinusInfinityHasAnInfiniteLossAndAFiniteGradient) {
  for (const double smoothing : {0.0, 1.0}) {
    Inputs in = MakeInputs({4});
    in.labels.fill_(3);
    in.bias = in.bias.detach().clone();
    in.bias[3] = -std::numeric_limits<double>::infinity();
    in.bias.requires_grad_(true);
    const CrossEntropyOptions options = {
        .bias = in.bias, .label_smoothing = smoothing, .z_loss = 0.1};

    const at::Tensor loss = TiledCrossEntropy(in.hidden, in.weight, in.labels, options).loss;

    EXPECT_EQ(loss.item<double>(), std::numeric_limits<double>::infinity());
    const auto gradient = [&](const at::Tensor& of) {
      return torch::autograd::grad({of}, {in.bias})[0];
    };
    EXPECT_LT(RelativeError(gradient(loss), gradient(PlainLosses(in, options).mean())), 1e-12);
  }
}

TEST(TiledCrossEntropy, LossAndGradientsAreThoseOfTheFormula) {
  for (const double smoothing : {0.0, 0.1}) {
    for (const double z_loss : {0.0, 1e-2}) {
      for (const double softcap : {0.0, 2.5}) {
        for (const int64_t tile_tokens : {1, 5, 1024}) {
          for (const bool bias : {false, true}) {
            SCOPED_TRACE(testing::Message() << smoothing << " " << z_loss << " " << softcap << " "
                                            << tile_tokens << " " << bias);
            const Inputs in = MakeInputs({2, 9});
            CrossEntropyOptions options{.label_smoothing = smoothing,
                                        .z_loss = z_loss,
                                        .softcap = softcap,
                                        .tile_tokens = tile_tokens};
            if (bias) options.bias = in.bias;
            const auto losses = [&] { return PlainLosses(in, options); };
            const at::Tensor scale = at::arange(18, at::kDouble).view({2, 9}).sin();
            const auto run = [&](Reduction reduction) {
              options.reduction = reduction;
              return TiledCrossEntropy(in.hidden, in.weight, in.labels, options).loss;
            };

            ExpectSame(run(Reduction::kMean), losses().sum() / 12, in, bias);
            ExpectSame(run(Reduction::kSum) * 3, losses().sum() * 3, in, bias);
            EXPECT_LT(RelativeError(run(Reduction::kNone), losses()), 1e-12);
            ExpectSame((run(Reduction::kNone) * scale).sum(), (losses() * scale).sum(), in, bias);
          }
        }
      }
    }
  }
}

TEST(TiledCrossEntropy, TheIncomingGradientScalesBoth) {
  const Inputs in = MakeInputs({11});
  const at::Tensor once = TiledCrossEntropy(in.hidden, in.weight, in.labels, {}).loss;
  const at::Tensor scaled = 1024 * TiledCrossEntropy(in.hidden, in.weight, in.labels, {}).loss;

  const std::vector<at::Tensor> g = GradientsOf(once, in, false);
  const std::vector<at::Tensor> g1024 = GradientsOf(scaled, in, false);

  for (size_t i = 0; i < g.size(); ++i) EXPECT_TRUE(at::equal(g[i] * 1024, g1024[i]));
}

TEST(TiledCrossEntropy, ARetainedGraphGivesTheSameTwiceAndThenAnError) {
  const Inputs in = MakeInputs({11});
  const at::Tensor loss = TiledCrossEntropy(in.hidden, in.weight, in.labels, {}).loss * 2;

  const at::Tensor first = torch::autograd::grad({loss}, {in.weight}, {}, true)[0];
  const at::Tensor second = torch::autograd::grad({loss}, {in.weight}, {}, false)[0];

  EXPECT_TRUE(at::equal(first, second));
  EXPECT_THROW(torch::autograd::grad({loss}, {in.weight}), c10::Error);
}

TEST(TiledCrossEntropy, TheHeadsHookFiresOnceInBackwardTiedOrNot) {
  const Inputs in = MakeInputs({11});
  const at::Tensor tokens = at::randint(kVocabulary, {11}, at::kLong);
  AccumulateCounter counter({in.weight});

  const at::Tensor embedded = at::embedding(in.weight, tokens);
  const at::Tensor loss =
      TiledCrossEntropy(embedded.tanh(), in.weight, in.labels, {.tile_tokens = 3}).loss;
  EXPECT_EQ(counter.Take(), std::vector<int>{0});
  loss.backward();

  EXPECT_EQ(counter.Take(), std::vector<int>{1});
  const Inputs tied{at::embedding(in.weight, tokens).tanh(), in.weight, in.bias, in.labels};
  const at::Tensor truth = torch::autograd::grad({PlainLosses(tied, {}).sum() / 7}, {in.weight})[0];
  EXPECT_EQ(loss.dim(), 0);
  EXPECT_LT(RelativeError(in.weight.grad(), truth), 1e-12);
}

TEST(TiledCrossEntropy, AMeanOverRanksIsThatOfAllTokensTogether) {
  // Two ranks of 3 and 8 labels; data parallel averages the two gradients.
  const Inputs all = MakeInputs({16});
  const at::Tensor truth =
      torch::autograd::grad({PlainLosses(all, {}).sum() / 11}, {all.weight})[0];
  const at::Tensor divisor = at::scalar_tensor(11. / 2);

  at::Tensor mean_loss = at::zeros({}, at::kDouble), mean_gradient = at::zeros_like(all.weight);
  for (const auto& [begin, size] : {std::pair{0, 4}, {4, 12}}) {
    const CrossEntropy result =
        TiledCrossEntropy(all.hidden.narrow(0, begin, size), all.weight,
                          all.labels.narrow(0, begin, size), {.divisor = divisor});
    mean_loss += result.loss.detach() / 2;
    mean_gradient += torch::autograd::grad({result.loss}, {all.weight})[0] / 2;
  }

  EXPECT_LT(RelativeError(mean_loss, PlainLosses(all, {}).sum() / 11), 1e-12);
  EXPECT_LT(RelativeError(mean_gradient, truth), 1e-12);
}

TEST(TiledCrossEntropy, WithoutALabelThatCountsLossAndGradientsAreZero) {
  for (const int64_t tokens : {0, 5}) {
    const Inputs in = MakeInputs({tokens});
    in.labels.fill_(-100);
    for (const Reduction reduction : {Reduction::kMean, Reduction::kSum}) {
      const CrossEntropy result =
          TiledCrossEntropy(in.hidden, in.weight, in.labels, {.reduction = reduction});
      const std::vector<at::Tensor> gradients = GradientsOf(result.loss, in, false);

      EXPECT_EQ(result.loss.item<double>(), 0);
      EXPECT_EQ(result.count.item<int64_t>(), 0);
      for (size_t i = 0; i < 2; ++i)
        EXPECT_TRUE(at::equal(gradients[i], at::zeros_like(i == 0 ? in.hidden : in.weight)));
    }
  }
}

TEST(TiledCrossEntropy, AnIgnoredTokenMayHoldAnything) {
  const Inputs in = MakeInputs({7});
  const CrossEntropy clean = TiledCrossEntropy(in.hidden, in.weight, in.labels, {});
  {
    const at::NoGradGuard no_grad;
    in.hidden[1].fill_(1e300);  // its label is ignored
  }

  const CrossEntropy result = TiledCrossEntropy(in.hidden, in.weight, in.labels, {});

  EXPECT_TRUE(at::equal(result.loss, clean.loss));
}

TEST(TiledCrossEntropy, AnIgnoredTokenOfNaNsLeavesTheOthersTheirGradients) {
  Inputs in = MakeInputs({7});
  in.labels[3] = -100;
  const std::vector<at::Tensor> expected =
      GradientsOf(TiledCrossEntropy(in.hidden, in.weight, in.labels, {}).loss, in, false);
  in.hidden = in.hidden.detach().clone();
  in.hidden[3].fill_(std::numeric_limits<double>::quiet_NaN());
  in.hidden.requires_grad_();

  const CrossEntropy result = TiledCrossEntropy(in.hidden, in.weight, in.labels, {});
  const std::vector<at::Tensor> gradients = GradientsOf(result.loss, in, false);

  EXPECT_TRUE(at::isfinite(result.loss).item<bool>());
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(at::equal(gradients[i], expected[i])) << i;
}

TEST(TiledCrossEntropy, LossesByTokenMayBeModifiedInPlace) {
  const Inputs in = MakeInputs({2, 7});
  const at::Tensor losses =
      TiledCrossEntropy(in.hidden, in.weight, in.labels, {.reduction = Reduction::kNone}).loss;
  const std::vector<at::Tensor> expected = GradientsOf(PlainLosses(in, {}).sum() * 3, in, false);

  losses.mul_(3);

  const std::vector<at::Tensor> gradients = GradientsOf(losses.sum(), in, false);
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_LT(RelativeError(gradients[i], expected[i]), 1e-12);
}

TEST(TiledCrossEntropy, LabelsThatChangeBeforeTheyAreLookedAtAgainAreRefused) {
  const Inputs in = MakeInputs({7});
  const at::Tensor losses =
      TiledCrossEntropy(in.hidden, in.weight, in.labels, {.reduction = Reduction::kNone}).loss;
  in.labels.zero_();

  std::string error = "none";
  try {
    losses.sum().backward();
  } catch (const c10::Error& caught) {
    error = caught.what_without_backtrace();
  }

  EXPECT_THAT(error, HasSubstr("labels were modified in place between forward and backward"));
}

TEST(TiledCrossEntropy, OnlyWhatIsTrainedGetsAGradient) {
  const Inputs in = MakeInputs({11});
  const at::Tensor frozen = in.weight.detach();

  TiledCrossEntropy(in.hidden, frozen, in.labels, {}).loss.backward();
  const at::Tensor alone = TiledCrossEntropy(in.hidden.detach(), frozen, in.labels, {}).loss;

  EXPECT_TRUE(in.hidden.grad().defined());
  EXPECT_FALSE(frozen.grad().defined());
  EXPECT_FALSE(alone.requires_grad());
}

double WorstRelativeError(const at::Tensor& actual, const at::Tensor& truth) {
  return ((actual.to(at::kDouble) - truth) / truth).abs().max().item<double>();
}

// Returns bfloat16 inputs in eighths: a logit is exact until it is rounded to bfloat16.
Inputs InEighths() {
  const Inputs drawn = MakeInputs({300});
  const auto eighths = [](const at::Tensor& t) {
    return t.detach().mul(4).floor().add(0.5).div(4).to(at::kBFloat16).requires_grad_();
  };
  return {eighths(drawn.hidden), eighths(drawn.weight), at::Tensor(), drawn.labels.clamp_min(0)};
}

// The truth starts from the same bfloat16 logits. `coarse`, scored in bfloat16, misses the bounds.
TEST(TiledCrossEntropy, LowPrecisionIsScoredInFloat32) {
  const Inputs in = InEighths();
  const at::Tensor hidden = in.hidden.detach().to(at::kDouble);
  const at::Tensor logits =
      at::linear(hidden, in.weight.detach().to(at::kDouble)).to(at::kBFloat16);
  const at::Tensor labels = in.labels.unsqueeze(1);
  const at::Tensor exact = at::log_softmax(logits.to(at::kDouble), 1);
  const at::Tensor coarse = at::log_softmax(logits, 1);
  const auto losses_of = [&](const at::Tensor& log_p) {
    return -log_p.to(at::kDouble).gather(1, labels).squeeze(1);
  };
  // The gradient of the weight by one token alone, and 1 in the label's row, where 1 is subtracted.
  const auto gradient_of = [&](const at::Tensor& log_p, int64_t token) {
    return at::outer(log_p[token].exp().to(at::kDouble), hidden[token])
        .index_fill(0, in.labels.narrow(0, token, 1), 1);
  };

  const CrossEntropy result = TiledCrossEntropy(in.hidden, in.weight, in.labels,
                                                {.reduction = Reduction::kNone, .tile_tokens = 4});

  EXPECT_EQ(result.loss.scalar_type(), at::kFloat);
  EXPECT_LT(RelativeError(result.loss, losses_of(exact)), 1e-6);
  EXPECT_GT(RelativeError(losses_of(coarse), losses_of(exact)), 2e-4);
  double worst = 0, worst_coarse = 0;
  for (int64_t token = 0; token < 20; ++token) {
    const at::Tensor label = in.labels.narrow(0, token, 1);
    const at::Tensor loss =
        TiledCrossEntropy(in.hidden.narrow(0, token, 1), in.weight, label, {}).loss;
    const at::Tensor gradient = GradientsOf(loss, in, false)[1].index_fill(0, label, 1);
    const at::Tensor truth = gradient_of(exact, token);
    worst = std::max(worst, WorstRelativeError(gradient, truth));
    worst_coarse = std::max(worst_coarse, WorstRelativeError(gradient_of(coarse, token), truth));
  }
  EXPECT_LT(worst, 0.008) << "rounded to bfloat16 twice, as slope and as gradient";
  EXPECT_GT(worst_coarse, 0.015);
}

TEST(TiledCrossEntropy, AddingUpInFloat32IsNearerToTheTruth) {
  const Inputs in = MakeInputs({300}, at::kBFloat16);
  const Inputs exact{in.hidden.detach().to(at::kDouble).requires_grad_(),
                     in.weight.detach().to(at::kDouble).requires_grad_(), at::Tensor(), in.labels};
  const at::Tensor plain = PlainLosses(exact, {}).sum() / 200;
  const at::Tensor truth = GradientsOf(plain, exact, false)[1];
  const auto gradient_with = [&](bool accumulate_fp32) {
    const CrossEntropyOptions options = {.tile_tokens = 4, .accumulate_fp32 = accumulate_fp32};
    return GradientsOf(TiledCrossEntropy(in.hidden, in.weight, in.labels, options).loss, in,
                       false)[1];
  };

  const at::Tensor summed = gradient_with(true);

  EXPECT_EQ(summed.scalar_type(), at::kBFloat16);
  EXPECT_LT(RelativeError(summed, truth), 0.01);
  EXPECT_LT(RelativeError(summed, truth), 0.7 * RelativeError(gradient_with(false), truth));
}

TEST(TiledCrossEntropy, UnderAutocastMultipliesInItsDtype) {
  const Inputs in = MakeInputs({30}, at::kFloat);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const CrossEntropy result = TiledCrossEntropy(in.hidden, in.weight, in.labels, {});
  at::autocast::set_autocast_enabled(at::kCPU, false);

  const std::vector<at::Tensor> gradients = GradientsOf(result.loss, in, false);
  const std::vector<at::Tensor> truth = GradientsOf(PlainLosses(in, {}).sum() / 20, in, false);

  EXPECT_EQ(result.loss.scalar_type(), at::kFloat);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(gradients[i].scalar_type(), at::kFloat);
    EXPECT_GT(RelativeError(gradients[i], truth[i]), 1e-5);
    EXPECT_LT(RelativeError(gradients[i], truth[i]), 0.03);
  }
}

std::string ErrorOf(const Inputs& in, const CrossEntropyOptions& options) {
  return MessageOf([&] { TiledCrossEntropy(in.hidden, in.weight, in.labels, options); });
}

TEST(TiledCrossEntropy, ErrorsSayWhatWasGiven) {
  const Inputs good = MakeInputs({7});
  Inputs outside = MakeInputs({7}), narrow = good, mixed = good, floating = good;
  outside.labels[3] = kVocabulary;
  narrow.weight = good.weight.narrow(1, 0, 5);
  mixed.weight = good.weight.to(at::kFloat);
  floating.labels = good.labels.to(at::kFloat);

  EXPECT_THAT(ErrorOf(outside, {}),
              HasSubstr("label 37 of token 3 is not in the vocabulary of 37"));
  EXPECT_THAT(ErrorOf(narrow, {}), HasSubstr("weight is [37, 5]; [vocabulary, 6]"));
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_THAT(ErrorOf(good, {.softcap = infinity}), HasSubstr("softcap must be a finite number"));
  EXPECT_THAT(ErrorOf(good, {.z_loss = -1}),
              HasSubstr("z_loss must be a finite number of at least 0, not "
                        "-1"));
  EXPECT_THAT(ErrorOf(good, {.divisor = at::zeros({})}),
              HasSubstr("divisor must be above 0, not 0"));
  EXPECT_THAT(ErrorOf(mixed, {}), HasSubstr("hidden is Double and weight or bias Float"));
  EXPECT_THAT(ErrorOf(floating, {}), HasSubstr("labels are CPUFloatType [7]"));
  EXPECT_THAT(ErrorOf(good, {.bias = good.bias.narrow(0, 0, 3)}), HasSubstr("bias is [3]; [37]"));
  EXPECT_THAT(ErrorOf(good, {.label_smoothing = 1.5}), HasSubstr("from 0 to 1, not 1.5"));
}

}  // namespace
}  // namespace lockstep::tiled_mlp
