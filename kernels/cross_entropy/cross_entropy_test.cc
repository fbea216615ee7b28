// The fused cross entropy against ATen's operators in float64. BUILD runs these tests on each
// instruction set.

#include "kernels/cross_entropy/cross_entropy.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/finite_differences.h"
#include "tests/support/message_of.h"
#include "tests/support/relative_error.h"
#include "torch/csrc/autograd/autograd.h"

namespace lockstep::kernels {
namespace {

using ::testing::HasSubstr;
using tests::FiniteDifferences;
using tests::MessageOf;
using tests::RelativeError;
using Tensors = std::vector<at::Tensor>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// One loss, with float64 logits.
struct Case {
  at::Tensor logits, target;
  LossOptions options;
};

// Returns random logits of rows x size, and labels. A quarter are ignored.
Case RandomCase(int64_t rows, int64_t size, double smoothing = 0, double z_loss = 0,
                bool has_weight = false) {
  Case one = {.logits = at::randn({rows, size}, at::kDouble) * 4 + 3,
              .target = at::randint(size, {rows}, at::kLong),
              .options = {.ignore_index = -1, .label_smoothing = smoothing, .z_loss = z_loss}};
  one.target.masked_fill_(at::rand({rows}).lt(0.25), -1);
  if (has_weight) one.options.weight = at::rand({rows}, at::kDouble) + 0.5;
  return one;
}

at::ScalarType WideOf(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

LossOptions InDtype(LossOptions options, at::ScalarType dtype) {
  if (options.weight) options.weight = options.weight->to(WideOf(dtype));
  return options;
}

// Returns loss, lse and entropy by ATen's operators.
Tensors ByAten(const at::Tensor& logits, const at::Tensor& target, const LossOptions& options) {
  const at::Tensor ignored = target.eq(options.ignore_index);
  const at::Tensor log_p = logits.log_softmax(-1), lse = logits.logsumexp(-1);
  at::Tensor loss = at::cross_entropy_loss(logits, target, {}, at::Reduction::None,
                                           options.ignore_index, options.label_smoothing);
  if (options.z_loss > 0) loss = loss + lse.square() * options.z_loss;
  if (options.weight) loss = loss * *options.weight;
  return {loss.masked_fill(ignored, 0), lse.masked_fill(ignored, 0),
          (-(log_p.exp() * log_p).sum(-1)).masked_fill(ignored, 0)};
}

Tensors ByKernel(const at::Tensor& logits, const at::Tensor& target, const LossOptions& options) {
  const TokenLosses losses = CrossEntropy(logits, target, options, /*with_entropy=*/true);
  return {losses.loss, losses.lse, losses.entropy};
}

// A scalar that depends on each number in its own way.
at::Tensor Mixed(const Tensors& tensors) {
  at::Tensor sum = at::zeros({}, at::kDouble);
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor factors = at::arange(tensor.numel(), at::kDouble).add(1).sin();
    sum = sum + (tensor.to(at::kDouble) * factors.view(tensor.sizes())).sum();
  }
  return sum;
}

at::Tensor Leaf(const at::Tensor& x, at::ScalarType dtype) {
  return x.detach().to(dtype).clone().requires_grad_(true);
}

at::Tensor GradientOf(const at::Tensor& loss, const at::Tensor& leaf) {
  return torch::autograd::grad({loss}, {leaf})[0];
}

// Adds the gradient of the first `count` results to the results.
template <typename Call>
Tensors WithGradient(const Call& call, const Case& one, at::ScalarType dtype, size_t count) {
  const at::Tensor leaf = Leaf(one.logits, dtype);
  Tensors results = call(leaf, one.target, InDtype(one.options, dtype));
  results.resize(count);
  results.push_back(GradientOf(Mixed(results), leaf));
  return results;
}

TEST(CrossEntropy, AgreesWithAtenAtEverySizeAndDtype) {
  at::manual_seed(1);
  const std::vector<std::pair<at::ScalarType, double>> tolerances = {
      {at::kDouble, 1e-12}, {at::kFloat, 2e-6}, {at::kBFloat16, 5e-3}, {at::kHalf, 6e-4}};
  int number = 0;
  for (const int64_t rows : {0, 1, 5, 33}) {
    for (const int64_t size : {1, 2, 7, 16, 31, 32, 33, 65, 500, 2047, 2048, 2049, 4100}) {
      // Each option is on and off, at 0 and 1 too.
      const double smoothing = std::vector<double>{0, 0.1, 1}[number % 3];
      const Case given =
          RandomCase(rows, size, smoothing, number % 2 * 0.01, /*has_weight=*/number % 5 < 2);
      ++number;
      for (const auto& [dtype, tolerance] : tolerances) {
        for (const size_t count : {1, 3}) {
          // Not all of the numbers of `given` are numbers of the dtype.
          Case one = given;
          one.logits = given.logits.to(dtype).to(at::kDouble);
          const Tensors fused = WithGradient(ByKernel, one, dtype, count);

          const Tensors truth = WithGradient(ByAten, one, at::kDouble, count);
          for (size_t i = 0; i < fused.size(); ++i) {
            const bool is_gradient = i + 1 == fused.size();
            EXPECT_EQ(fused[i].scalar_type(), is_gradient ? dtype
                                              : i == 1    ? at::kDouble
                                                          : WideOf(dtype));
            EXPECT_EQ(fused[i].sizes(), truth[i].sizes());
            const at::Tensor error = fused[i].to(at::kDouble) - truth[i];
            // Results are not rounded to the dtype. With one class they are 0, but for rounding.
            EXPECT_LE(error.norm().item<double>(),
                      (is_gradient ? tolerance : std::min(tolerance, 2e-6)) *
                          (1 + truth[i].norm().item<double>()))
                << rows << " x " << size << ", " << dtype << ", result " << i << " of " << count;
          }
        }
      }
    }
  }
}

// The sizes of GPT-2's vocabulary, which no vector divides, Llama's, and Gemma's.
// ATen's own sums in float32 lose more digits than ours.
TEST(CrossEntropy, HasSixDigitsInLargeVocabularies) {
  at::manual_seed(2);
  for (const int64_t size : {50257, 128256, 262144}) {
    for (const auto& [dtype, tolerance] :
         std::vector<std::pair<at::ScalarType, double>>{{at::kFloat, 1e-6}, {at::kDouble, 1e-12}}) {
      Case one = RandomCase(3, size);
      one.logits = one.logits.to(dtype).to(at::kDouble);
      one.target.copy_(at::tensor({int64_t{0}, size / 2, size - 1}));
      const Tensors fused = WithGradient(ByKernel, one, dtype, 1);

      const Tensors truth = WithGradient(ByAten, one, at::kDouble, 1);
      const Tensors atens = WithGradient(ByAten, one, dtype, 1);
      for (size_t i = 0; i < fused.size(); ++i) {
        EXPECT_LE(RelativeError(fused[i], truth[i]), tolerance) << size << ", result " << i;
        EXPECT_LE(RelativeError(fused[i], atens[i]), 20 * tolerance) << size << ", result " << i;
      }
    }
  }
}

TEST(CrossEntropy, ErrorsAreNoLargerThanThoseOfAten) {
  at::manual_seed(3);
  for (const double shift : {0, 40}) {
    Case one = RandomCase(40, 3000);
    one.logits = (one.logits + shift).to(at::kFloat).to(at::kDouble);
    const Tensors truth = WithGradient(ByAten, one, at::kDouble, 1);

    const Tensors fused = WithGradient(ByKernel, one, at::kFloat, 1);
    const Tensors atens = WithGradient(ByAten, one, at::kFloat, 1);

    for (size_t i = 0; i < truth.size(); ++i)
      EXPECT_LE(RelativeError(fused[i], truth[i]), 1.05 * RelativeError(atens[i], truth[i]))
          << "shift " << shift << ", result " << i;
  }
}

TEST(CrossEntropy, SmallLossesOfLargeLogitsKeepTheirDigits) {
  at::Tensor logits = at::zeros({1, 50}, at::kFloat) + 90;
  logits[0][7] = 100;
  const at::Tensor target = at::tensor({int64_t{7}});
  const Case one = {.logits = logits.to(at::kDouble), .target = target, .options = {}};
  const Tensors truth = WithGradient(ByAten, one, at::kDouble, 1);

  const Tensors fused = WithGradient(ByKernel, one, at::kFloat, 1);

  EXPECT_LE(RelativeError(fused[0], truth[0]), 5e-4);  // 0.0022, next to 100
  EXPECT_LE(RelativeError(fused[1], truth[1]), 5e-4);
}

// Runs a test with the kernels, and with ATen's operators in their place.
template <typename Test>
void WithAndWithoutKernels(const Test& test) {
  const auto use = c10::Dispatcher::singleton()
                       .findSchemaOrThrow("lockstep::use_cross_entropy_kernels", "")
                       .typed<void(bool)>();
  for (const bool enabled : {false, true}) {
    SCOPED_TRACE(enabled ? "the kernels" : "ATen's operators");
    use.call(enabled);
    test();
  }
}

// A sum of logits near 1e4 in float32 would leave three digits of their distance from the mean.
TEST(CrossEntropy, SmoothedLossesOfLargeLogitsKeepTheirDigits) {
  at::manual_seed(13);
  for (const double shift : {-1e4, 1e4, 1e6}) {
    for (const double smoothing : {0.1, 1.}) {
      Case one = RandomCase(3, 5000, smoothing);
      one.target.copy_(at::tensor({int64_t{0}, int64_t{4999}, int64_t{77}}));
      one.logits = (one.logits + shift).to(at::kFloat).to(at::kDouble);
      const Tensors truth = WithGradient(ByAten, one, at::kDouble, 1);
      WithAndWithoutKernels([&] {
        const Tensors results = WithGradient(ByKernel, one, at::kFloat, 1);
        EXPECT_LE(RelativeError(results[0], truth[0]), 1e-6) << shift << ", " << smoothing;
        EXPECT_LE(RelativeError(results[1], truth[1]), 2e-5) << shift << ", " << smoothing;
      });
    }
  }
}

// lse itself leaves no digit of the logarithm of the sum.
TEST(CrossEntropy, GradientsOfHugeLogitsKeepTheirScale) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    for (const double huge : {3e6, 1e9, 1e12, 1e15, -1e15, 1e17, 1e30}) {
      at::Tensor logits = at::full({1, 40}, huge, dtype).to(at::kDouble);
      logits.narrow(1, 30, 10).sub_(std::abs(huge));
      const Case one = {.logits = logits, .target = at::tensor({int64_t{7}}), .options = {}};
      // A number for all logits makes no difference.
      Case near = one;
      near.logits = logits - huge;
      const Tensors truth = WithGradient(ByAten, near, at::kDouble, 1);
      WithAndWithoutKernels([&] {
        const Tensors results = WithGradient(ByKernel, one, dtype, 1);
        EXPECT_LE(RelativeError(results[0], truth[0]), dtype == at::kFloat ? 1e-6 : 1e-12) << huge;
        EXPECT_LE(RelativeError(results[1], truth[1]), dtype == at::kFloat ? 1e-6 : 1e-12) << huge;
      });
      const at::Tensor in_place = logits.to(dtype).clone();
      CrossEntropyWithGradient(in_place, one.target);
      const at::Tensor leaf = Leaf(logits, dtype);
      const at::Tensor loss = CrossEntropy(leaf, one.target).loss;
      EXPECT_TRUE(at::equal(in_place, GradientOf(loss.sum(), leaf))) << huge;
    }
  }
}

TEST(CrossEntropy, ALabelAtMinusInfinityHasAnInfiniteLossAndAFiniteGradient) {
  at::manual_seed(14);
  for (const double smoothing : {0., 0.1, 1.}) {
    for (const double z_loss : {0., 0.05}) {
      Case one = RandomCase(2, 50, smoothing, z_loss);
      one.target.copy_(at::tensor({int64_t{20}, int64_t{49}}));
      for (const int64_t row : {0, 1}) one.logits[row][one.target[row]] = -kInfinity;
      const auto gradient = [&](const auto& call, at::ScalarType dtype) {
        const at::Tensor leaf = Leaf(one.logits, dtype);
        const at::Tensor loss = call(leaf, one.target, one.options)[0];
        // ATen's is NaN with a smoothing of 1: 0 times infinity.
        EXPECT_TRUE(loss.eq(kInfinity).all().item<bool>() || dtype == at::kDouble) << loss;
        return GradientOf(loss.sum(), leaf);
      };
      const at::Tensor truth = gradient(ByAten, at::kDouble);
      WithAndWithoutKernels(
          [&] { EXPECT_LE(RelativeError(gradient(ByKernel, at::kFloat), truth), 1e-6); });
    }
  }
}

TEST(CrossEntropy, LogitsOfMinusInfinityHaveNoEntropy) {
  at::manual_seed(15);
  Case one = RandomCase(3, 2500), rest = one;
  one.target.copy_(at::tensor({int64_t{0}, int64_t{90}, int64_t{99}}));
  one.logits.narrow(1, 100, 2400).fill_(-kInfinity);
  rest.logits = one.logits.narrow(1, 0, 100);
  rest.target = one.target;
  const Tensors truth = WithGradient(ByAten, rest, at::kDouble, 3);
  WithAndWithoutKernels([&] {
    const Tensors results = WithGradient(ByKernel, one, at::kFloat, 3);
    EXPECT_LE(RelativeError(results[2], truth[2]), 1e-6);
    EXPECT_LE(RelativeError(results[3].narrow(1, 0, 100), truth[3]), 1e-6);
    EXPECT_EQ(results[3].narrow(1, 100, 2400).abs().max().item<double>(), 0);
  });
}

TEST(CrossEntropy, GradientsAreThoseOfFiniteDifferences) {
  at::manual_seed(4);
  const Case one = RandomCase(4, 6, 0.2, 0.05, /*has_weight=*/true);
  const at::Tensor leaf = Leaf(one.logits, at::kDouble);
  const auto loss = [&] { return Mixed(ByKernel(leaf, one.target, one.options)); };
  const at::Tensor gradient = GradientOf(loss(), leaf);

  const at::Tensor expected = FiniteDifferences(loss, leaf, 1e-5);

  EXPECT_LE((gradient - expected).abs().max().item<double>(), 1e-7);
}

TEST(CrossEntropy, GradientsOfGradientsAreThoseOfAten) {
  at::manual_seed(5);
  const Case one = RandomCase(5, 9, 0.1, 0.05, /*has_weight=*/true);
  Tensors results;
  for (const auto& call : {ByKernel, ByAten}) {
    const at::Tensor leaf = Leaf(one.logits, at::kDouble);
    const at::Tensor once =
        torch::autograd::grad({Mixed(call(leaf, one.target, one.options)).square()}, {leaf}, {},
                              /*retain_graph=*/true, /*create_graph=*/true)[0];
    results.push_back(GradientOf(Mixed({once}), leaf));
  }
  EXPECT_LE(RelativeError(results[0], results[1]), 1e-11);
}

TEST(CrossEntropy, InPlaceGradientsHaveTheSameBits) {
  at::manual_seed(6);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    for (const double smoothing : {0.0, 0.1}) {
      const Case one = RandomCase(9, 130, smoothing, smoothing, /*has_weight=*/smoothing > 0);
      const LossOptions options = InDtype(one.options, dtype);
      const at::Tensor leaf = Leaf(one.logits, dtype);
      const at::Tensor loss = CrossEntropy(leaf, one.target, options).loss;
      const at::Tensor expected = GradientOf(loss.sum(), leaf);

      at::Tensor whole = at::zeros({9, 200}, dtype);
      for (const int64_t padding : {0, 70}) {
        const at::Tensor logits = whole.narrow(1, 0, 130 + padding).narrow(1, 0, 130);
        const at::Tensor given = padding == 0 ? leaf.detach().clone() : logits.copy_(leaf.detach());
        const at::Tensor in_place = CrossEntropyWithGradient(given, one.target, options);

        EXPECT_TRUE(at::equal(in_place, loss.detach())) << dtype;
        EXPECT_TRUE(at::equal(given, expected)) << dtype << ", padding " << padding;
      }
      EXPECT_EQ(whole.narrow(1, 130, 70).abs().max().item<double>(), 0) << "padding was written";
      // Strides that no kernel takes: ATen's operators write the gradient.
      const at::Tensor transposed = leaf.detach().t().contiguous().t();
      CrossEntropyWithGradient(transposed, one.target, options);
      EXPECT_LE(RelativeError(transposed, expected), dtype == at::kBFloat16 ? 1e-2 : 1e-6);
    }
  }
}

TEST(CrossEntropy, StridesDoNotChangeTheResult) {
  at::manual_seed(7);
  const Case one = RandomCase(6, 70);
  const at::Tensor x = one.logits;
  const Tensors layouts = {at::cat({x, x}, -1).narrow(-1, 0, 70), at::stack({x, x}, 1).select(1, 0),
                           x.t().contiguous().t()};
  const at::Tensor leaf = Leaf(x, at::kDouble);
  const at::Tensor loss = CrossEntropy(leaf, one.target, one.options).loss;
  const at::Tensor expected = GradientOf(Mixed({loss}), leaf);
  for (const at::Tensor& layout : layouts) {
    const at::Tensor logits = layout.detach().requires_grad_(true);
    ASSERT_FALSE(logits.is_contiguous());
    const at::Tensor target = at::stack({one.target, one.target}, 1).select(1, 0);
    const at::Tensor strided = CrossEntropy(logits, target, one.options).loss;

    EXPECT_TRUE(at::equal(strided, loss));
    EXPECT_TRUE(at::equal(GradientOf(Mixed({strided}), logits), expected));
  }
}

TEST(CrossEntropy, TakesAnyLeadingShape) {
  at::manual_seed(8);
  const Case one = RandomCase(6, 11);
  const at::Tensor loss = CrossEntropy(one.logits, one.target, one.options).loss;
  const at::Tensor box =
      CrossEntropy(one.logits.view({2, 3, 11}), one.target.view({2, 3}), one.options).loss;
  EXPECT_TRUE(at::equal(box, loss.view({2, 3})));
  const at::Tensor single = CrossEntropy(one.logits[4], one.target[4].fill_(3), one.options).loss;
  EXPECT_EQ(single.dim(), 0);
  EXPECT_EQ(single.item<double>(),
            CrossEntropy(one.logits, one.target, one.options).loss[4].item<double>());
}

TEST(CrossEntropy, IgnoredRowsGiveZeroWhateverTheyHold) {
  at::manual_seed(9);
  Case one = RandomCase(4, 40, 0.1, 0.1);
  one.target.copy_(at::tensor({int64_t{3}, int64_t{-1}, int64_t{5}, int64_t{-1}}));
  one.logits[1].fill_(std::nan(""));
  for (const bool all : {false, true}) {
    if (all) one.target.fill_(-1), one.logits.fill_(kInfinity);
    const Tensors results = WithGradient(ByKernel, one, at::kFloat, 3);
    const at::Tensor given = one.logits.to(at::kFloat).clone();
    const at::Tensor loss = CrossEntropyWithGradient(given, one.target, one.options);
    for (const at::Tensor& x : {results[0], results[1], results[2], results[3], given, loss}) {
      EXPECT_FALSE(x.isnan().any().item<bool>());
      EXPECT_EQ(x[1].abs().sum().item<double>(), 0);
      EXPECT_EQ(x.abs().sum().item<double>() == 0, all);
    }
  }
}

TEST(CrossEntropy, LogitsOfMinusInfinityHaveNoShare) {
  at::manual_seed(10);
  const Case one = RandomCase(3, 2500);
  one.target.copy_(at::tensor({int64_t{2400}, int64_t{2200}, int64_t{2499}}));
  one.logits.narrow(1, 0, 2150).fill_(-kInfinity);  // the first block, and part of the second
  const Tensors fused = WithGradient(ByKernel, one, at::kFloat, 1);

  Case rest = one;
  rest.logits = one.logits.narrow(1, 2150, 350);
  rest.target = one.target - 2150;
  const Tensors truth = WithGradient(ByAten, rest, at::kDouble, 1);
  EXPECT_LE(RelativeError(fused[0], truth[0]), 1e-6);
  EXPECT_EQ(fused[1].narrow(1, 0, 2150).abs().max().item<double>(), 0);
  EXPECT_LE(RelativeError(fused[1].narrow(1, 2150, 350), truth[1]), 1e-6);
}

TEST(CrossEntropy, DoesNotHideInfinityOrNan) {
  for (const double bad : {std::nan(""), kInfinity}) {
    for (const int64_t place : {0, 7, 2100, 2112}) {
      at::Tensor logits = at::randn({1, 2113}, at::kFloat);
      logits[0][place] = bad;
      EXPECT_TRUE(std::isnan(CrossEntropy(logits, at::tensor({int64_t{50}})).loss.item<double>()))
          << bad << " at " << place;
    }
  }
  const at::Tensor none = at::full({1, 100}, -kInfinity, at::kFloat);
  EXPECT_TRUE(std::isnan(CrossEntropy(none, at::tensor({int64_t{50}})).loss.item<double>()));
}

TEST(CrossEntropy, BitsDoNotDependOnTheNumberOfThreads) {
  at::manual_seed(11);
  const int before = at::get_num_threads();
  const Case one = RandomCase(50, 1500, 0.1);
  std::vector<Tensors> results;
  for (const int threads : {1, 3}) {
    at::set_num_threads(threads);
    results.push_back(WithGradient(ByKernel, one, at::kFloat, 3));
  }
  at::set_num_threads(before);
  for (size_t i = 0; i < results[0].size(); ++i)
    EXPECT_TRUE(at::equal(results[0][i], results[1][i])) << i;
}

TEST(CrossEntropy, OneNumberForAllRowsIsNotCopied) {
  at::manual_seed(12);
  const Case one = RandomCase(5, 20);
  const at::Tensor leaf = Leaf(one.logits, at::kDouble);
  const at::Tensor by_sum =
      GradientOf(CrossEntropy(leaf, one.target, one.options).loss.sum() * 0.7, leaf);
  const at::Tensor loss = CrossEntropy(leaf, one.target, one.options).loss;
  const at::Tensor by_row = torch::autograd::grad({loss}, {leaf}, {at::full_like(loss, 0.7)})[0];
  EXPECT_TRUE(at::equal(by_sum, by_row));
}

TEST(CrossEntropy, MetaTensorsHaveTheSameShapes) {
  const Case one = RandomCase(5, 20);
  const auto meta = at::TensorOptions().device(at::kMeta);
  const at::Tensor logits = one.logits.to(meta.dtype(at::kBFloat16)).requires_grad_(true);
  const TokenLosses losses = CrossEntropy(logits, one.target.to(meta.dtype(at::kLong)), {}, true);
  EXPECT_EQ(losses.loss.sizes(), one.target.sizes());
  EXPECT_EQ(losses.loss.scalar_type(), at::kFloat);
  EXPECT_EQ(losses.lse.scalar_type(), at::kDouble);
  EXPECT_EQ(GradientOf(losses.loss.sum(), logits).sizes(), one.logits.sizes());
}

TEST(CrossEntropy, ErrorsSayWhatIsWrong) {
  const at::Tensor logits = at::zeros({2, 3}), target = at::tensor({int64_t{1}, int64_t{2}});
  const auto message = [&](const at::Tensor& x, const at::Tensor& y, const LossOptions& options) {
    return MessageOf([&] { CrossEntropy(x, y, options); });
  };
  EXPECT_THAT(message(logits, target + 1, {}),
              HasSubstr("cross_entropy: target 3 of row 1 is out of bounds: the logits have 3 "
                        "classes, 0 to 2, and ignore_index is -100"));
  EXPECT_THAT(message(logits, target - 2, {}), HasSubstr("target -1 of row 0"));
  EXPECT_THAT(MessageOf([&] { CrossEntropyWithGradient(logits, target + 1); }),
              HasSubstr("target 3 of row 1"));
  EXPECT_THAT(MessageOf([&] {
                CrossEntropyWithGradient(at::zeros({1, 3}).expand({2, 3}), target);
              }),
              HasSubstr("refers to a single memory location"));
  EXPECT_THAT(message(logits, target.to(at::kInt), {}),
              HasSubstr("target must be int64 [2] for logits [2, 3], got Int [2]"));
  EXPECT_THAT(message(logits, target[0], {}), HasSubstr("got Long []"));
  EXPECT_THAT(message(logits.to(at::kInt), target, {}), HasSubstr("logits must be float16"));
  EXPECT_THAT(message(at::zeros({2, 0}), target, {}), HasSubstr("at least one class"));
  EXPECT_THAT(message(logits, target, {.label_smoothing = 1.5}), HasSubstr("from 0 to 1, got 1.5"));
  EXPECT_THAT(message(logits, target, {.z_loss = -1}), HasSubstr("at least 0, got -1"));
  EXPECT_THAT(message(logits, target, {.weight = at::ones({3})}),
              HasSubstr("weight must be Float [2] on cpu, got Float [3] on cpu"));
  EXPECT_THAT(message(logits, target, {.weight = at::ones({2}).requires_grad_(true)}),
              HasSubstr("weight gets no gradient"));
  EXPECT_THAT(MessageOf([&] {
                CrossEntropyWithGradient(at::zeros({2, 3}).requires_grad_(true), target);
              }),
              HasSubstr("logits require a gradient, and would be overwritten"));
}

TEST(CrossEntropy, BackwardSeesLogitsThatWereModified) {
  const at::Tensor leaf = Leaf(at::randn({2, 3}, at::kDouble), at::kFloat), logits = leaf * 1;
  const at::Tensor target = at::tensor({int64_t{1}, int64_t{2}});
  const at::Tensor loss = CrossEntropy(logits, target).loss.sum();
  CrossEntropyWithGradient(logits.detach(), target);
  EXPECT_THAT(MessageOf([&] { GradientOf(loss, leaf); }), HasSubstr("inplace operation"));
}

}  // namespace
}  // namespace lockstep::kernels
