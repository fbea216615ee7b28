// Fused functions as a whole: shapes, strides, dtypes, gradients, threads. BUILD runs these tests
// on each instruction set.

#include "kernels/pointwise/fuse.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "ATen/autocast_mode.h"
#include "ATen/core/grad_mode.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/pointwise/pointwise.h"
#include "kernels/pointwise/program.h"
#include "tests/support/message_of.h"
#include "tests/support/relative_error.h"
#include "tests/support/results.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/csrc/autograd/function.h"

namespace lockstep::kernels {
namespace {

using ::testing::HasSubstr;
using tests::Leaves;
using tests::MessageOf;
using tests::Mixed;
using tests::RelativeError;
using tests::Results;
using tests::Tensors;

Tensors Swiglu(const Tensors& in) { return {at::silu(in[0]) * in[1]}; }

// Has results of several shapes and dtypes.
Tensors Several(const Tensors& in) {
  return {at::silu(in[0]) * in[1] + in[2], in[0].tanh(), in[1] / (1 + in[2].square()), in[0] > 0};
}

Tensors Call(FusedFunction& fused, const Tensors& in) {
  return fused(std::vector<PointwiseArgument>(in.begin(), in.end()));
}

Tensors Call(const PointwiseFunction& function, const Tensors& in) {
  FusedFunction fused(function);
  return Call(fused, in);
}

PointwiseFunction Fused(const PointwiseFunction& function) {
  return [function](const Tensors& in) { return Call(function, in); };
}

at::Tensor Random(at::IntArrayRef shape) { return at::randn(shape, at::kDouble); }

TEST(Fuse, HeaderExample) {
  const at::Tensor gate = at::randn({3, 5}), up = at::randn({3, 5});

  FusedFunction swiglu([](const std::vector<at::Tensor>& in) {
    return std::vector<at::Tensor>{at::silu(in[0]) * in[1]};
  });
  const at::Tensor y = swiglu({gate, up})[0];

  EXPECT_TRUE(at::allclose(y, at::silu(gate) * up));
}

TEST(Fuse, ShapesAreBroadcastAsByAten) {
  at::manual_seed(1);
  const std::vector<std::vector<std::vector<int64_t>>> shapes = {
      {{4, 5}, {4, 5}, {4, 5}}, {{4, 5}, {5}, {4, 1}},
      {{4, 1}, {1, 5}, {}},     {{}, {}, {}},
      {{1}, {1, 1}, {}},        {{3, 1, 5}, {2, 1}, {1, 1, 1, 5}},
      {{0, 5}, {5}, {0, 1}},    {{2, 0}, {2, 1}, {1, 0}},
      {{7, 3}, {3}, {7, 1}},    {{2, 3, 4, 5}, {3, 1, 5}, {2, 1, 4, 1}},
      {{1100}, {1}, {2, 1}},    {{2, 3, 700}, {3, 700}, {2, 1, 700}},
  };
  for (const auto& shape : shapes) {
    for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16}) {
      const Tensors leaves = Leaves({Random(shape[0]), Random(shape[1]), Random(shape[2])}, dtype);
      const Tensors expected = Results(Several, Leaves(leaves, at::kDouble));

      const Tensors composed = Results(Several, leaves);

      const Tensors actual = Results(Fused(Several), leaves);

      ASSERT_EQ(actual.size(), expected.size());
      for (size_t i = 0; i < actual.size(); ++i) {
        EXPECT_EQ(actual[i].sizes(), expected[i].sizes());
        EXPECT_TRUE(actual[i].is_contiguous());
        EXPECT_EQ(actual[i].scalar_type(), i == 3 ? at::kBool : dtype);
        const double atens = RelativeError(composed[i], expected[i]);
        EXPECT_LE(RelativeError(actual[i], expected[i]),
                  dtype == at::kDouble ? 1e-12 : std::max(1e-2, 1.2 * atens))
            << c10::str(leaves[0].sizes(), leaves[1].sizes(), leaves[2].sizes()) << ", " << i;
      }
    }
  }
}

TEST(Fuse, StridesDoNotChangeTheResult) {
  at::manual_seed(2);
  const std::vector<std::pair<const char*, std::function<at::Tensor(const at::Tensor&)>>> layouts =
      {{"rows apart",
        [](const at::Tensor& x) {
          return at::cat({x, x}, -1).narrow(-1, 0, x.size(-1));
        }},
       {"every second row",
        [](const at::Tensor& x) {
          return at::stack({x, x}, 1).select(1, 0);
        }},
       {"every second number",
        [](const at::Tensor& x) {
          return at::stack({x, x}, -1).select(-1, 0);
        }},
       {"transposed",
        [](const at::Tensor& x) { return x.transpose(0, -1).contiguous().transpose(0, -1); }},
       {"from the second number", [](const at::Tensor& x) {
          return at::cat({x.flatten().narrow(0, 0, 1), x.flatten()})
              .narrow(0, 1, x.numel())
              .view(x.sizes());
        }}};
  for (const auto& [name, layout] : layouts) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
      const Tensors leaves = Leaves({Random({9, 3, 67}), Random({9, 3, 67})}, dtype);
      const Tensors expected = Results(Fused(Swiglu), leaves);

      const Tensors actual = Results(
          [&layout = layout](const Tensors& in) {
            // The gradients of the results have these strides too.
            return Tensors{layout(Call(Swiglu, {layout(in[0]), layout(in[1])})[0])};
          },
          leaves);

      for (size_t i = 0; i < expected.size(); ++i)
        EXPECT_TRUE(at::equal(actual[i], expected[i])) << name << ", " << dtype << ", " << i;
    }
  }
}

TEST(Fuse, DtypesArePromotedAsByAten) {
  at::manual_seed(3);
  const std::vector<at::ScalarType> dtypes = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf,
                                              at::kBool};
  const std::vector<PointwiseFunction> functions = {
      [](const Tensors& in) {
        return Tensors{in[0] + in[1], in[0] * 2.5, in[1] > 0.5};
      },
      [](const Tensors& in) { return Tensors{at::where(in[0] > 0, in[0], in[1])}; },
      [](const Tensors& in) {
        return Tensors{(in[0] * in[1]).to(at::kHalf), in[0].to(at::kBool)};
      },
  };
  for (const at::ScalarType first : dtypes) {
    for (const at::ScalarType second : dtypes) {
      for (const bool second_has_dims : {true, false}) {
        const at::Tensor x = Random({17}).to(first);
        const at::Tensor y = Random({second_has_dims ? 17 : 1}).to(second).squeeze();
        for (size_t k = 0; k < functions.size(); ++k) {
          const Tensors expected = functions[k]({x, y});

          const Tensors actual = Call(functions[k], {x, y});

          for (size_t i = 0; i < expected.size(); ++i) {
            EXPECT_EQ(actual[i].scalar_type(), expected[i].scalar_type())
                << first << ", " << second << ", function " << k << ", result " << i;
            const double tolerance =
                expected[i].scalar_type() == at::kDouble ? 1e-6 : 1e-2;  // 2.5 times a float32
            EXPECT_LE(RelativeError(actual[i], expected[i].to(at::kDouble)), tolerance)
                << first << ", " << second << ", function " << k << ", result " << i;
          }
        }
      }
    }
  }
}

TEST(Fuse, Float64IsComparedInFloat64) {
  const at::Tensor x = at::full({3}, 1.0, at::kDouble), y = x + 1e-12;

  const at::Tensor actual =
      Call([](const Tensors& in) { return Tensors{in[0] < in[1]}; }, {x, y})[0];

  EXPECT_TRUE(actual.all().item<bool>());
}

TEST(Fuse, BooleansAddUpToBooleans) {
  const at::Tensor a = at::tensor({1, 1, 0, 0}).to(at::kBool),
                   b = at::tensor({1, 0, 1, 0}).to(at::kBool);
  const at::Tensor x = at::tensor({1.0, 2.0, 3.0, 4.0});
  const PointwiseFunction function = [](const Tensors& in) {
    return Tensors{in[0] + in[1], in[0] * in[1], (in[0] + in[1]) * in[2]};
  };

  const Tensors actual = Call(function, {a, b, x}), expected = function({a, b, x});

  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(actual[i], expected[i])) << i;
}

TEST(Fuse, NumbersAreArgumentsAndPromoteAsNumbers) {
  const at::Tensor x = at::randn({5}).to(at::kBFloat16).requires_grad_(true);
  FusedFunction fused([](const Tensors& in) { return Tensors{in[0] * (2 * in[1] + 1) - in[2]}; });

  for (const double number : {0.5, -3.0}) {
    const at::Tensor y = fused({x, number, 0.25})[0];
    const at::Tensor gradient = torch::autograd::grad({y.sum()}, {x})[0];

    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    const at::Tensor truth = x.detach().to(at::kDouble) * (2 * number + 1) - 0.25;
    EXPECT_LE(RelativeError(y, truth), 4e-3);
    EXPECT_TRUE(at::equal(gradient, at::full_like(x, 2 * number + 1)));
  }
  EXPECT_EQ(fused.num_recordings(), 1);
}

TEST(Fuse, LowPrecisionIsRoundedOnce) {
  const at::Tensor x = at::randn({1000}), y = at::randn({1000});
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const at::Tensor a = x.to(dtype), b = y.to(dtype);

    const at::Tensor actual = Call(Swiglu, {a, b})[0];

    EXPECT_TRUE(at::equal(actual, Call(Swiglu, {a.to(at::kFloat), b.to(at::kFloat)})[0].to(dtype)));
  }
}

TEST(Fuse, BitsDoNotDependOnTheNumberOfThreadsOrThePlace) {
  at::manual_seed(4);
  const Tensors leaves = Leaves({Random({70001}), Random({70001}), Random({70001})}, at::kFloat);
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const Tensors alone = Results(Fused(Several), leaves);
  at::set_num_threads(4);
  const Tensors together = Results(Fused(Several), leaves);
  at::set_num_threads(before);

  for (size_t i = 0; i < alone.size(); ++i) EXPECT_TRUE(at::equal(together[i], alone[i])) << i;
  const at::NoGradGuard no_grad;
  for (const int64_t start : {1, 3, 511, 69990}) {
    Tensors parts;
    for (const at::Tensor& x : leaves) parts.push_back(x.narrow(0, start, 11));
    EXPECT_TRUE(at::equal(Call(Several, parts)[0], alone[0].narrow(0, start, 11))) << start;
  }
}

TEST(Fuse, ThreadsMayCallFunctionsOfTheirOwnAtOnce) {
  std::vector<std::thread> threads;
  std::vector<int64_t> wrong(4, -1);
  for (size_t i = 0; i < wrong.size(); ++i) {
    threads.emplace_back([i, &wrong] {
      wrong[i] = 0;
      for (int turn = 0; turn < 20; ++turn) {
        const double factor = static_cast<double>(turn % 5) + 2;
        const Tensors leaves = Leaves({Random({50})}, at::kDouble);
        const Tensors results =
            Results(Fused([&](const Tensors& in) { return Tensors{in[0] * factor}; }), leaves);
        if (!at::equal(results[0], leaves[0] * factor)) ++wrong[i];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();

  EXPECT_EQ(wrong, std::vector<int64_t>(4, 0));
}

TEST(Fuse, OnlyWhatNeedsAGradientGetsOne) {
  const at::Tensor x = at::randn({3}).requires_grad_(true), y = at::randn({3});

  Call(Swiglu, {x, y})[0].sum().backward();

  EXPECT_TRUE(x.grad().defined());
  EXPECT_FALSE(y.grad().defined());
  EXPECT_FALSE(Call(Swiglu, {y, y})[0].requires_grad());
  EXPECT_FALSE(Call(Several, {x, y, y})[3].requires_grad()) << "booleans";
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(Call(Swiglu, {x, y})[0].requires_grad());
}

TEST(Fuse, AConditionHasNoGradient) {
  const at::Tensor x = at::randn({3}).requires_grad_(true), y = at::randn({3}).requires_grad_(true);

  Call([](const Tensors& in) { return Tensors{at::where(in[0] > 0, in[1], -in[1])}; }, {x, y})[0]
      .sum()
      .backward();

  EXPECT_FALSE(x.grad().defined());
  EXPECT_TRUE(y.grad().defined());
}

TEST(Fuse, AResultThatIsNotUsedHasNoGradient) {
  at::manual_seed(5);
  const Tensors inputs = {Random({4}), Random({4}), Random({4})};
  for (const size_t used : {0, 1, 2}) {
    std::vector<Tensors> gradients;
    for (const PointwiseFunction& function : {Fused(Several), PointwiseFunction(Several)}) {
      const Tensors leaves = Leaves(inputs, at::kDouble);
      gradients.push_back(torch::autograd::grad({Mixed({function(leaves)[used]})}, leaves, {},
                                                /*retain_graph=*/false, /*create_graph=*/false,
                                                /*allow_unused=*/true));
    }
    for (size_t i = 0; i < inputs.size(); ++i) {
      ASSERT_EQ(gradients[0][i].defined(), gradients[1][i].defined()) << used << ", " << i;
      if (!gradients[0][i].defined()) continue;
      EXPECT_LE(RelativeError(gradients[0][i], gradients[1][i]), 1e-12) << used << ", " << i;
    }
  }
}

TEST(Fuse, OnlyInputsThatBackwardReadsAreSaved) {
  const at::Tensor x = at::randn({3}).requires_grad_(true), y = at::randn({3}).requires_grad_(true);
  const at::Tensor read = x * 1, ignored = y * 1;
  const at::Tensor z =
      Call([](const Tensors& in) { return Tensors{in[0].exp() + 2 * in[1]}; }, {read, ignored})[0];

  ignored.detach().mul_(2);

  EXPECT_EQ(MessageOf([&] { z.sum().backward({}, /*retain_graph=*/true); }), "no error");
  read.detach().mul_(2);
  EXPECT_THAT(MessageOf([&] { z.sum().backward(); }),
              HasSubstr("modified by an inplace operation"));
}

TEST(Fuse, ASecondBackwardIsRefusedAsByAten) {
  const at::Tensor x = at::randn({3}).requires_grad_(true);
  const at::Tensor y = Call(Swiglu, {x, x})[0].sum();
  y.backward();

  EXPECT_THAT(MessageOf([&] { y.backward(); }),
              HasSubstr("backward through the graph a second time"));
}

TEST(Fuse, MetaTensorsHaveTheShapesAndNoMemory) {
  const auto meta = [](at::IntArrayRef shape) {
    return at::empty(shape, at::device(at::kMeta).dtype(at::kBFloat16)).requires_grad_(true);
  };
  const Tensors inputs = {meta({3, 1}), meta({4}), meta({})};

  const Tensors results = Call(Several, inputs);
  const Tensors gradients = torch::autograd::grad({results[0].sum()}, inputs);

  EXPECT_TRUE(results[0].is_meta());
  EXPECT_EQ(results[0].sizes(), at::IntArrayRef({3, 4}));
  EXPECT_EQ(results[1].sizes(), at::IntArrayRef({3, 1}));
  EXPECT_EQ(results[3].scalar_type(), at::kBool);
  for (size_t i = 0; i < inputs.size(); ++i) {
    EXPECT_EQ(gradients[i].sizes(), inputs[i].sizes());
    EXPECT_EQ(gradients[i].scalar_type(), at::kBFloat16);
  }
}

TEST(Fuse, AutocastDoesNotChangeIt) {
  const at::Tensor x = at::randn({5});
  const at::Tensor expected = Call(Swiglu, {x, x})[0];

  at::autocast::set_autocast_enabled(at::kCPU, true);
  const at::Tensor actual = Call(Swiglu, {x, x})[0];
  at::autocast::set_autocast_enabled(at::kCPU, false);

  EXPECT_TRUE(at::equal(actual, expected));
}

TEST(Fuse, WhatHasNoKernelRunsUnfused) {
  int calls = 0;
  FusedFunction fused([&](const Tensors& in) {
    ++calls;
    return Tensors{in[0] * in[1]};
  });
  const at::Tensor sparse = at::tensor({0.0, 2.0, 0.0}).to_sparse();

  const at::Tensor y = fused({sparse, 3.0})[0];

  EXPECT_TRUE(y.is_sparse());
  EXPECT_TRUE(at::equal(y.to_dense(), at::tensor({0.0, 6.0, 0.0})));
  EXPECT_EQ(calls, 3) << "two for the recording";
}

TEST(Fuse, ManyStepsAndResultsAtOnce) {
  const PointwiseFunction wide = [](const Tensors& in) {
    Tensors powers = {in[0]};  // all are alive until the end
    for (int i = 0; i < 40; ++i) powers.push_back((powers.back() * 0.9).sin());
    at::Tensor sum = powers[0];
    for (size_t i = 1; i < powers.size(); ++i) sum = sum * 0.5 + powers[powers.size() - i];
    return Tensors{sum, powers[20], powers[20], in[0], sum};
  };
  const Tensors leaves = Leaves({Random({1300})}, at::kDouble);

  const Tensors actual = Results(Fused(wide), leaves), expected = Results(wide, leaves);

  for (size_t i = 0; i < actual.size(); ++i)
    EXPECT_LE(RelativeError(actual[i], expected[i]), 1e-12) << i;
}

TEST(Fuse, FunctionsBeyondTheLimitsAreRefused) {
  const auto sum_of = [](const Tensors& in) {
    at::Tensor sum = in[0];
    for (size_t i = 1; i < in.size(); ++i) sum = sum + in[i];
    return Tensors{sum};
  };
  const Tensors most(static_cast<size_t>(pointwise::kMostInputs), at::ones({2}));
  EXPECT_TRUE(at::equal(Call(sum_of, most)[0], at::full({2}, pointwise::kMostInputs)));

  Tensors more = most;
  more.push_back(at::ones({2}));

  EXPECT_THAT(MessageOf([&] { Call(sum_of, more); }),
              HasSubstr("at most 48 arguments may be tensors, got 49"));
  const auto many = [](const Tensors& in) { return Tensors(17, in[0]); };
  EXPECT_THAT(MessageOf([&] { Call(many, {most[0]}); }), HasSubstr("at most 16 results, got 17"));
  const auto held = [](const Tensors& in) {
    Tensors all = {in[0]};
    for (int i = 0; i < 300; ++i) all.push_back(all.back().sin());
    at::Tensor sum = all[0];
    for (size_t i = all.size(); i-- > 0;) sum = sum + all[i];
    return Tensors{sum};
  };
  EXPECT_THAT(MessageOf([&] { Call(held, {most[0]}); }),
              HasSubstr("it may have 256 slots, and needs 302 (tensors: 1, numbers and constants: "
                        "0, results: 1, other values: 300); make it two functions"));
  const auto product = [](const Tensors& in) {
    at::Tensor all = at::gelu(in[0]);
    for (size_t i = 1; i < in.size(); ++i) all = all * at::gelu(in[i]);
    return Tensors{all};
  };
  EXPECT_NO_THROW(Call(product, most));
  const Tensors leaves(most.size(), at::ones({2}).requires_grad_(true));
  const std::string message = MessageOf([&] { Call(product, leaves); });
  EXPECT_THAT(message, HasSubstr("256 slots, and needs 339 (tensors: 49, "));
  EXPECT_THAT(message, HasSubstr("results: 48, "));
  EXPECT_THAT(message, HasSubstr("make it two functions (in its gradient)"));
}

TEST(Fuse, TheOperatorRefusesWhatItsProgramDoesNotTake) {
  const at::Tensor x = at::ones({2});
  pointwise::Builder builder;
  std::vector<int32_t> inputs;
  const int64_t program = pointwise::Register(
      builder.Finish({builder.Input(0) * builder.Number(1)}, {at::kFloat}, false, &inputs));

  EXPECT_TRUE(at::equal(pointwise::Run(program, {x}, {0.0, 3.0})[0], at::full({2}, 3.0)));
  EXPECT_THAT(
      MessageOf([&] { pointwise::Run(program, {x}, {0.0}); }),
      HasSubstr("takes 1 tensors and 2 numbers, and has 1 results; got 1 tensors, 1 numbers"));
  EXPECT_THAT(MessageOf([&] {
                pointwise::Run(program, {x, x}, {0.0, 3.0});
              }),
              HasSubstr("got 2 tensors"));
  EXPECT_THAT(MessageOf([&] {
                pointwise::Run(program, {x.to(at::kLong)}, {0.0, 3.0});
              }),
              HasSubstr("pointwise: tensors must be float16"));
  EXPECT_THAT(MessageOf([&] { pointwise::Run(1 << 30, {x}, {}); }),
              HasSubstr("there is no program"));
}

TEST(Fuse, ShapesThatDoNotFitAreRefused) {
  EXPECT_THAT(MessageOf([] {
                Call(Swiglu, {at::ones({2}), at::ones({3})});
              }),
              HasSubstr("must match the size"));
}

}  // namespace
}  // namespace lockstep::kernels
