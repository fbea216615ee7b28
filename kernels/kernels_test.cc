// All kernels against the operators of ATen that they stand for, in tables. BUILD runs these tests
// on each instruction set.

#include "kernels/kernels.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "ATen/core/grad_mode.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/inputs.h"
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

constexpr double kEps = 1e-5;

// A chain of operators, and the kernel in its place.
struct Chain {
  std::string name;
  std::function<Tensors(const Tensors&)> fused, composed;
  std::function<Tensors(int64_t rows, int64_t size)> inputs;  // float64
  size_t num_differentiable;                                  // of the inputs, the first ones
};

at::Tensor PlainNorm(const at::Tensor& x, const at::Tensor& weight) {
  return weight * at::rms_norm(x, {x.size(-1)}, std::nullopt, kEps);
}

at::Tensor Random(at::IntArrayRef shape, double scale = 1) {
  return at::randn(shape, at::kDouble) * scale;
}

const std::vector<Chain>& Chains() {
  static const auto* const kChains = new std::vector<Chain>{
      {"rms_norm", [](const Tensors& in) { return Tensors{RmsNorm(in[0], in[1], kEps)}; },
       [](const Tensors& in) { return Tensors{PlainNorm(in[0], in[1])}; },
       [](int64_t rows, int64_t size) {
         return Tensors{Random({rows, size}, 3), Random({size})};
       },
       2},
      {"add_rms_norm",
       [](const Tensors& in) {
         const auto [y, sum] = AddRmsNorm(in[0], in[1], in[2], kEps);
         return Tensors{y, sum};
       },
       [](const Tensors& in) {
         const at::Tensor sum = in[0] + in[1];
         return Tensors{PlainNorm(sum, in[2]), sum};
       },
       [](int64_t rows, int64_t size) {
         return Tensors{Random({rows, size}), Random({rows, size}, 2), Random({size})};
       },
       3},
      {"swiglu", [](const Tensors& in) { return Tensors{Swiglu(in[0], in[1])}; },
       [](const Tensors& in) { return Tensors{at::silu(in[0]) * in[1]}; },
       [](int64_t rows, int64_t size) {
         return Tensors{Random({rows, size}, 4), Random({rows, size})};
       },
       2},
      {"rotate", [](const Tensors& in) { return Tensors{Rotate(in[0], in[1], in[2])}; },
       [](const Tensors& in) {
         const at::Tensor rolled = at::roll(in[0], in[0].size(-1) / 2, -1);
         return Tensors{at::addcmul(in[0] * in[1], rolled, in[2])};
       },
       [](int64_t rows, int64_t size) {
         size += size % 2;
         return Tensors{Random({rows, 3, size}), Random({rows, 1, size}), Random({rows, 1, size})};
       },
       1},
  };
  return *kChains;
}

// The inputs in a dtype, as leaves.
Tensors Leaves(const Chain& chain, const Tensors& inputs, at::ScalarType dtype) {
  Tensors leaves;
  for (const at::Tensor& input : inputs)
    leaves.push_back(
        input.detach().to(dtype).clone().requires_grad_(leaves.size() < chain.num_differentiable));
  return leaves;
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

Tensors Differentiable(const Chain& chain, const Tensors& inputs) {
  return {inputs.begin(), inputs.begin() + static_cast<int64_t>(chain.num_differentiable)};
}

// The outputs, then the gradients.
Tensors Results(const Chain& chain, const std::function<Tensors(const Tensors&)>& function,
                const Tensors& inputs) {
  Tensors results = function(inputs);
  const Tensors gradients =
      torch::autograd::grad({Mixed(results)}, Differentiable(chain, inputs), {},
                            /*retain_graph=*/false, /*create_graph=*/false);
  results.insert(results.end(), gradients.begin(), gradients.end());
  return results;
}

TEST(Kernels, AgreeWithAtenAtEverySizeAndDtype) {
  at::manual_seed(1);
  const std::vector<std::pair<at::ScalarType, double>> tolerances = {
      {at::kDouble, 1e-13}, {at::kFloat, 3e-6}, {at::kBFloat16, 2e-2}, {at::kHalf, 3e-3}};
  for (const Chain& chain : Chains()) {
    for (const int64_t rows : {0, 1, 2, 31, 32, 33, 70}) {
      for (const int64_t size : {1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 66, 100, 257}) {
        const Tensors inputs = chain.inputs(rows, size);
        for (const auto& [dtype, tolerance] : tolerances) {
          const Tensors leaves = Leaves(chain, inputs, dtype);

          const Tensors fused = Results(chain, chain.fused, leaves);

          const Tensors truth = Results(chain, chain.composed, Leaves(chain, leaves, at::kDouble));
          ASSERT_EQ(fused.size(), truth.size());
          for (size_t i = 0; i < fused.size(); ++i) {
            EXPECT_EQ(fused[i].scalar_type(), dtype);
            EXPECT_EQ(fused[i].sizes(), truth[i].sizes());
            // If a row has one number, its true gradient is almost 0: only the absolute error
            // counts.
            const at::Tensor error = fused[i].to(at::kDouble) - truth[i];
            EXPECT_LE(error.norm().item<double>(), tolerance * (1 + truth[i].norm().item<double>()))
                << chain.name << " " << rows << " x " << size << ", " << dtype << ", result " << i;
          }
        }
      }
    }
  }
}

TEST(Kernels, GradientsAreThoseOfFiniteDifferences) {
  at::manual_seed(2);
  constexpr double kStep = 1e-5;
  for (const Chain& chain : Chains()) {
    const Tensors inputs = Leaves(chain, chain.inputs(3, 6), at::kDouble);
    const Tensors gradients =
        torch::autograd::grad({Mixed(chain.fused(inputs))}, Differentiable(chain, inputs));
    for (size_t i = 0; i < gradients.size(); ++i) {
      const at::Tensor expected =
          FiniteDifferences([&] { return Mixed(chain.fused(inputs)); }, inputs[i], kStep);
      for (int64_t j = 0; j < expected.numel(); ++j) {
        EXPECT_NEAR(gradients[i].view({-1})[j].item<double>(),
                    expected.view({-1})[j].item<double>(), 1e-7)
            << chain.name << ", input " << i << ", element " << j;
      }
    }
  }
}

TEST(Kernels, ErrorsAreNoLargerThanThoseOfAten) {
  at::manual_seed(3);
  for (const Chain& chain : Chains()) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const Tensors leaves = Leaves(chain, chain.inputs(300, 514), dtype);
      const Tensors truth = Results(chain, chain.composed, Leaves(chain, leaves, at::kDouble));

      const Tensors fused = Results(chain, chain.fused, leaves);
      const Tensors composed = Results(chain, chain.composed, leaves);

      for (size_t i = 0; i < truth.size(); ++i) {
        const double ours = RelativeError(fused[i], truth[i]);
        const double atens = RelativeError(composed[i], truth[i]);
        EXPECT_LE(ours, 1.05 * atens) << chain.name << ", " << dtype << ", result " << i;
      }
    }
  }
}

TEST(Kernels, GradientsOfGradientsAreThoseOfAten) {
  at::manual_seed(4);
  for (const Chain& chain : Chains()) {
    const Tensors inputs = chain.inputs(4, 10);
    std::vector<Tensors> results;
    for (const auto& function : {chain.fused, chain.composed}) {
      const Tensors leaves = Leaves(chain, inputs, at::kDouble);
      // The square: a rotation is linear, and would have no second gradient.
      const Tensors once =
          torch::autograd::grad({Mixed(function(leaves)).square()}, Differentiable(chain, leaves),
                                {}, /*retain_graph=*/true, /*create_graph=*/true);
      results.push_back(torch::autograd::grad({Mixed(once)}, Differentiable(chain, leaves)));
    }
    for (size_t i = 0; i < results[0].size(); ++i)
      EXPECT_LE(RelativeError(results[0][i], results[1][i]), 1e-11) << chain.name << ", " << i;
  }
}

// Returns the norm, x after it, and the gradients of x and of the weight: x is read on both sides.
Tensors NormAndInput(const Tensors& in, at::ScalarType dtype, bool one_node) {
  const at::Tensor x = in[0].to(dtype).requires_grad_(true);
  const at::Tensor weight = in[1].to(dtype).requires_grad_(true);
  const auto [y, input] =
      one_node ? RmsNormAndInput(x, weight, kEps) : std::pair(RmsNorm(x, weight, kEps), x);
  Tensors results = {y, input};
  for (const at::Tensor& gradient : torch::autograd::grad({Mixed(results)}, {x, weight}))
    results.push_back(gradient);
  return results;
}

TEST(Kernels, AnInputNextToItsNormHasTheSumOfBothGradients) {
  at::manual_seed(9);
  const Tensors in = Chains()[0].inputs(70, 66);
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const Tensors together = NormAndInput(in, dtype, true), apart = NormAndInput(in, dtype, false);
    const Tensors truth = NormAndInput(
        {in[0].to(dtype).to(at::kDouble), in[1].to(dtype).to(at::kDouble)}, at::kDouble, false);
    for (const size_t i : {0, 1, 3}) EXPECT_TRUE(at::equal(together[i], apart[i])) << dtype << i;
    // One rounding in place of two.
    EXPECT_LE(RelativeError(together[2], truth[2]), dtype == at::kBFloat16 ? 3e-3 : 1e-7) << dtype;
    EXPECT_LE(RelativeError(together[2], truth[2]), 1.01 * RelativeError(apart[2], truth[2]));
  }
}

TEST(Kernels, AnInputNextToItsNormCostsNoMemoryAndNoNode) {
  const at::Tensor x = Random({3, 4}).requires_grad_(true), weight = Random({4});

  const auto [y, input] = RmsNormAndInput(x, weight, kEps);

  EXPECT_TRUE(input.is_alias_of(x));
  EXPECT_EQ(y.grad_fn(), input.grad_fn());
  EXPECT_EQ(y.grad_fn()->name(), "RmsNormBackward");
  EXPECT_FALSE(RmsNormAndInput(x.detach(), weight, kEps).second.requires_grad());
}

TEST(Kernels, AnInputNextToItsNormHasGradientsOfGradients) {
  at::manual_seed(10);
  const Tensors in = Chains()[0].inputs(4, 10);
  std::vector<at::Tensor> results;
  for (const bool one_node : {true, false}) {
    const at::Tensor x = in[0].clone().requires_grad_(true);
    const auto [y, input] =
        one_node ? RmsNormAndInput(x, in[1], kEps) : std::pair(RmsNorm(x, in[1], kEps), x);
    const Tensors once = torch::autograd::grad({Mixed({y, input}).square()}, {x}, {},
                                               /*retain_graph=*/true, /*create_graph=*/true);
    results.push_back(torch::autograd::grad({Mixed(once)}, {x})[0]);
  }
  EXPECT_LE(RelativeError(results[0], results[1]), 1e-12);
}

TEST(Kernels, AnInputNextToItsNormMayBeTheOnlyResultInUse) {
  const at::Tensor x = Random({3, 4}).requires_grad_(true), weight = Random({4});
  const auto [y, input] = RmsNormAndInput(x, weight, kEps);

  const at::Tensor gradient = torch::autograd::grad({(input * 2).sum()}, {x})[0];

  EXPECT_TRUE(at::equal(gradient, at::full_like(x, 2)));
}

TEST(Kernels, AnInputNextToItsNormThatIsWrittenIsAnErrorOfBackward) {
  const at::Tensor x = Random({3, 4}).requires_grad_(true) * 1;
  const auto [y, input] = RmsNormAndInput(x, Random({4}), kEps);

  input.detach().add_(1);

  EXPECT_THAT(MessageOf([&, norm = y] { norm.sum().backward(); }),
              HasSubstr("modified by an inplace operation"));
}

// Returns the number of nodes that backward of y visits.
size_t NumNodesBelow(const at::Tensor& y) {
  std::vector<const torch::autograd::Node*> nodes = {y.grad_fn().get()};
  size_t count = 0;
  while (!nodes.empty()) {
    const auto* const node = nodes.back();
    nodes.pop_back();
    ++count;
    for (const auto& edge : node->next_edges())
      if (edge.is_valid()) nodes.push_back(edge.function.get());
  }
  return count;
}

// The bits of `needed` say whether x, the weights and the biases need a gradient.
TEST(Linears, GradientsAreTheSumsOfThoseOfLinear) {
  at::manual_seed(11);
  const std::vector<std::pair<at::ScalarType, double>> tolerances = {
      {at::kDouble, 1e-14}, {at::kFloat, 1e-6}, {at::kBFloat16, 6e-3}};
  for (const auto& [dtype, tolerance] : tolerances) {
    for (const std::vector<int64_t>& shape :
         {std::vector<int64_t>{9, 33}, {2, 3, 5}, {0, 5}, {1, 1}, {33}}) {
      for (const size_t count : {1, 2, 3}) {
        for (const bool has_bias : {false, true}) {
          for (int needed = 1; needed < 64; needed += 5) {
            const auto leaf = [&, type = dtype](at::IntArrayRef sizes, int bit) {
              return Random(sizes).to(type).requires_grad_((needed >> bit & 1) != 0);
            };
            const at::Tensor x = leaf(shape, 0);
            Tensors weights, biases, inputs = {x};
            for (size_t i = 0; i < count; ++i) {
              const int64_t out = 4 + 3 * static_cast<int64_t>(i);
              weights.push_back(leaf({out, shape.back()}, 1 + static_cast<int>(i)));
              if (has_bias) biases.push_back(leaf({out}, 4 + static_cast<int>(i) % 2));
            }
            inputs.insert(inputs.end(), weights.begin(), weights.end());
            inputs.insert(inputs.end(), biases.begin(), biases.end());
            Tensors wanted;
            for (const at::Tensor& input : inputs)
              if (input.requires_grad()) wanted.push_back(input);
            if (wanted.empty()) continue;

            const Tensors ours = Linears(x, weights, biases);
            Tensors single;
            for (size_t i = 0; i < count; ++i)
              single.push_back(
                  Linear(x, weights[i], has_bias ? std::optional(biases[i]) : std::nullopt));

            const auto gradients = [&](const Tensors& results) {
              return torch::autograd::grad({Mixed(results)}, wanted);
            };
            const Tensors actual = gradients(ours), expected = gradients(single);
            for (size_t i = 0; i < count; ++i)
              EXPECT_TRUE(at::equal(ours[i], single[i]))
                  << dtype << shape << count << has_bias << needed;
            for (size_t i = 0; i < wanted.size(); ++i) {
              EXPECT_EQ(actual[i].sizes(), wanted[i].sizes());
              if (i > 0 || !x.requires_grad()) {
                EXPECT_TRUE(at::equal(actual[i], expected[i])) << dtype << shape << needed << i;
              } else if (x.numel() > 0) {
                EXPECT_LE(RelativeError(actual[i], expected[i]), tolerance) << dtype << shape;
              }
            }
          }
        }
      }
    }
  }
}

TEST(Linears, ErrorsAreNoLargerThanThoseOfSums) {
  at::manual_seed(12);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = Random({64, 300}).to(dtype).requires_grad_(true);
    Tensors weights, wide;
    for (const int64_t out : {256, 64, 64}) weights.push_back(Random({out, 300}).to(dtype));
    for (const at::Tensor& weight : weights) wide.push_back(weight.to(at::kDouble));
    const auto gradient = [&](const Tensors& results, const at::Tensor& leaf) {
      return torch::autograd::grad({Mixed(results)}, {leaf})[0];
    };
    const at::Tensor wide_x = x.detach().to(at::kDouble).requires_grad_(true);
    const at::Tensor truth = gradient(Linears(wide_x, wide), wide_x);

    const double ours = RelativeError(gradient(Linears(x, weights), x), truth);

    Tensors single;
    for (const at::Tensor& weight : weights) single.push_back(at::linear(x, weight));
    EXPECT_LE(ours, 1.05 * RelativeError(gradient(single, x), truth)) << dtype;
  }
}

TEST(Linears, GradientsCostOneNode) {
  const at::Tensor x = at::ones({2, 3, 4}).requires_grad_(true), weight = at::ones({7, 4});

  const Tensors results = Linears(x, {weight, weight});

  EXPECT_EQ(results[0].grad_fn(), results[1].grad_fn());
  EXPECT_EQ(NumNodesBelow(results[0]), 2);  // it, and what accumulates x's gradient
}

TEST(Linears, AResultThatIsNotUsedHasNoShare) {
  const at::Tensor x = Random({3, 4}).requires_grad_(true);
  const at::Tensor first = Random({7, 4}).requires_grad_(true);
  const at::Tensor second = Random({5, 4}).requires_grad_(true);

  const Tensors gradients =
      torch::autograd::grad({Linears(x, {first, second})[1].sum()}, {x, first, second}, {},
                            /*retain_graph=*/false, /*create_graph=*/false, /*allow_unused=*/true);

  EXPECT_LE(RelativeError(gradients[0], second.sum(0).expand({3, 4})), 1e-15);
  EXPECT_FALSE(gradients[1].defined());
}

TEST(Linears, GradientsOfGradientsAreThoseOfAten) {
  at::manual_seed(13);
  const at::Tensor x = Random({3, 5}).requires_grad_(true);
  const at::Tensor a = Random({7, 5}).requires_grad_(true), b = Random({4, 5});
  const auto second = [&](const Tensors& y) {
    const auto first = torch::autograd::grad({y[0].pow(3).sum() * y[1].pow(2).sum()}, {x, a}, {},
                                             /*retain_graph=*/true, /*create_graph=*/true);
    return torch::autograd::grad({first[0].square().sum() + first[1].square().sum()}, {x, a});
  };

  const auto actual = second(Linears(x, {a, b}));

  const auto expected = second({at::linear(x, a), at::linear(x, b)});
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_LE(RelativeError(actual[i], expected[i]), 1e-13) << i;
}

TEST(Linears, AGradientThatIsKeptIsNotWritten) {
  const at::Tensor x = Random({3, 4}).requires_grad_(true);
  const Tensors y = Linears(x, {Random({5, 4}), Random({6, 4})});
  const at::Tensor dy = Random({3, 5}), before = dy.clone();

  const at::Tensor sum = (y[0] * dy).sum() + y[1].sum();
  const at::Tensor once = torch::autograd::grad({sum}, {x}, {}, /*retain_graph=*/true)[0];
  const at::Tensor kept = once.clone(), twice = torch::autograd::grad({sum}, {x})[0];

  EXPECT_TRUE(at::equal(once, kept));
  EXPECT_TRUE(at::equal(once, twice));
  EXPECT_TRUE(at::equal(dy, before));
}

TEST(Linears, ErrorsSayWhatIsWrong) {
  const at::Tensor x = at::ones({2, 4}), weight = at::ones({3, 4});
  EXPECT_THAT(MessageOf([&] { Linears(x, {}); }), HasSubstr("expected 1 to 3 weights, got 0"));
  EXPECT_THAT(MessageOf([&] {
                Linears(x, {weight, weight}, {at::ones({3})});
              }),
              HasSubstr("expected no bias or one for each of the 2 weights, got 1"));
  EXPECT_THAT(MessageOf([&] {
                Linears(x, {at::ones({3, 5})});
              }),
              HasSubstr("cannot be multiplied (2x4 and 5x3)"));
}

TEST(Kernels, StridesDoNotChangeTheResult) {
  at::manual_seed(5);
  const std::vector<std::pair<const char*, std::function<at::Tensor(const at::Tensor&)>>> layouts =
      {{"rows apart",
        [](const at::Tensor& x) {
          return at::cat({x, x}, -1).narrow(-1, 0, x.size(-1));
        }},
       {"every second row",
        [](const at::Tensor& x) {
          return at::stack({x, x}, 1).select(1, 0);
        }},
       {"transposed",
        [](const at::Tensor& x) { return x.transpose(0, -1).contiguous().transpose(0, -1); }}};
  for (const Chain& chain : Chains()) {
    for (const auto& [name, layout] : layouts) {
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
        const Tensors leaves = Leaves(chain, chain.inputs(9, 34), dtype);
        const Tensors expected = Results(chain, chain.fused, leaves);

        const Tensors actual = Results(
            chain,
            [&](const Tensors& in) {
              Tensors laid_out;
              for (const at::Tensor& x : in) laid_out.push_back(layout(x));
              Tensors outputs = chain.fused(laid_out);
              // The gradients of the outputs have these strides too.
              for (at::Tensor& output : outputs) {
                EXPECT_TRUE(output.is_contiguous());
                output = layout(output);
              }
              return outputs;
            },
            leaves);

        for (size_t i = 0; i < expected.size(); ++i) {
          EXPECT_TRUE(at::equal(actual[i], expected[i]))
              << chain.name << ", " << name << ", " << dtype << ", result " << i;
        }
      }
    }
  }
}

TEST(Kernels, RowsThatLieApartAreNotCopied) {
  const at::Tensor wide = Random({5, 3, 8});

  EXPECT_TRUE(RowsOf(wide.narrow(-1, 2, 4)).tensor.is_alias_of(wide));
  EXPECT_EQ(RowsOf(wide.narrow(-1, 2, 4)).stride, 8);
  EXPECT_TRUE(RowsOf(wide.select(1, 1)).tensor.is_alias_of(wide));
  EXPECT_EQ(RowsOf(wide.select(1, 1)).stride, 24);
  EXPECT_FALSE(RowsOf(wide.narrow(1, 0, 2)).tensor.is_alias_of(wide));
  EXPECT_FALSE(RowsOf(wide.transpose(1, 2)).tensor.is_alias_of(wide));
}

TEST(Kernels, ExpandedGradientsAreTaken) {
  for (const Chain& chain : Chains()) {
    const Tensors leaves = Leaves(chain, chain.inputs(40, 12), at::kDouble);
    const auto sums = [&](const std::function<Tensors(const Tensors&)>& function) {
      at::Tensor sum = at::zeros({}, at::kDouble);
      for (const at::Tensor& output : function(leaves)) sum = sum + output.sum();
      return torch::autograd::grad({sum}, Differentiable(chain, leaves));
    };

    const Tensors actual = sums(chain.fused), expected = sums(chain.composed);

    for (size_t i = 0; i < actual.size(); ++i)
      EXPECT_LE(RelativeError(actual[i], expected[i]), 1e-12) << chain.name << ", " << i;
  }
}

TEST(Kernels, BitsDoNotDependOnTheNumberOfThreads) {
  at::manual_seed(6);
  const int before = at::get_num_threads();
  for (const Chain& chain : Chains()) {
    const Tensors leaves = Leaves(chain, chain.inputs(301, 514), at::kFloat);
    at::set_num_threads(1);
    const Tensors alone = Results(chain, chain.fused, leaves);
    at::set_num_threads(4);

    const Tensors together = Results(chain, chain.fused, leaves);

    for (size_t i = 0; i < alone.size(); ++i)
      EXPECT_TRUE(at::equal(together[i], alone[i])) << chain.name << ", result " << i;
  }
  at::set_num_threads(before);
}

TEST(Kernels, OnlyWhatNeedsAGradientGetsOne) {
  const Tensors in = Chains()[0].inputs(3, 4);
  const at::Tensor x = in[0].clone().requires_grad_(true), weight = in[1].clone();

  RmsNorm(x, weight, kEps).sum().backward();

  EXPECT_TRUE(x.grad().defined());
  EXPECT_FALSE(weight.grad().defined());
  EXPECT_FALSE(RmsNorm(in[0], weight, kEps).requires_grad());
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(RmsNorm(x, weight, kEps).requires_grad());
}

TEST(Kernels, AResultThatIsNotUsedHasNoGradient) {
  for (const size_t used : {0, 1}) {
    std::vector<Tensors> results;
    const Chain& chain = Chains()[1];
    at::manual_seed(7);
    const Tensors inputs = chain.inputs(3, 4);
    for (const auto& function : {chain.fused, chain.composed}) {
      const Tensors leaves = Leaves(chain, inputs, at::kDouble);
      results.push_back(torch::autograd::grad({Mixed({function(leaves)[used]})}, leaves, {},
                                              /*retain_graph=*/false, /*create_graph=*/false,
                                              /*allow_unused=*/true));
    }
    for (size_t i = 0; i < results[0].size(); ++i) {
      ASSERT_EQ(results[0][i].defined(), results[1][i].defined()) << used << ", " << i;
      if (!results[0][i].defined()) continue;
      EXPECT_LE(RelativeError(results[0][i], results[1][i]), 1e-12) << used << ", " << i;
    }
  }
}

TEST(Kernels, AChangedInputIsAnErrorInBackward) {
  for (const Chain& chain : Chains()) {
    const Tensors leaves = Leaves(chain, chain.inputs(3, 4), at::kFloat);
    Tensors inputs;
    for (const at::Tensor& leaf : leaves) inputs.push_back(leaf * 1);
    const at::Tensor loss = Mixed(chain.fused(inputs));

    inputs.back().detach().mul_(2);

    EXPECT_THAT(MessageOf([&] { loss.backward(); }), HasSubstr("modified by an inplace operation"))
        << chain.name;
  }
}

TEST(Kernels, MetaTensorsHaveTheShapesAndNoMemory) {
  for (const Chain& chain : Chains()) {
    const Tensors leaves = Leaves(chain, chain.inputs(3, 4), at::kBFloat16);
    Tensors inputs;
    for (const at::Tensor& leaf : leaves)
      inputs.push_back(leaf.detach().to(at::kMeta).requires_grad_(leaf.requires_grad()));
    const Tensors expected = Results(chain, chain.fused, leaves);

    const Tensors outputs = chain.fused(inputs);
    at::Tensor sum = outputs[0].sum();
    if (outputs.size() > 1) sum = sum + outputs[1].sum();
    Tensors actual = outputs;
    for (const at::Tensor& gradient : torch::autograd::grad({sum}, Differentiable(chain, inputs)))
      actual.push_back(gradient);

    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(actual[i].is_meta());
      EXPECT_EQ(actual[i].sizes(), expected[i].sizes()) << chain.name << ", result " << i;
      EXPECT_EQ(actual[i].scalar_type(), at::kBFloat16);
    }
  }
}

TEST(Kernels, WideAnglesAreNotRounded) {
  const Tensors in = Chains()[3].inputs(6, 40);
  const at::Tensor x = in[0].to(at::kBFloat16), cos = in[1].to(at::kFloat),
                   sin = in[2].to(at::kFloat);

  const at::Tensor y = Rotate(x, cos, sin);

  EXPECT_TRUE(at::equal(y, Rotate(x.to(at::kFloat), cos, sin).to(at::kBFloat16)));
}

TEST(Kernels, BadInputIsNamed) {
  const at::Tensor x = at::ones({2, 4}), weight = at::ones({4}), angle = at::ones({2, 1, 4});
  const at::Tensor y = at::ones({2, 3, 4});
  const std::vector<std::pair<std::function<void()>, const char*>> cases = {
      {[&] { RmsNorm(x, at::ones({3}), kEps); },
       "rms_norm: weight must have shape [4], the size of x's last dimension, got [3]; x has shape "
       "[2, 4]"},
      {[&] { RmsNorm(x.to(at::kBFloat16), weight, kEps); },
       "rms_norm: weight is Float, but x is BFloat16; convert one of them"},
      {[&] { RmsNorm(x.to(at::kLong), weight, kEps); },
       "rms_norm: x must be float16, bfloat16, float32 or float64, got Long"},
      {[&] { RmsNorm(at::ones({}), weight, kEps); }, "x must have at least one dimension"},
      {[&] { RmsNorm(x, weight.to(at::kMeta), kEps); },
       "rms_norm: weight is on meta, but x is on cpu; move one of them"},
      {[&] {
         AddRmsNorm(x, at::ones({1, 4}), weight, kEps);
       },
       "add_rms_norm: x and residual must have one shape, got [2, 4] and [1, 4]"},
      {[&] {
         Swiglu(x, at::ones({2, 5}));
       },
       "swiglu: gate and up must have one shape, got [2, 4] and [2, 5]"},
      {[&] { Swiglu(x, x.to(at::kDouble)); },
       "swiglu: up is Double, but gate is Float; convert one of them"},
      {[&] {
         Rotate(at::ones({2, 3, 5}), angle, angle);
       },
       "rotate: x must have shape [..., heads, size] with an even size, got [2, 3, 5]"},
      {[&] {
         Rotate(y, at::ones({3, 1, 4}), angle);
       },
       "rotate: cos and sin must have shape [2, 1, 4], because x has shape [2, 3, 4]; got [3, 1, "
       "4] and [2, 1, 4]"},
      {[&] { Rotate(y, angle.to(at::kDouble), angle.to(at::kDouble)); },
       "rotate: cos and sin are Double, but x is Float"},
      {[&] { Rotate(y, angle.clone().requires_grad_(true), angle); },
       "rotate: cos or sin requires a gradient, which rotate does not compute; detach them"},
  };
  for (const auto& [call, message] : cases)
    EXPECT_THAT(MessageOf(call), HasSubstr(message)) << message;
}

TEST(Kernels, HeaderExample) {
  const at::Tensor x = at::randn({5, 8}), weight = at::ones({8});
  const at::Tensor gate = at::randn({12, 8}), up = at::randn({12, 8}), down = at::randn({8, 12});

  const at::Tensor h = RmsNorm(x, weight, 1e-6);
  const at::Tensor y = at::linear(Swiglu(at::linear(h, gate), at::linear(h, up)), down);

  EXPECT_EQ(y.sizes(), x.sizes());
}

}  // namespace
}  // namespace lockstep::kernels
