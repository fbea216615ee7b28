// Fused functions that reduce their last dimension, against ATen's. BUILD runs these tests on each
// instruction set.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "ATen/core/grad_mode.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/pointwise/fuse.h"
#include "tests/support/finite_differences.h"
#include "tests/support/message_of.h"
#include "tests/support/relative_error.h"
#include "tests/support/results.h"
#include "torch/csrc/autograd/autograd.h"

namespace lockstep::kernels {
namespace {

using ::testing::HasSubstr;
using tests::FiniteDifferences;
using tests::Leaves;
using tests::MessageOf;
using tests::Mixed;
using tests::RelativeError;
using tests::Results;
using tests::Tensors;

struct Case {
  std::string name;
  PointwiseFunction function;
  std::string inputs;  // x and y of all elements, w of columns, s of rows, n of one number
};

at::Tensor Sum(const at::Tensor& x) { return x.sum(-1, true); }
at::Tensor Mean(const at::Tensor& x) { return x.mean(-1, true); }
at::Tensor Amax(const at::Tensor& x) { return x.amax(-1, true); }

at::Tensor Softmax(const at::Tensor& x) {
  const at::Tensor e = (x - Amax(x)).exp();
  return e / Sum(e);
}

const std::vector<Case>& Cases() {
  static const auto* const kCases = new std::vector<Case>{
      {"sum, not kept", [](const Tensors& in) { return Tensors{in[0].sum(-1)}; }, "x"},
      {"mean", [](const Tensors& in) { return Tensors{in[0].mean(-1)}; }, "x"},
      {"amax", [](const Tensors& in) { return Tensors{Amax(in[0])}; }, "x"},
      {"amin", [](const Tensors& in) { return Tensors{in[0].amin(-1)}; }, "x"},
      {"x * amax - amin",
       [](const Tensors& in) { return Tensors{in[0] * Amax(in[0]) - in[0].amin(-1, true)}; }, "x"},
      {"softmax of x * scale + mask",
       [](const Tensors& in) { return Tensors{Softmax(in[0] * 0.3 + in[1])}; }, "xw"},
      {"log_softmax",
       [](const Tensors& in) {
         const at::Tensor x = in[0] - Amax(in[0]);
         return Tensors{x - Sum(x.exp()).log()};
       },
       "x"},
      {"logsumexp",
       [](const Tensors& in) {
         return Tensors{(in[0] - Amax(in[0])).exp().sum(-1).log() + in[0].amax(-1)};
       },
       "x"},
      {"RMSNorm",
       [](const Tensors& in) {
         return Tensors{in[0] * (Mean(in[0] * in[0]) + 1e-6).rsqrt() * in[1]};
       },
       "xw"},
      {"LayerNorm",
       [](const Tensors& in) {
         const at::Tensor x = in[0] - Mean(in[0]);
         return Tensors{x * (Mean(x.square()) + 1e-5).rsqrt() * in[1] + in[2]};
       },
       "xww"},
      {"LayerNorm and its statistics",
       [](const Tensors& in) {
         const at::Tensor mean = Mean(in[0]), scale = (Mean((in[0] - mean).square()) + 1).rsqrt();
         return Tensors{(in[0] - mean) * scale, mean, scale};
       },
       "x"},
      {"cross-entropy with a distribution",
       [](const Tensors& in) {
         const at::Tensor x = in[0] - Amax(in[0]);
         return Tensors{Sum(x.exp()).log() * Sum(in[1]) - Sum(x * in[1])};
       },
       "xy"},
      {"a sum in a sum",
       [](const Tensors& in) {
         const at::Tensor x = in[0] * Sum(in[0] * in[1]).tanh();
         return Tensors{in[1] - Sum(x.sin() * in[1]) * x};
       },
       "xy"},
      {"a sum of rows only",
       [](const Tensors& in) { return Tensors{in[0] * Sum(in[1]) + Mean(in[1].exp())}; }, "xs"},
      {"numbers of rows",
       [](const Tensors& in) { return Tensors{Softmax(in[0] * in[1]) * in[1] - in[2] * in[0]}; },
       "xsn"},
      {"a sum of columns", [](const Tensors& in) { return Tensors{in[0] * Sum(in[1])}; }, "xw"},
      {"a sum of a number that is broadcast",
       [](const Tensors& in) { return Tensors{Mean(in[0] * 0 + in[1]) * in[0]}; }, "xs"},
      {"a mean of a number that is broadcast, and of its square",
       [](const Tensors& in) {
         return Tensors{Mean(in[0] * in[1]), Mean(in[0] * in[1]).square() - in[1]};
       },
       "xs"},
      {"nothing of the row is left",
       [](const Tensors& in) { return Tensors{Sum(in[0]) * in[1] + Sum(in[0]) * 2}; }, "xs"},
      {"results of elements, of rows, and pointwise ones",
       [](const Tensors& in) {
         const at::Tensor sum = Sum(in[0] * in[1]);
         return Tensors{sum, in[0] * sum, in[0] + in[1], in[2] * 2, sum.sigmoid().sum(-1, true)};
       },
       "xyw"},
      {"the same result three times",
       [](const Tensors& in) {
         const at::Tensor sum = Sum(in[0]);
         return Tensors{sum, in[0] * sum, sum, in[0] * sum, in[0]};
       },
       "x"},
      {"many sums",
       [](const Tensors& in) {
         at::Tensor x = in[0];
         for (int i = 0; i < 6; ++i) x = (x - Mean(x)) * (1 + 0.1 * Amax(x).tanh());
         return Tensors{x};
       },
       "x"},
  };
  return *kCases;
}

// Distinct numbers, so that the largest does not change in finite differences.
Tensors Inputs(const Case& test, int64_t rows, int64_t columns) {
  Tensors inputs;
  for (const char letter : test.inputs) {
    const at::DimVector shape = letter == 'w'   ? at::DimVector{columns}
                                : letter == 's' ? at::DimVector{rows, 1}
                                : letter == 'n' ? at::DimVector{}
                                                : at::DimVector{rows, columns};
    inputs.push_back(at::randn(shape, at::kDouble));
  }
  return inputs;
}

PointwiseFunction Fused(const PointwiseFunction& function) {
  const auto fused = std::make_shared<FusedFunction>(function);
  return [fused](const Tensors& in) {
    return (*fused)(std::vector<PointwiseArgument>(in.begin(), in.end()));
  };
}

TEST(Reductions, AgreeWithAtenAtEverySizeAndDtype) {
  at::manual_seed(1);
  const std::vector<std::pair<at::ScalarType, double>> tolerances = {
      {at::kDouble, 1e-11}, {at::kFloat, 1e-4}, {at::kBFloat16, 4e-2}, {at::kHalf, 6e-3}};
  const std::vector<std::pair<int64_t, int64_t>> sizes = {
      {0, 5},   {3, 1},   {1, 2},   {5, 3},   {70, 7},  {9, 16},  {1030, 1}, {33, 31}, {8, 100},
      {3, 255}, {2, 256}, {2, 257}, {1, 511}, {3, 512}, {2, 513}, {2, 1000}, {1, 3001}};
  for (const Case& test : Cases()) {
    const PointwiseFunction fused = Fused(test.function);
    for (const auto& [rows, columns] : sizes) {
      const Tensors inputs = Inputs(test, rows, columns);
      for (const auto& [dtype, tolerance] : tolerances) {
        const Tensors leaves = Leaves(inputs, dtype);
        const Tensors truth = Results(test.function, Leaves(leaves, at::kDouble));

        const Tensors actual = Results(fused, leaves);

        ASSERT_EQ(actual.size(), truth.size());
        for (size_t i = 0; i < truth.size(); ++i) {
          EXPECT_EQ(actual[i].scalar_type(), dtype);
          EXPECT_EQ(actual[i].sizes(), truth[i].sizes()) << test.name << ", result " << i;
          EXPECT_TRUE(actual[i].is_contiguous());
          const at::Tensor error = actual[i].to(at::kDouble) - truth[i];
          EXPECT_LE(error.norm().item<double>(), tolerance * (1 + truth[i].norm().item<double>()))
              << test.name << ", " << rows << " x " << columns << ", " << dtype << ", result " << i;
        }
      }
    }
  }
}

TEST(Reductions, GradientsAreThoseOfFiniteDifferences) {
  at::manual_seed(2);
  constexpr double kStep = 1e-6;
  for (const Case& test : Cases()) {
    const PointwiseFunction fused = Fused(test.function);
    const Tensors inputs = Leaves(Inputs(test, 2, 5), at::kDouble);
    const Tensors gradients = torch::autograd::grad({Mixed(fused(inputs))}, inputs);
    for (size_t i = 0; i < inputs.size(); ++i) {
      const at::Tensor gradient = gradients[i].view(-1);
      const at::Tensor expected =
          FiniteDifferences([&] { return Mixed(fused(inputs)); }, inputs[i], kStep).view(-1);
      for (int64_t j = 0; j < gradient.numel(); ++j) {
        const double actual = gradient[j].item<double>();
        EXPECT_NEAR(actual, expected[j].item<double>(), 1e-6 * (1 + std::abs(actual)))
            << test.name << ", input " << i << ", element " << j;
      }
    }
  }
}

// A gradient may be a single number, or the noise of one element of a row. So the errors of one
// draw compare luck; these are their means over draws.
TEST(Reductions, ErrorsAreNoLargerThanThoseOfAten) {
  constexpr int kDraws = 40;
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  at::manual_seed(3);
  const std::vector<std::pair<int64_t, int64_t>> sizes = {{21, 257}, {3, 4099}};
  for (const Case& test : Cases()) {
    const PointwiseFunction fused = Fused(test.function);
    for (const auto& [rows, columns] : sizes) {
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
        std::vector<double> ours, atens;
        for (int draw = 0; draw < kDraws; ++draw) {
          const Tensors leaves = Leaves(Inputs(test, rows, columns), dtype);
          const Tensors truth = Results(test.function, Leaves(leaves, at::kDouble));
          const Tensors actual = Results(fused, leaves);
          const Tensors composed = Results(test.function, leaves);
          ours.resize(truth.size());
          atens.resize(truth.size());
          for (size_t i = 0; i < truth.size(); ++i) {
            ours[i] += RelativeError(actual[i], truth[i]) / kDraws;
            atens[i] += RelativeError(composed[i], truth[i]) / kDraws;
          }
        }

        for (size_t i = 0; i < ours.size(); ++i) {
          // In float32 ATen takes some functions from MKL, which round better.
          const double least = dtype == at::kFloat ? 1.5e-7 : 0;
          EXPECT_LE(ours[i], std::max(1.05 * atens[i], least))
              << test.name << ", " << rows << " x " << columns << ", " << dtype << ", result " << i;
        }
      }
    }
  }
  at::set_num_threads(threads);
}

TEST(Reductions, SumsOfFloat32AreRoundedOnce) {
  at::manual_seed(4);
  for (const int64_t columns : {3, 100, 512, 513, 100000}) {
    const at::Tensor x = at::randn({20, columns}) + 1000, n = Leaves({at::ones({})}, at::kFloat)[0];

    const Tensors actual = Fused([&](const Tensors& in) {
      const at::Tensor sum = Sum(in[0] * in[1]);
      return Tensors{sum, Mean(in[0]), sum - 1e3 * columns};
    })({x, n});
    const at::Tensor of_n = torch::autograd::grad({actual[0].sum()}, {n})[0];

    const at::Tensor wide = x.to(at::kDouble);
    EXPECT_TRUE(at::equal(actual[0], Sum(wide).to(at::kFloat))) << columns;
    EXPECT_TRUE(at::equal(actual[1], Mean(wide).to(at::kFloat))) << columns;
    EXPECT_TRUE(at::equal(actual[2], (Sum(wide) - 1e3 * columns).to(at::kFloat))) << columns;
    EXPECT_TRUE(at::equal(of_n, wide.sum().to(at::kFloat))) << columns;
  }
}

TEST(Reductions, BitsDoNotDependOnThreadsOrOtherRowsOrStrides) {
  at::manual_seed(5);
  const int before = at::get_num_threads();
  for (const Case& test : Cases()) {
    for (const auto& [rows, columns] :
         std::vector<std::pair<int64_t, int64_t>>{{997, 31}, {40, 300}, {30, 1700}}) {
      const Tensors leaves = Leaves(Inputs(test, rows, columns), at::kFloat);
      at::set_num_threads(1);
      const Tensors alone = Results(Fused(test.function), leaves);
      at::set_num_threads(4);
      const Tensors together = Results(Fused(test.function), leaves);
      at::set_num_threads(before);

      for (size_t i = 0; i < alone.size(); ++i)
        EXPECT_TRUE(at::equal(together[i], alone[i])) << test.name << ", " << columns << ", " << i;

      const at::NoGradGuard no_grad;
      Tensors parts, strided;
      for (const at::Tensor& x : leaves) {
        const bool has_rows = x.dim() == 2;
        parts.push_back(has_rows ? x.narrow(0, 7, 2) : x);
        strided.push_back(x.dim() == 0 ? x : at::stack({x, x}, -1).select(-1, 1));
      }
      const Tensors of_parts = Fused(test.function)(parts);
      const Tensors of_strided = Fused(test.function)(strided);
      for (size_t i = 0; i < of_parts.size(); ++i) {
        const bool has_rows = alone[i].size(0) == rows;
        EXPECT_TRUE(at::equal(of_parts[i], has_rows ? alone[i].narrow(0, 7, 2) : alone[i]))
            << test.name << ", " << columns << ", " << i;
        EXPECT_TRUE(at::equal(of_strided[i], alone[i]))
            << test.name << ", " << columns << ", " << i;
      }
    }
  }
}

TEST(Reductions, ShapesAreBroadcastAsByAten) {
  at::manual_seed(6);
  const PointwiseFunction function = [](const Tensors& in) {
    const at::Tensor sum = Sum(in[0]), mean = Mean(in[0] * in[1]);
    return Tensors{
        sum,          mean,         (in[0] * in[1]).amax(-1), in[2] * sum + in[0],
        in[1] - mean, in[2] * mean, in[0].sum(-1) * 2,        in[2].amin(-1, true) * Mean(in[1])};
  };
  const std::vector<std::vector<std::vector<int64_t>>> shapes = {
      {{4, 5}, {4, 5}, {4, 5}},
      {{4, 5}, {5}, {4, 1}},
      {{4, 1}, {1, 5}, {5}},
      {{1}, {1, 1}, {1}},
      {{3, 1, 5}, {2, 1}, {1, 1, 1, 5}},
      {{0, 5}, {5}, {0, 1}},
      {{7, 3}, {3}, {7, 1}},
      {{2, 3, 4, 5}, {3, 1, 5}, {2, 1, 4, 1}},
      {{1100}, {1}, {2, 1}},
      {{2, 3, 700}, {3, 700}, {2, 1, 700}},
      {{5, 1}, {5, 1}, {5, 1}},
      {{600}, {1}, {600, 1}},
      {{6, 1}, {1, 9}, {1}},
  };
  for (const auto& shape : shapes) {
    Tensors inputs;
    for (const auto& sizes : shape) inputs.push_back(at::randn(sizes, at::kDouble));
    const Tensors expected = Results(function, Leaves(inputs, at::kDouble));

    const Tensors actual = Results(Fused(function), Leaves(inputs, at::kDouble));

    for (size_t i = 0; i < expected.size(); ++i) {
      const std::string where = c10::str(inputs[0].sizes(), inputs[1].sizes(), inputs[2].sizes());
      EXPECT_EQ(actual[i].sizes(), expected[i].sizes()) << where << ", " << i;
      EXPECT_LE(RelativeError(actual[i], expected[i]), 1e-12) << where << ", " << i;
    }
  }
}

TEST(Reductions, OfNoElementsAreThoseOfAten) {
  const PointwiseFunction sums = [](const Tensors& in) {
    return Tensors{Sum(in[0]), Mean(in[0]), in[0] - Sum(in[0])};
  };
  for (const at::IntArrayRef shape :
       std::vector<std::vector<int64_t>>{{3, 0}, {0, 0}, {0}, {0, 3}}) {
    const Tensors leaves = Leaves({at::randn(shape)}, at::kFloat);

    const Tensors actual = Results(Fused(sums), leaves), expected = Results(sums, leaves);

    for (size_t i = 0; i < actual.size(); ++i) {
      EXPECT_EQ(actual[i].sizes(), expected[i].sizes()) << shape;
      EXPECT_TRUE(at::allclose(actual[i], expected[i], 0, 0, /*equal_nan=*/true))
          << shape << ", " << i;
    }
  }
  EXPECT_THAT(MessageOf([] {
                Fused([](const Tensors& in) { return Tensors{Amax(in[0])}; })({at::ones({3, 0})});
              }),
              HasSubstr("amax and amin of a last dimension of size 0"));
}

// A factor of an empty row may be NaN, as 1 / 0 of a mean is. ATen multiplies before it sums.
TEST(Reductions, GradientsOfNumbersOfEmptyRowsAreThoseOfAten) {
  at::manual_seed(5);
  for (const Case& test : Cases()) {
    const Tensors leaves = Leaves(Inputs(test, 3, 0), at::kDouble);
    Tensors expected;
    try {
      expected = Results(test.function, leaves);
    } catch (const c10::Error&) {  // amax of nothing
      continue;
    }

    const Tensors actual = Results(Fused(test.function), leaves);

    for (size_t i = 0; i < actual.size(); ++i)
      EXPECT_TRUE(at::allclose(actual[i], expected[i], 0, 0, /*equal_nan=*/true))
          << test.name << ", " << i << ": " << actual[i] << expected[i];
  }
}

TEST(Reductions, EqualExtremesShareTheGradient) {
  const at::Tensor x = at::tensor({2.0, 5.0, 5.0, 1.0, 5.0, 1.0}).view({1, 6});
  for (const PointwiseFunction& function : std::vector<PointwiseFunction>{
           [](const Tensors& in) { return Tensors{Amax(in[0]) * 3}; },
           [](const Tensors& in) { return Tensors{in[0].amin(-1)}; },
           [](const Tensors& in) { return Tensors{(in[0] - Amax(in[0])).exp()}; }}) {
    const Tensors actual = Results(Fused(function), Leaves({x}, at::kDouble));

    const Tensors expected = Results(function, Leaves({x}, at::kDouble));

    EXPECT_TRUE(at::allclose(actual[1], expected[1], 1e-14)) << actual[1] << expected[1];
  }
}

TEST(Reductions, SpecialNumbersAreThoseOfAten) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const PointwiseFunction function = [](const Tensors& in) {
    return Tensors{Sum(in[0]), Mean(in[0]), Amax(in[0]), in[0].amin(-1)};
  };
  const std::vector<std::vector<double>> rows = {{1, kInf, 2},          {1, -kInf, 2},
                                                 {kInf, 1, -kInf},      {1, std::nan(""), 2},
                                                 {-kInf, -kInf, -kInf}, {-0.0, 0.0, -0.0}};
  for (const auto& row : rows) {
    for (const int64_t times : {1, 7, 400}) {
      for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
        const at::Tensor x = at::tensor(row, dtype).repeat({times}).view({1, -1});

        const Tensors actual = Fused(function)({x}), expected = function({x});

        for (size_t i = 0; i < actual.size(); ++i)
          EXPECT_TRUE(at::allclose(actual[i], expected[i], 1e-6, 0, /*equal_nan=*/true))
              << x.narrow(1, 0, 3) << times << ", " << i << actual[i] << expected[i];
      }
    }
  }
}

TEST(Reductions, ExpandedGradientsAreRead) {
  at::manual_seed(7);
  const PointwiseFunction function = [](const Tensors& in) {
    return Tensors{Softmax(in[0]) * in[0]};
  };
  for (const int64_t columns : {5, 600}) {
    std::vector<at::Tensor> gradients;
    const at::Tensor x = at::randn({3, columns}, at::kDouble);
    for (const PointwiseFunction& f : {Fused(function), function}) {
      const at::Tensor leaf = Leaves({x}, at::kDouble)[0];
      gradients.push_back(torch::autograd::grad({f({leaf})[0].sum()}, {leaf})[0]);
      const at::Tensor row = Leaves({x.narrow(0, 0, 1)}, at::kDouble)[0];
      gradients.push_back(
          torch::autograd::grad({f({row.expand({3, columns})})[0].sum()}, {row})[0]);
    }
    EXPECT_LE(RelativeError(gradients[0], gradients[2]), 1e-12);
    EXPECT_LE(RelativeError(gradients[1], gradients[3]), 1e-12);
  }
}

TEST(Reductions, GradientsOfGradientsAreThoseOfAten) {
  at::manual_seed(8);
  for (const Case& test : Cases()) {
    const Tensors inputs = Inputs(test, 3, 4);
    std::vector<Tensors> results;
    for (const PointwiseFunction& function : {Fused(test.function), test.function}) {
      const Tensors leaves = Leaves(inputs, at::kDouble);
      Tensors cubes;
      for (const at::Tensor& result : function(leaves)) cubes.push_back(result.pow(3));
      const Tensors once = torch::autograd::grad({Mixed(cubes)}, leaves, {}, /*retain_graph=*/true,
                                                 /*create_graph=*/true);
      results.push_back(torch::autograd::grad({Mixed(once)}, leaves));
    }
    for (size_t i = 0; i < inputs.size(); ++i)
      EXPECT_LE(RelativeError(results[0][i], results[1][i]), 1e-10) << test.name << ", " << i;
  }
}

TEST(Reductions, OnlySomeResultsOrInputsMayHaveGradients) {
  at::manual_seed(9);
  const PointwiseFunction function = [](const Tensors& in) {
    const at::Tensor sum = Sum(in[0] * in[1]);
    return Tensors{sum, in[0] * sum, in[1].amax(-1)};
  };
  for (const size_t result : {0, 1, 2}) {
    for (const size_t input : {0, 1}) {
      if (result == 2 && input == 0) continue;  // no gradient
      std::vector<at::Tensor> gradients;
      const Tensors inputs = {at::randn({3, 7}, at::kDouble), at::randn({3, 7}, at::kDouble)};
      for (const PointwiseFunction& f : {Fused(function), function}) {
        Tensors leaves = inputs;
        leaves[input] = leaves[input].clone().requires_grad_(true);
        const at::Tensor y = f(leaves)[result];
        gradients.push_back(torch::autograd::grad({Mixed({y})}, {leaves[input]})[0]);
      }
      EXPECT_LE(RelativeError(gradients[0], gradients[1]), 1e-12) << result << ", " << input;
    }
  }
}

TEST(Reductions, MetaTensorsHaveTheShapesAndNoMemory) {
  const at::Tensor x =
      at::empty({3, 4}, at::device(at::kMeta).dtype(at::kBFloat16)).requires_grad_(true);
  const PointwiseFunction function = [](const Tensors& in) {
    return Tensors{Softmax(in[0]), Sum(in[0]), in[0].amax(-1)};
  };

  const Tensors results = Fused(function)({x});
  const at::Tensor gradient = torch::autograd::grad({results[0].sum() + results[2].sum()}, {x})[0];

  EXPECT_TRUE(results[0].is_meta());
  EXPECT_EQ(results[0].sizes(), at::IntArrayRef({3, 4}));
  EXPECT_EQ(results[1].sizes(), at::IntArrayRef({3, 1}));
  EXPECT_EQ(results[2].sizes(), at::IntArrayRef({3}));
  EXPECT_EQ(gradient.sizes(), at::IntArrayRef({3, 4}));
  EXPECT_EQ(gradient.scalar_type(), at::kBFloat16);
}

}  // namespace
}  // namespace lockstep::kernels
