// A linear layer of few rows against float64 and at::linear. BUILD runs these tests on each
// instruction set.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "ATen/autocast_mode.h"
#include "ATen/core/grad_mode.h"
#include "ATen/record_function.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/kernels.h"
#include "tests/support/message_of.h"
#include "tests/support/relative_error.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/csrc/autograd/function.h"

namespace lockstep::kernels {
namespace {

using ::testing::HasSubstr;
using tests::MessageOf;
using tests::RelativeError;

constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf};

at::Tensor Random(at::IntArrayRef shape, at::ScalarType dtype) {
  return at::randn(shape, at::kDouble).to(dtype);
}

at::Tensor Truth(const at::Tensor& x, const at::Tensor& weight,
                 const std::optional<at::Tensor>& bias) {
  return at::linear(x.to(at::kDouble), weight.to(at::kDouble),
                    bias.has_value() ? std::optional(bias->to(at::kDouble)) : std::nullopt);
}

// The number of times that the kernel ran.
thread_local int64_t num_runs = 0;

// Returns whether `call` runs the kernel.
bool RunsKernel(const std::function<void()>& call) {
  num_runs = 0;
  const at::CallbackHandle handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& function)
                                     -> std::unique_ptr<at::ObserverContext> {
        num_runs += std::string(function.name()) == "lockstep::linear_of_few_rows" ? 1 : 0;
        return nullptr;
      }).scopes({at::RecordScope::FUNCTION}));
  call();
  at::removeCallback(handle);
  return num_runs > 0;
}

TEST(Linear, AgreesWithFloat64AtEverySizeAndDtype) {
  at::manual_seed(1);
  for (const at::ScalarType dtype : kDtypes) {
    const double tolerance = dtype == at::kDouble     ? 1e-14
                             : dtype == at::kFloat    ? 3e-6
                             : dtype == at::kBFloat16 ? 4e-3
                                                      : 5e-4;
    for (const int64_t outputs : {0, 1, 3, 5, 7, 8, 12, 25, 64}) {
      for (const int64_t size : {0, 1, 33, 64, 127, 256, 257, 1030, 2049}) {
        const at::Tensor xs = Random({9, size}, dtype), weight = Random({outputs, size}, dtype);
        for (const std::optional<at::Tensor>& bias :
             {std::optional<at::Tensor>(), std::optional(Random({outputs}, dtype))}) {
          const at::Tensor truth = Truth(xs, weight, bias);
          for (int64_t rows = 0; rows <= 9; ++rows) {
            const at::Tensor y = Linear(xs.narrow(0, 0, rows), weight, bias);

            EXPECT_EQ(y.scalar_type(), dtype);
            EXPECT_EQ(y.sizes(), at::IntArrayRef({rows, outputs}));
            // The terms of a result may cancel: one near 0 has a large relative error.
            const at::Tensor expected = truth.narrow(0, 0, rows);
            EXPECT_LE((y.to(at::kDouble) - expected).norm().item<double>(),
                      tolerance * (1 + expected.norm().item<double>()))
                << rows << " x " << size << " x " << outputs << ", " << dtype;
          }
        }
      }
    }
  }
}

TEST(Linear, ErrorsAreNoLargerThanThoseOfAten) {
  at::manual_seed(2);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t rows : {1, 2, 4, 8}) {
      for (const int64_t size : {514, 1030, 4099}) {
        const at::Tensor x = Random({rows, size}, dtype), weight = Random({300, size}, dtype);
        const at::Tensor bias = Random({300}, dtype), truth = Truth(x, weight, bias);

        const double ours = RelativeError(Linear(x, weight, bias), truth);
        const double atens = RelativeError(at::linear(x, weight, bias), truth);

        EXPECT_LE(ours, 1.05 * atens) << rows << " x " << size << ", " << dtype;
      }
    }
  }
}

TEST(Linear, FewRowsThatNeedNoGradientRunTheKernel) {
  const at::Tensor x = at::ones({2, 4, 256}), weight = at::ones({3, 256}), bias = at::ones({3});
  const at::Tensor leaf = at::ones({3, 256}).requires_grad_(true);
  struct Case {
    const char* name;
    std::function<at::Tensor()> call;
    bool expected;
  };
  const Case cases[] = {
      {"eight rows", [&] { return Linear(x, weight, bias); }, true},
      {"one row without a dimension", [&] { return Linear(x[0][0], weight); }, true},
      {"a weight that needs a gradient, in no_grad",
       [&] {
         const at::NoGradGuard no_grad;
         return Linear(x, leaf, bias);
       },
       true},
      {"a weight that needs a gradient", [&] { return Linear(x, leaf, bias); }, false},
      {"nine rows",
       [&] {
         return Linear(at::ones({9, 256}), weight);
       },
       false},
      {"eight short rows",
       [&] {
         return Linear(at::ones({8, 64}), at::ones({3, 64}));
       },
       false},
      {"no row",
       [&] {
         return Linear(at::ones({0, 256}), weight);
       },
       false},
      {"a transposed weight",
       [&] {
         return Linear(x, at::ones({256, 3}).t());
       },
       false},
      {"a weight that is a vector", [&] { return Linear(x, weight[0]); }, false},
      {"whole numbers", [&] { return Linear(x.to(at::kInt), weight.to(at::kInt)); }, false},
      {"meta tensors", [&] { return Linear(x.to(at::kMeta), weight.to(at::kMeta)); }, false},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(RunsKernel([&] { c.call(); }), c.expected) << c.name;
  }
}

// The bits of `needed` say whether x, weight and bias need a gradient.
TEST(Linear, GradientsHaveTheBitsOfAtens) {
  at::manual_seed(3);
  for (const at::ScalarType dtype : kDtypes)
    for (const std::vector<int64_t>& shape :
         {std::vector<int64_t>{4, 256}, {2, 3, 5}, {2, 1, 3, 33}, {0, 5}, {1, 1}, {256}})
      for (const bool has_bias : {false, true})
        for (int needed = 1; needed < (has_bias ? 8 : 4); ++needed) {
          const at::Tensor x = Random(shape, dtype).requires_grad_((needed & 1) != 0);
          const at::Tensor weight =
              Random({7, shape.back()}, dtype).requires_grad_((needed & 2) != 0);
          std::optional<at::Tensor> bias;
          if (has_bias) bias = Random({7}, dtype).requires_grad_((needed & 4) != 0);
          std::vector<at::Tensor> inputs;
          for (const at::Tensor& input : {x, weight, bias.value_or(at::Tensor())})
            if (input.defined() && input.requires_grad()) inputs.push_back(input);

          const at::Tensor ours = Linear(x, weight, bias), atens = at::linear(x, weight, bias);

          EXPECT_TRUE(at::equal(ours, atens)) << dtype << shape;
          const auto expected = torch::autograd::grad({atens.square().sum()}, inputs);
          const auto actual = torch::autograd::grad({ours.square().sum()}, inputs);
          for (size_t i = 0; i < expected.size(); ++i) {
            EXPECT_TRUE(at::equal(actual[i], expected[i])) << dtype << shape << needed << ", " << i;
            EXPECT_EQ(actual[i].strides(), expected[i].strides()) << shape << needed << ", " << i;
          }
        }
}

TEST(Linear, GradientsOfOtherStridesHaveTheBitsAndTheStridesOfAtens) {
  at::manual_seed(7);
  const at::Tensor x = Random({12, 33}, at::kFloat), weight = Random({7, 33}, at::kFloat);
  const auto columns = [](const at::Tensor& t) { return t.t().contiguous().t(); };
  const auto apart = [](const at::Tensor& t) { return at::cat({t, t}, -1).narrow(-1, 0, 33); };
  const std::pair<at::Tensor, at::Tensor> cases[] = {{columns(x), weight},
                                                     {x, columns(weight)},
                                                     {columns(x), columns(weight)},
                                                     {apart(x), apart(weight)},
                                                     {x[0].expand({12, 33}), weight}};
  for (const auto& [a, b] : cases) {
    ASSERT_FALSE(a.is_contiguous() && b.is_contiguous());
    const at::Tensor own_x = a.detach().requires_grad_(true);
    const at::Tensor own_weight = b.detach().requires_grad_(true);
    const std::vector<at::Tensor> inputs = {own_x, own_weight};
    const auto gradients = [&](const at::Tensor& y) {
      return torch::autograd::grad({y.square().sum()}, inputs);
    };

    const auto actual = gradients(Linear(own_x, own_weight));
    const auto expected = gradients(at::linear(own_x, own_weight));

    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(at::equal(actual[i], expected[i])) << a.strides() << b.strides() << i;
      EXPECT_EQ(actual[i].strides(), expected[i].strides()) << a.strides() << b.strides() << i;
    }
  }
}

TEST(Linear, ASecondBackwardIsAnError) {
  const at::Tensor x = at::ones({2, 4}).requires_grad_(true);
  const at::Tensor y = Linear(x, at::ones({7, 4}));
  y.sum().backward();

  EXPECT_THAT(MessageOf([&] { y.sum().backward(); }),
              HasSubstr("Trying to backward through the graph a second time"));
}

TEST(Linear, GradientsOfGradientsAreThoseOfAten) {
  at::manual_seed(4);
  const at::Tensor x = Random({3, 5}, at::kDouble).requires_grad_(true);
  const at::Tensor weight = Random({7, 5}, at::kDouble).requires_grad_(true);
  const auto second = [&](const at::Tensor& y) {
    const auto first = torch::autograd::grad({y.pow(3).sum()}, {x, weight}, {},
                                             /*retain_graph=*/true, /*create_graph=*/true);
    return torch::autograd::grad({first[0].square().sum() + first[1].square().sum()}, {x, weight});
  };

  const auto actual = second(Linear(x, weight)), expected = second(at::linear(x, weight));

  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_LE(RelativeError(actual[i], expected[i]), 1e-14) << i;
}

TEST(Linear, AGradientCostsOneNode) {
  const at::Tensor x = at::ones({2, 3, 4}), weight = at::ones({7, 4}).requires_grad_(true);

  const at::Tensor y = Linear(x, weight);

  EXPECT_EQ(y.grad_fn()->name(), "LinearBackward");
  EXPECT_EQ(y.grad_fn()->next_edges()[1].function->name(), "torch::autograd::AccumulateGrad");
}

TEST(Linear, AWeightThatWasWrittenAfterForwardIsAnErrorOfBackward) {
  const at::Tensor x = at::ones({2, 4}).requires_grad_(true), weight = at::ones({7, 4});
  const at::Tensor y = Linear(x, weight);

  weight.add_(1);

  EXPECT_THAT(MessageOf([&] { y.sum().backward(); }),
              HasSubstr("modified by an inplace operation"));
}

TEST(Linear, StridesDoNotChangeTheResult) {
  at::manual_seed(4);
  for (const at::ScalarType dtype : kDtypes) {
    const at::Tensor x = Random({4, 256}, dtype), weight = Random({37, 256}, dtype);
    const at::Tensor bias = Random({37}, dtype), expected = Linear(x, weight, bias);
    const auto apart = [](const at::Tensor& t) {
      return at::cat({t, t}, -1).narrow(-1, 0, t.size(-1));
    };
    const auto twice = [](const at::Tensor& t) { return at::stack({t, t}, -1).select(-1, 0); };
    for (const at::Tensor& laid_out : {apart(x), twice(x), x.t().contiguous().t()}) {
      ASSERT_FALSE(laid_out.is_contiguous());
      EXPECT_TRUE(RunsKernel([&] {
        EXPECT_TRUE(at::equal(Linear(laid_out, apart(weight), twice(bias)), expected)) << dtype;
      }));
    }
    EXPECT_TRUE(at::equal(Linear(x.view({2, 2, 256}), weight, bias), expected.view({2, 2, 37})));
  }
}

TEST(Linear, ARowHasTheSameBitsNextToAnyOtherRowsAndOnAnyNumberOfThreads) {
  at::manual_seed(5);
  const int before = at::get_num_threads();
  for (const at::ScalarType dtype : kDtypes) {
    const at::Tensor x = Random({8, 515}, dtype), weight = Random({1501, 515}, dtype);
    at::set_num_threads(1);
    const at::Tensor expected = Linear(x, weight);
    for (const int threads : {1, 2, 3, 4}) {
      at::set_num_threads(threads);
      for (int64_t rows = 1; rows <= 8; ++rows) {
        for (int64_t first = 0; first + rows <= 8; ++first) {
          EXPECT_TRUE(
              at::equal(Linear(x.narrow(0, first, rows), weight), expected.narrow(0, first, rows)))
              << dtype << ", " << threads << " threads, rows " << first << " to " << first + rows;
        }
      }
    }
  }
  at::set_num_threads(before);
}

TEST(Linear, AutocastChoosesTheDtype) {
  const at::Tensor x = at::ones({2, 256}), weight = at::ones({3, 256});
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  const at::Tensor y = Linear(x, weight);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();

  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
}

TEST(Linear, ANegatedViewIsRead) {
  at::manual_seed(6);
  const at::Tensor numbers = Random({2, 256}, at::kFloat), weight = Random({3, 256}, at::kFloat);
  const at::Tensor negated = at::_neg_view(numbers);
  ASSERT_TRUE(negated.is_neg());

  EXPECT_TRUE(at::equal(Linear(negated, weight), Linear(-numbers, weight)));
}

TEST(Linear, BadInputHasTheMessageOfAten) {
  EXPECT_THAT(MessageOf([] {
                Linear(at::ones({2, 256}), at::ones({3, 255}));
              }),
              HasSubstr("mat1 and mat2 shapes cannot be multiplied (2x256 and 255x3)"));
  EXPECT_THAT(MessageOf([] {
                Linear(at::ones({2, 256}), at::ones({3, 256}, at::kDouble));
              }),
              HasSubstr("to have the same dtype"));
}

}  // namespace
}  // namespace lockstep::kernels
