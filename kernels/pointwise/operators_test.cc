// Each operator of a fused function, and some chains, against ATen's. BUILD runs these tests on
// each instruction set.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/core/grad_mode.h"
#include "gtest/gtest.h"
#include "kernels/pointwise/fuse.h"
#include "tests/support/finite_differences.h"
#include "tests/support/relative_error.h"
#include "tests/support/results.h"
#include "torch/csrc/autograd/autograd.h"

namespace lockstep::kernels {
namespace {

using tests::FiniteDifferences;
using tests::Leaves;
using tests::RelativeError;
using tests::Tensors;

struct Case {
  std::string name;
  std::function<at::Tensor(const Tensors&)> function;
  size_t num_inputs;
  bool is_positive = false;  // the first input is
};

at::Tensor NewGelu(const at::Tensor& x) { return at::gelu(x, "tanh"); }

const std::vector<Case>& Cases() {
  static const auto* const kCases = new std::vector<Case>{
      {"add", [](const Tensors& in) { return in[0] + in[1]; }, 2},
      {"add, alpha", [](const Tensors& in) { return at::add(in[0], in[1], 0.7); }, 2},
      {"sub", [](const Tensors& in) { return in[0] - in[1]; }, 2},
      {"sub, alpha", [](const Tensors& in) { return at::sub(in[0], in[1], 3); }, 2},
      {"rsub", [](const Tensors& in) { return at::rsub(in[0], in[1], 2); }, 2},
      {"number - x", [](const Tensors& in) { return 1.5 - in[0]; }, 1},
      {"mul", [](const Tensors& in) { return in[0] * in[1]; }, 2},
      {"mul, number", [](const Tensors& in) { return in[0] * 0.3; }, 1},
      {"div", [](const Tensors& in) { return in[1] / in[0]; }, 2, true},
      {"number / x", [](const Tensors& in) { return 2.0 / in[0]; }, 1, true},
      {"neg", [](const Tensors& in) { return -in[0]; }, 1},
      {"abs", [](const Tensors& in) { return in[0].abs(); }, 1},
      {"exp", [](const Tensors& in) { return in[0].exp(); }, 1},
      {"log", [](const Tensors& in) { return in[0].log(); }, 1, true},
      {"sqrt", [](const Tensors& in) { return in[0].sqrt(); }, 1, true},
      {"rsqrt", [](const Tensors& in) { return in[0].rsqrt(); }, 1, true},
      {"reciprocal", [](const Tensors& in) { return in[0].reciprocal(); }, 1, true},
      {"square", [](const Tensors& in) { return in[0].square(); }, 1},
      {"pow 2", [](const Tensors& in) { return in[0].pow(2); }, 1},
      {"pow 3", [](const Tensors& in) { return in[0].pow(3); }, 1},
      {"pow 0", [](const Tensors& in) { return in[0].pow(0) * in[1]; }, 2},
      {"pow 0.5", [](const Tensors& in) { return in[0].pow(0.5); }, 1, true},
      {"pow -0.5", [](const Tensors& in) { return in[0].pow(-0.5); }, 1, true},
      {"pow -1", [](const Tensors& in) { return in[0].pow(-1); }, 1, true},
      {"pow -2", [](const Tensors& in) { return in[0].pow(-2); }, 1, true},
      {"pow 1.7", [](const Tensors& in) { return in[0].pow(1.7); }, 1, true},
      {"pow of two", [](const Tensors& in) { return in[0].pow(in[1]); }, 2, true},
      {"number ^ x", [](const Tensors& in) { return at::pow(2.5, in[0]); }, 1},
      {"sigmoid", [](const Tensors& in) { return in[0].sigmoid(); }, 1},
      {"silu", [](const Tensors& in) { return at::silu(in[0]); }, 1},
      {"relu", [](const Tensors& in) { return in[0].relu(); }, 1},
      {"gelu", [](const Tensors& in) { return at::gelu(in[0]); }, 1},
      {"gelu, tanh", [](const Tensors& in) { return NewGelu(in[0]); }, 1},
      {"tanh", [](const Tensors& in) { return in[0].tanh(); }, 1},
      {"erf", [](const Tensors& in) { return in[0].erf(); }, 1},
      {"sin", [](const Tensors& in) { return in[0].sin(); }, 1},
      {"cos", [](const Tensors& in) { return in[0].cos(); }, 1},
      {"maximum", [](const Tensors& in) { return at::maximum(in[0], in[1]); }, 2},
      {"minimum", [](const Tensors& in) { return at::minimum(in[0], in[1]); }, 2},
      {"max of two", [](const Tensors& in) { return at::max(in[0], in[1]); }, 2},
      {"clamp", [](const Tensors& in) { return at::clamp(in[0], -0.5, 0.9); }, 1},
      {"clamp, below", [](const Tensors& in) { return at::clamp(in[0], -0.5); }, 1},
      {"clamp_max", [](const Tensors& in) { return at::clamp_max(in[0], 0.5); }, 1},
      {"clamp, tensors", [](const Tensors& in) { return at::clamp(in[0], in[1], in[1] + 1); }, 2},
      {"where", [](const Tensors& in) { return at::where(in[0] > 0, in[1], in[0] * in[0]); }, 2},
      {"where, numbers", [](const Tensors& in) { return at::where(in[0] >= 0.1, in[0], 0.25); }, 1},
      {"masked_fill", [](const Tensors& in) { return in[0].masked_fill(in[1] < 0, 3); }, 2},
      {"comparisons",
       [](const Tensors& in) {
         return in[0] * (in[0] < in[1]) + in[1] * (in[0] <= 0.5) + in[0] * in[0].eq(in[1]) -
                in[1] * in[0].ne(0);
       },
       2},
      {"logical",
       [](const Tensors& in) {
         const at::Tensor a = in[0] > 0, b = in[1] > 0;
         return in[0] * at::logical_and(a, b) + in[1] * (a | b) + in[0] * at::logical_not(a & b);
       },
       2},
      {"addcmul", [](const Tensors& in) { return at::addcmul(in[0], in[0], in[1], 0.5); }, 2},
      {"addcdiv", [](const Tensors& in) { return at::addcdiv(in[1], in[1], in[0], 2); }, 2, true},
      {"x of itself", [](const Tensors& in) { return in[0] * in[0] + in[0]; }, 1},
      {"the argument", [](const Tensors& in) { return in[0]; }, 1},
      {"swiglu", [](const Tensors& in) { return at::silu(in[0]) * in[1]; }, 2},
      {"soft clipping",
       [](const Tensors& in) { return 30 * (in[0] / 30).tanh() + in[1] * in[0].sigmoid(); }, 2},
      {"long chain",
       [](const Tensors& in) {
         const at::Tensor x = in[0] * 0.5 + in[1], y = NewGelu(x) * in[2].sigmoid();
         return at::where(y > 0, y, 0.1 * y) * (1 + in[1].square()).rsqrt() + x.exp() * in[2];
       },
       3},
  };
  return *kCases;
}

// Far enough from the edges of the operators for finite differences.
Tensors Inputs(const Case& test, at::IntArrayRef shape) {
  Tensors inputs;
  for (size_t i = 0; i < test.num_inputs; ++i) {
    at::Tensor x = at::randn(shape, at::kDouble);
    if (i == 0 && test.is_positive) x = x.abs() + 0.3;
    inputs.push_back(x);
  }
  return inputs;
}

// A number that depends on each element in its own way.
at::Tensor Mixed(const at::Tensor& x) {
  const at::Tensor factors = at::arange(x.numel(), at::kDouble).add(1).sin();
  return (x.to(at::kDouble) * factors.view(x.sizes())).sum();
}

using Function = std::function<at::Tensor(const Tensors&)>;

Function Fused(const Case& test) {
  const auto fused = std::make_shared<FusedFunction>(
      [&test](const Tensors& in) { return Tensors{test.function(in)}; });
  return [fused](const Tensors& in) {
    return (*fused)(std::vector<PointwiseArgument>(in.begin(), in.end()))[0];
  };
}

// The result, then the gradients.
Tensors Results(const Function& function, const Tensors& leaves) {
  Tensors results = {function(leaves)};
  const Tensors gradients =
      torch::autograd::grad({Mixed(results[0])}, leaves, {}, /*retain_graph=*/false,
                            /*create_graph=*/false, /*allow_unused=*/true);
  results.insert(results.end(), gradients.begin(), gradients.end());
  return results;
}

TEST(PointwiseOperators, AgreeWithAtenAtEverySizeAndDtype) {
  at::manual_seed(1);
  const std::vector<std::pair<at::ScalarType, double>> tolerances = {
      {at::kDouble, 1e-13}, {at::kFloat, 3e-6}, {at::kBFloat16, 2e-2}, {at::kHalf, 3e-3}};
  for (const Case& test : Cases()) {
    const Function fused = Fused(test);
    for (const int64_t size : {0, 1, 2, 7, 8, 15, 17, 31, 33, 64, 511, 512, 513, 1500}) {
      const Tensors inputs = Inputs(test, {size});
      for (const auto& [dtype, tolerance] : tolerances) {
        const Tensors leaves = Leaves(inputs, dtype);

        const Tensors actual = Results(fused, leaves);

        const Tensors truth = Results(test.function, Leaves(leaves, at::kDouble));
        for (size_t i = 0; i < truth.size(); ++i) {
          ASSERT_EQ(actual[i].defined(), truth[i].defined()) << test.name << ", " << i;
          if (!truth[i].defined()) continue;
          EXPECT_EQ(actual[i].scalar_type(), dtype);
          EXPECT_EQ(actual[i].sizes(), truth[i].sizes());
          const at::Tensor error = actual[i].to(at::kDouble) - truth[i];
          EXPECT_LE(error.norm().item<double>(), tolerance * (1 + truth[i].norm().item<double>()))
              << test.name << ", size " << size << ", " << dtype << ", result " << i;
        }
      }
    }
  }
}

TEST(PointwiseOperators, GradientsAreThoseOfFiniteDifferences) {
  at::manual_seed(2);
  constexpr double kStep = 1e-6;
  for (const Case& test : Cases()) {
    const Function fused = Fused(test);
    const Tensors inputs = Leaves(Inputs(test, {9}), at::kDouble);
    const Tensors gradients = Results(fused, inputs);
    for (size_t i = 0; i < inputs.size(); ++i) {
      const at::Tensor& gradient = gradients[i + 1];
      const at::Tensor expected =
          FiniteDifferences([&] { return Mixed(fused(inputs)); }, inputs[i], kStep);
      for (int64_t j = 0; j < inputs[i].numel(); ++j) {
        const double actual = gradient.defined() ? gradient[j].item<double>() : 0;
        EXPECT_NEAR(actual, expected[j].item<double>(), 2e-7 * (1 + std::abs(actual)))
            << test.name << ", input " << i << ", element " << j;
      }
    }
  }
}

TEST(PointwiseOperators, ErrorsAreNoLargerThanThoseOfAten) {
  at::manual_seed(3);
  for (const Case& test : Cases()) {
    const Function fused = Fused(test);
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const Tensors leaves = Leaves(Inputs(test, {61, 257}), dtype);
      const Tensors truth = Results(test.function, Leaves(leaves, at::kDouble));

      const Tensors actual = Results(fused, leaves);
      const Tensors composed = Results(test.function, leaves);

      for (size_t i = 0; i < truth.size(); ++i) {
        if (!truth[i].defined()) continue;
        const double ours = RelativeError(actual[i], truth[i]);
        const double atens = RelativeError(composed[i], truth[i]);
        // In float32 ATen takes some functions from MKL, and its formula of a gradient may round
        // less.
        const double least = dtype == at::kFloat ? 1.5e-7 : 0;
        EXPECT_LE(ours, std::max(1.05 * atens, least))
            << test.name << ", " << dtype << ", result " << i;
      }
    }
  }
}

TEST(PointwiseOperators, GradientsOfGradientsAreThoseOfAten) {
  at::manual_seed(4);
  for (const Case& test : Cases()) {
    const Tensors inputs = Inputs(test, {11});
    std::vector<Tensors> results;
    for (const Function& function : {Fused(test), test.function}) {
      const Tensors leaves = Leaves(inputs, at::kDouble);
      at::Tensor sum = at::zeros({}, at::kDouble);
      for (const at::Tensor& once :
           torch::autograd::grad({Mixed(function(leaves).pow(3))}, leaves, {},
                                 /*retain_graph=*/true, /*create_graph=*/true,
                                 /*allow_unused=*/true))
        if (once.defined()) sum = sum + Mixed(once);
      results.push_back(torch::autograd::grad({sum}, leaves, {}, /*retain_graph=*/false,
                                              /*create_graph=*/false, /*allow_unused=*/true));
    }
    for (size_t i = 0; i < results[0].size(); ++i) {
      const auto of = [&](size_t way) {
        return results[way][i].defined() ? results[way][i] : at::zeros({11}, at::kDouble);
      };
      EXPECT_LE(RelativeError(of(0), of(1)), 1e-10) << test.name << ", " << i;
    }
  }
}

// Each operator on special numbers: zeros of both signs, infinities, NaN.
TEST(PointwiseOperators, SpecialNumbersAreThoseOfAten) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const at::Tensor edges = at::tensor({0.0, -0.0, 1.0, -1.0, kInf, -kInf, std::nan(""), 1e30, -1e30,
                                       0.5, 0.9, -0.5, 2.0, 0.1, 90.0, -90.0},
                                      at::kDouble);
  const int64_t size = edges.numel();
  for (const Case& test : Cases()) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      if (test.name == "gelu" && dtype == at::kFloat) continue;  // of inf it is NaN in oneDNN
      const Tensors inputs = {edges.to(dtype).repeat({size}),
                              edges.to(dtype).repeat_interleave(size),
                              edges.to(dtype).flip(0).repeat({size})};
      const Tensors taken(inputs.begin(), inputs.begin() + static_cast<int64_t>(test.num_inputs));

      const at::Tensor actual = Fused(test)(taken), expected = test.function(taken);

      const double tolerance = dtype == at::kFloat ? 2e-6 : 1e-14;
      EXPECT_TRUE(at::allclose(actual, expected, tolerance, 1e-37, /*equal_nan=*/true))
          << test.name << ", " << dtype << "\n"
          << at::stack({taken[0], taken.back(), actual, expected}, 1)
                 .index({at::isclose(actual, expected, tolerance, 1e-37, true).logical_not()});
    }
  }
}

// Where a derivative does not exist, or is infinite: equal operands, edges of a clamp, zero.
TEST(PointwiseOperators, GradientsAtTheEdgesAreThoseOfAten) {
  const at::Tensor edges = at::tensor({0.0, 1.0, -1.0, 0.5, 0.9, -0.5, 2.0, 0.1, 3.0}, at::kDouble);
  const int64_t size = edges.numel();
  for (const Case& test : Cases()) {
    const Tensors inputs = {edges.repeat({size}), edges.repeat_interleave(size),
                            edges.flip(0).repeat({size})};
    const Tensors taken(inputs.begin(), inputs.begin() + static_cast<int64_t>(test.num_inputs));

    const Tensors actual = Results(Fused(test), Leaves(taken, at::kDouble));

    const Tensors expected = Results(test.function, Leaves(taken, at::kDouble));
    for (size_t i = 1; i < expected.size(); ++i) {
      if (!expected[i].defined()) continue;
      EXPECT_TRUE(at::allclose(actual[i], expected[i], 1e-12, 1e-12, /*equal_nan=*/true))
          << test.name << ", gradient " << i << "\n"
          << at::stack({taken[0], taken.back(), actual[i], expected[i]}, 1)
                 .index({at::isclose(actual[i], expected[i], 1e-12, 1e-12, true).logical_not()});
    }
  }
}

}  // namespace
}  // namespace lockstep::kernels
