// AdamW against its formula in float64 and against ATen's fused kernel. BUILD runs these tests on
// each instruction set.

#include "kernels/adamw.h"

#include <cmath>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/message_of.h"
#include "tests/support/relative_error.h"

namespace lockstep::kernels {
namespace {

using ::testing::HasSubstr;
using tests::MessageOf;
using tests::RelativeError;
using Tensors = std::vector<at::Tensor>;

const AdamWOptions kOptions = {.lr = 0.01, .beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.1};

// The dtypes of one parameter.
struct Kind {
  at::ScalarType param, grad, moment;
  bool has_master;
  double tolerance;  // of the weight or its master, after some steps
};

const Kind kKinds[] = {
    {at::kDouble, at::kDouble, at::kDouble, false, 1e-14},
    {at::kFloat, at::kFloat, at::kFloat, false, 1e-6},
    {at::kFloat, at::kFloat, at::kBFloat16, false, 1e-2},
    {at::kBFloat16, at::kBFloat16, at::kFloat, true, 1e-6},
    {at::kBFloat16, at::kFloat, at::kBFloat16, true, 1e-2},
    {at::kBFloat16, at::kBFloat16, at::kBFloat16, false, 2e-2},
    {at::kHalf, at::kHalf, at::kFloat, true, 1e-6},
    {at::kHalf, at::kFloat, at::kFloat, false, 2e-3},
};

// A list of parameters of one kind, and what belongs to them.
struct State {
  State(const Kind& kind, const Tensors& weights) : kind(kind) {
    for (const at::Tensor& weight : weights) {
      params.push_back(weight.to(kind.param).clone());
      first.push_back(at::zeros_like(params.back(), kind.moment));
      second.push_back(at::zeros_like(params.back(), kind.moment));
      if (kind.has_master) masters.push_back(params.back().to(at::kFloat));
      steps.push_back(at::zeros({}, at::kFloat));
    }
  }

  void Step(const Tensors& gradients, const AdamWOptions& options = kOptions,
            at::IntArrayRef salts = {}) {
    Tensors grads;
    for (const at::Tensor& gradient : gradients) grads.push_back(gradient.to(kind.grad));
    AdamW({.params = params,
           .grads = grads,
           .exp_avgs = first,
           .exp_avg_sqs = second,
           .masters = masters,
           .steps = steps,
           .salts = salts},
          options);
  }

  // The weights with the most bits.
  const Tensors& Weights() const { return kind.has_master ? masters : params; }

  Kind kind;
  Tensors params, first, second, masters, steps;
};

// The formula in float64.
struct Oracle {
  explicit Oracle(const Tensors& weights) {
    for (const at::Tensor& weight : weights) {
      params.push_back(weight.to(at::kDouble).clone());
      first.push_back(at::zeros_like(params.back()));
      second.push_back(at::zeros_like(params.back()));
    }
  }

  void Step(const Tensors& gradients) {
    ++step;
    for (size_t i = 0; i < params.size(); ++i) {
      const at::Tensor gradient = gradients[i].to(at::kDouble);
      first[i] = kOptions.beta1 * first[i] + (1 - kOptions.beta1) * gradient;
      second[i] = kOptions.beta2 * second[i] + (1 - kOptions.beta2) * gradient * gradient;
      const at::Tensor mean = first[i] / (1 - std::pow(kOptions.beta1, step));
      const at::Tensor square = second[i] / (1 - std::pow(kOptions.beta2, step));
      params[i] = params[i] * (1 - kOptions.lr * kOptions.weight_decay) -
                  kOptions.lr * mean / (square.sqrt() + kOptions.eps);
    }
  }

  Tensors params, first, second;
  double step = 0;
};

Tensors Random(const std::vector<std::vector<int64_t>>& shapes) {
  Tensors tensors;
  for (const std::vector<int64_t>& shape : shapes)
    tensors.push_back(at::randn(shape, at::kFloat).to(at::kBFloat16).to(at::kFloat));
  return tensors;
}

const std::vector<std::vector<int64_t>> kShapes = {
    {}, {0}, {1}, {7}, {31}, {32}, {33}, {65}, {3, 17}, {16384}, {5, 0}, {16385}, {2, 20000}};

TEST(AdamW, FollowsTheFormulaAtEverySizeAndDtype) {
  at::manual_seed(1);
  const Tensors weights = Random(kShapes);
  for (const Kind& kind : kKinds) {
    State state(kind, weights);
    Oracle oracle(weights);
    for (int step = 0; step < 5; ++step) {
      const Tensors gradients = Random(kShapes);
      state.Step(gradients);
      oracle.Step(gradients);
    }
    for (size_t i = 0; i < weights.size(); ++i) {
      if (weights[i].numel() == 0) continue;
      // A moment may be almost 0: then only the absolute error counts.
      const auto expect_near = [&](const at::Tensor& actual, const at::Tensor& expected,
                                   double tolerance) {
        const double error = (actual.to(at::kDouble) - expected).norm().item<double>();
        EXPECT_LE(error, tolerance * (1 + expected.norm().item<double>()))
            << kind.param << " " << kind.moment << ", parameter " << i;
      };
      const double of_moment = kind.moment == at::kBFloat16 ? 2e-2 : kind.tolerance * 10;
      expect_near(state.Weights()[i], oracle.params[i], kind.tolerance);
      expect_near(state.first[i], oracle.first[i], of_moment);
      expect_near(state.second[i], oracle.second[i], of_moment);
      EXPECT_TRUE(!kind.has_master || at::equal(state.params[i], state.masters[i].to(kind.param)));
    }
  }
}

TEST(AdamW, ErrorsAreNoLargerThanThoseOfAten) {
  for (const Kind& kind : {Kind{at::kFloat, at::kFloat, at::kFloat, false, 0},
                           Kind{at::kBFloat16, at::kBFloat16, at::kBFloat16, false, 0},
                           Kind{at::kHalf, at::kHalf, at::kHalf, false, 0}}) {
    at::manual_seed(2);
    const Tensors weights = Random({{300, 514}});
    Kind ours = kind;
    if (kind.param == at::kHalf) ours.moment = at::kFloat;  // float16 moments are refused
    State state(ours, weights), aten(kind, weights);
    Oracle oracle(weights);
    for (int step = 0; step < 20; ++step) {
      const Tensors gradients = Random({{300, 514}});
      state.Step(gradients);
      oracle.Step(gradients);
      aten.steps[0].add_(1);
      at::_fused_adamw_(aten.params, {gradients[0].to(kind.grad)}, aten.first, aten.second, {},
                        aten.steps, kOptions.lr, kOptions.beta1, kOptions.beta2,
                        kOptions.weight_decay, kOptions.eps, false, false);
    }
    EXPECT_LE(RelativeError(state.params[0], oracle.params[0]),
              1.05 * RelativeError(aten.params[0], oracle.params[0]))
        << kind.param;
  }
}

TEST(AdamW, BitsDoNotDependOnTheNumberOfThreads) {
  const int before = at::get_num_threads();
  for (const Kind& kind : kKinds) {
    std::vector<State> states;
    for (const int threads : {1, 4}) {
      at::set_num_threads(threads);
      at::manual_seed(3);
      const Tensors weights = Random(kShapes);
      states.emplace_back(kind, weights);
      for (int step = 0; step < 3; ++step) states.back().Step(Random(kShapes));
    }
    for (size_t i = 0; i < kShapes.size(); ++i) {
      EXPECT_TRUE(at::equal(states[0].params[i], states[1].params[i])) << kind.param << i;
      EXPECT_TRUE(at::equal(states[0].second[i], states[1].second[i])) << kind.param << i;
    }
  }
  at::set_num_threads(before);
}

TEST(AdamW, ScaleAndFactorAreThoseOfGradientsAndLr) {
  at::manual_seed(4);
  const Tensors weights = Random({{1000}}), gradients = Random({{1000}});
  for (const at::ScalarType number : {at::kFloat, at::kDouble, at::kBFloat16}) {
    State expected(kKinds[1], weights), actual(kKinds[1], weights);
    AdamWOptions half = kOptions, factors = kOptions;
    half.lr = kOptions.lr / 2;
    factors.lr_factor = at::full({}, 0.5, number);
    factors.grad_scale = at::full({1}, 0.25, number);

    expected.Step({gradients[0] * 0.25}, half);
    actual.Step(gradients, factors);

    EXPECT_TRUE(at::equal(actual.params[0], expected.params[0]));
    EXPECT_TRUE(at::equal(actual.first[0], expected.first[0]));
  }
}

TEST(AdamW, StridesDoNotChangeTheResult) {
  at::manual_seed(5);
  const Tensors weights = Random({{37, 50}}), gradients = Random({{37, 50}});
  const auto transposed = [](const at::Tensor& x) { return x.t().contiguous().t(); };
  for (const Kind& kind : kKinds) {
    State expected(kind, weights), actual(kind, {transposed(weights[0])});
    expected.Step(gradients);

    actual.Step({transposed(gradients[0])});

    EXPECT_TRUE(at::equal(actual.params[0], expected.params[0])) << kind.param;
  }
}

TEST(AdamW, RoundingAtRandomIsRightOnAverage) {
  constexpr double kBelow = 1.0 / 256;  // from 1 to its neighbour below
  constexpr int64_t kNumbers = 70001;
  const Kind kind = {at::kBFloat16, at::kBFloat16, at::kFloat, false, 0};
  for (const double share : {0.05, 0.3, 0.9}) {
    State state(kind, {at::ones({kNumbers}), at::ones({kNumbers})});
    const AdamWOptions options = {.lr = share * kBelow, .weight_decay = 0};

    state.Step({at::ones({kNumbers}), at::ones({kNumbers})}, options, {3, 6});

    const at::Tensor moved = (state.params[0] == 1 - kBelow).to(at::kDouble);
    EXPECT_NEAR(moved.mean().item<double>(), share, 0.01);
    EXPECT_TRUE(((state.params[0] == 1).to(at::kDouble) + moved == 1).all().item<bool>());
    EXPECT_FALSE(at::equal(state.params[0], state.params[1])) << "salts have no effect";
  }
}

TEST(AdamW, InfinityAndNanAreNotRounded) {
  const Kind kind = {at::kBFloat16, at::kBFloat16, at::kFloat, false, 0};
  State state(kind, {at::tensor({std::nan(""), HUGE_VAL, -HUGE_VAL, 1.0}, at::kFloat)});
  state.params[0].view(at::kShort)[0].fill_(0x7fff);  // the NaN of a GPU

  state.Step({at::ones({4})}, {.lr = 0}, {0});

  EXPECT_TRUE(state.params[0][0].isnan().item<bool>());
  EXPECT_EQ(state.params[0][1].item<double>(), HUGE_VAL);
  EXPECT_EQ(state.params[0][2].item<double>(), -HUGE_VAL);
  EXPECT_EQ(state.params[0][3].item<double>(), 1);
}

TEST(AdamW, AnUpdateMovesTheVersionOfTheParameter) {
  State state(kKinds[1], {at::ones({3})});
  const auto before = state.params[0]._version();

  state.Step({at::ones({3})});

  EXPECT_GT(state.params[0]._version(), before);
}

TEST(AdamW, BadInputIsNamed) {
  const std::vector<std::pair<std::function<void(AdamWLists&, AdamWOptions&)>, const char*>> cases =
      {{[](AdamWLists& lists, AdamWOptions&) { lists.grads = {}; },
        "adamw_: expected 1 gradients, one for each parameter, got 0"},
       {[](AdamWLists& lists, AdamWOptions&) {
          static const at::Tensor kGrad = at::ones({2, 3}, at::kHalf);
          lists.grads = kGrad;
        },
        "adamw_: gradient 0 is Half, which does not go with a parameter of Float"},
       {[](AdamWLists& lists, AdamWOptions&) {
          static const at::Tensor kMoment = at::ones({3, 2});
          lists.exp_avg_sqs = kMoment;
        },
        "adamw_: exp_avg_sq 0 must have the shape [2, 3] and the strides [3, 1] of its parameter, "
        "got [3, 2] and [2, 1]"},
       {[](AdamWLists& lists, AdamWOptions&) {
          static const at::Tensor kMaster = at::ones({2, 3});
          lists.masters = kMaster;
        },
        "adamw_: master 0 is Float, which does not go with a parameter of Float"},
       {[](AdamWLists& lists, AdamWOptions&) {
          static const at::Tensor kStep = at::ones({}, at::kDouble);
          lists.steps = kStep;
        },
        "adamw_: step 0 must be one float32 number on cpu, got 1 of Double on cpu"},
       {[](AdamWLists& lists, AdamWOptions&) {
          static const at::Tensor kSlice = at::ones({2, 4}).narrow(1, 0, 3);
          lists.params = lists.grads = lists.exp_avgs = lists.exp_avg_sqs = kSlice;
        },
        "adamw_: parameter 0 is a slice of a larger tensor; make it a clone"},
       {[](AdamWLists& lists, AdamWOptions&) {
          static const at::Tensor kTurned = at::ones({3, 2}).t();
          static const std::vector<int64_t> kSalts = {1};
          lists.params = lists.grads = lists.exp_avgs = lists.exp_avg_sqs = kTurned;
          lists.salts = kSalts;
        },
        "adamw_: parameter 0 must be contiguous, to be rounded at random"},
       {[](AdamWLists&, AdamWOptions& options) { options.grad_scale = at::ones({2}); },
        "adamw_: grad_scale must be one number, got shape [2]"}};
  for (const auto& [spoil, message] : cases) {
    const at::Tensor param = at::ones({2, 3}), grad = at::ones({2, 3}), step = at::ones({});
    AdamWLists lists = {
        .params = param, .grads = grad, .exp_avgs = param, .exp_avg_sqs = param, .steps = step};
    AdamWOptions options;
    spoil(lists, options);
    EXPECT_THAT(MessageOf([&] { AdamW(lists, options); }), HasSubstr(message));
  }
}

TEST(AdamW, HeaderExample) {
  const Tensors params = {at::ones({3})}, grads = {at::ones({3})}, m = {at::zeros({3})},
                v = {at::zeros({3})}, steps = {at::zeros({})};

  AdamW({.params = params, .grads = grads, .exp_avgs = m, .exp_avg_sqs = v, .steps = steps},
        {.lr = 1e-3});

  EXPECT_NEAR(params[0][0].item<double>(), 1 - 1e-3 - 1e-5, 1e-6);
}

}  // namespace
}  // namespace lockstep::kernels
