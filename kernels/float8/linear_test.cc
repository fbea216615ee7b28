// A float8 layer against float64 products of the numbers that its casts stand for. BUILD runs these
// tests on each instruction set.

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "ATen/ATen.h"
#include "ATen/autocast_mode.h"
#include "ATen/record_function.h"
#include "base/torch/weight_copies.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/aten/private_operators.h"
#include "kernels/float8/float8.h"
#include "tests/support/message_of.h"
#include "tests/support/relative_error.h"
#include "torch/csrc/autograd/autograd.h"

namespace lockstep::kernels {
namespace {

using ::testing::HasSubstr;
using tests::MessageOf;
using tests::RelativeError;
using torch::autograd::variable_list;
using Dim = std::optional<int64_t>;

constexpr at::ScalarType kE4m3 = at::kFloat8_e4m3fn, kE5m2 = at::kFloat8_e5m2;
const char* const kRecipes[] = {"tensorwise", "rowwise", "rowwise_with_gw_hp"};

at::Tensor Random(at::IntArrayRef shape, at::ScalarType dtype) {
  return (at::randn(shape) * at::randn({shape[0], 1}).exp()).to(dtype);
}

// Returns the numbers that a cast stands for, in float64.
at::Tensor Through(const at::Tensor& x, at::ScalarType format, Dim dim, bool power_of_2) {
  const Float8 cast = CastToFloat8(x, format, dim, power_of_2);
  return cast.values.to(at::kDouble) / cast.scale.to(at::kDouble);
}

struct Results {
  at::Tensor y, dx, dweight;
};

// The formulas of the table in float8.h.
Results Expected(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& dy,
                 const std::string& recipe) {
  if (recipe == "tensorwise") {
    const at::Tensor xs = Through(x, kE4m3, Dim(), false);
    const at::Tensor weights = Through(weight, kE4m3, Dim(), false);
    const at::Tensor dys = Through(dy, kE5m2, Dim(), false);
    return {xs.mm(weights.t()), dys.mm(weights), dys.t().mm(xs)};
  }
  const bool is_float8 = recipe == "rowwise";
  return {Through(x, kE4m3, 1, true).mm(Through(weight, kE4m3, 1, true).t()),
          Through(dy, kE4m3, 1, true).mm(Through(weight, kE4m3, is_float8 ? Dim(0) : Dim(), true)),
          is_float8 ? Through(dy, kE4m3, 0, true).t().mm(Through(x, kE4m3, 0, true))
                    : dy.to(at::kDouble).t().mm(x.to(at::kDouble))};
}

at::Tensor Leaf(const at::Tensor& x) { return x.detach().clone().set_requires_grad(true); }

Results Actual(const at::Tensor& given_x, const at::Tensor& given_weight, const at::Tensor& dy,
               const std::string& recipe) {
  const at::Tensor x = Leaf(given_x), weight = Leaf(given_weight);
  const at::Tensor y = Float8Linear(x, weight, std::nullopt, recipe);
  const variable_list gradients = torch::autograd::grad({y}, {x, weight}, {dy});
  return {y.detach(), gradients[0], gradients[1]};
}

TEST(Float8Linear, AgreesWithFloat64ProductsOfItsCasts) {
  at::manual_seed(1);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const double tolerance = dtype == at::kFloat ? 1e-6 : dtype == at::kBFloat16 ? 4e-3 : 6e-4;
    for (const char* recipe : kRecipes) {
      for (const int64_t tokens : {1, 5, 16, 33, 64}) {
        for (const auto& [in, out] :
             std::initializer_list<std::pair<int64_t, int64_t>>{{16, 16}, {64, 16}, {48, 112}}) {
          const at::Tensor x = Random({tokens, in}, dtype), weight = Random({out, in}, dtype);
          const at::Tensor dy = Random({tokens, out}, dtype);
          const Results actual = Actual(x, weight, dy, recipe);
          const Results expected = Expected(x, weight, dy, recipe);
          EXPECT_EQ(actual.y.scalar_type(), dtype);
          EXPECT_EQ(actual.dweight.scalar_type(), dtype);
          EXPECT_LT(RelativeError(actual.y, expected.y), tolerance) << recipe << tokens;
          EXPECT_LT(RelativeError(actual.dx, expected.dx), tolerance) << recipe << tokens;
          EXPECT_LT(RelativeError(actual.dweight, expected.dweight), tolerance) << recipe << tokens;
          // The casts themselves cost more: a product that skipped them would be nearer to this.
          EXPECT_GT(RelativeError(actual.y, x.to(at::kDouble).mm(weight.to(at::kDouble).t())),
                    1.5 * tolerance);
        }
      }
    }
  }
}

TEST(Float8Linear, ItsProductIsThatOfScaledMm) {
  at::manual_seed(2);
  const at::Tensor x = Random({5, 64}, at::kFloat), weight = Random({48, 64}, at::kFloat);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Float8 xs = CastToFloat8(x.to(dtype), kE4m3, Dim());
    const Float8 weights = CastToFloat8(weight, kE4m3, Dim());
    const at::Tensor expected =
        ScaledMatrixProduct(xs.values, weights.values.t(), xs.scale.reciprocal(),
                            weights.scale.reciprocal(), dtype, /*fast=*/false);
    const at::Tensor y = Float8Linear(x.to(dtype), weight, std::nullopt, "tensorwise");
    EXPECT_LT(RelativeError(y, expected.to(at::kDouble)), dtype == at::kFloat ? 1e-6 : 4e-3);
  }
}

TEST(Float8Linear, TakesAnyShapeAndStrides) {
  at::manual_seed(3);
  const at::Tensor weight = Random({32, 16}, at::kFloat), x = at::randn({3, 7, 16});
  for (const char* recipe : kRecipes) {
    const at::Tensor y = Float8Linear(x, weight, std::nullopt, recipe);
    EXPECT_EQ(y.sizes(), at::IntArrayRef({3, 7, 32}));
    EXPECT_TRUE(
        at::equal(Float8Linear(x.view({21, 16}), weight, std::nullopt, recipe), y.view({21, 32})));
    EXPECT_TRUE(at::equal(Float8Linear(x[0][0], weight, std::nullopt, recipe),
                          Float8Linear(x[0].narrow(0, 0, 1), weight, std::nullopt, recipe)[0]));
    const at::Tensor apart = x.transpose(0, 1).contiguous().transpose(0, 1);
    EXPECT_TRUE(
        at::equal(Float8Linear(apart, weight.t().contiguous().t(), std::nullopt, recipe), y));
    // A gradient with strides of 0.
    const at::Tensor leaf = Leaf(apart);
    const auto dx =
        torch::autograd::grad({Float8Linear(leaf, weight, std::nullopt, recipe).sum()}, {leaf})[0];
    const Results expected = Expected(x.view({21, 16}), weight, at::ones({21, 32}), recipe);
    EXPECT_LT(RelativeError(dx.reshape({21, 16}), expected.dx), 1e-6);
  }
}

TEST(Float8Linear, TakesNoTokens) {
  const at::Tensor x = Leaf(at::empty({2, 0, 16})), weight = Leaf(at::randn({32, 16}));
  const at::Tensor bias = Leaf(at::randn({32}));
  for (const char* recipe : kRecipes) {
    const at::Tensor y = Float8Linear(x, weight, bias, recipe);
    EXPECT_EQ(y.sizes(), at::IntArrayRef({2, 0, 32}));
    const variable_list gradients = torch::autograd::grad({y.sum()}, {x, weight, bias});
    EXPECT_EQ(gradients[0].sizes(), x.sizes());
    EXPECT_TRUE(at::equal(gradients[1], at::zeros({32, 16})));
    EXPECT_TRUE(at::equal(gradients[2], at::zeros({32})));
  }
}

TEST(Float8Linear, DoesNotHideInfinityOrNan) {
  for (const char* recipe : kRecipes) {
    for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
      at::Tensor x = at::randn({4, 16}), weight = at::randn({16, 16}), dy = at::randn({4, 16});
      const auto all_of_row = [](const at::Tensor& of, int64_t row) {
        return of[row].isnan().all().item<bool>();
      };
      x[2][3] = bad;
      EXPECT_TRUE(all_of_row(Actual(x, weight, dy, recipe).y, 2)) << recipe;
      EXPECT_FALSE(Actual(x, weight, dy, recipe).dweight.t()[3].isfinite().any().item<bool>());
      x.zero_();
      weight[5][3] = bad;
      EXPECT_TRUE(all_of_row(Actual(x, weight, dy, recipe).y.t(), 5)) << recipe;
      EXPECT_TRUE(all_of_row(Actual(x, weight, dy, recipe).dx.t(), 3)) << recipe;
      weight.zero_();
      dy[1][2] = bad;
      EXPECT_TRUE(all_of_row(Actual(x, weight, dy, recipe).dx, 1)) << recipe;
      EXPECT_TRUE(all_of_row(Actual(x, weight, dy, recipe).dweight, 2)) << recipe;
    }
  }
}

TEST(Float8Linear, TheLargestMagnitudesStayFinite) {
  const at::Tensor x = at::full({2, 16}, 3e18f), weight = at::full({16, 16}, 3e18f);
  for (const char* recipe : kRecipes)
    EXPECT_LT(RelativeError(Float8Linear(x, weight, std::nullopt, recipe),
                            at::full({2, 16}, 1.44e38, at::kDouble)),
              0.1);
}

TEST(Float8Linear, ABiasIsAddedInTheDtypeOfTheResult) {
  const at::Tensor x = at::randn({3, 16}).to(at::kBFloat16), weight = at::randn({32, 16});
  const at::Tensor bias = Leaf(at::randn({32}));
  const at::Tensor y = Float8Linear(x, weight, bias, "rowwise");
  EXPECT_TRUE(
      at::equal(y, Float8Linear(x, weight, std::nullopt, "rowwise") + bias.to(at::kBFloat16)));
  EXPECT_TRUE(at::equal(torch::autograd::grad({y.sum()}, {bias})[0], at::full({32}, 3.0)));
}

TEST(Float8Linear, AWeightOfAnotherDtypeGetsItsGradientInIt) {
  at::manual_seed(4);
  const at::Tensor x = Random({5, 16}, at::kBFloat16), weight = Random({32, 16}, at::kFloat);
  const at::Tensor dy = Random({5, 32}, at::kBFloat16);
  for (const char* recipe : kRecipes) {
    const Results actual = Actual(x, weight, dy, recipe);
    EXPECT_EQ(actual.y.scalar_type(), at::kBFloat16);
    EXPECT_EQ(actual.dweight.scalar_type(), at::kFloat);
    const bool is_float8 = std::string(recipe) != "rowwise_with_gw_hp";
    EXPECT_LT(RelativeError(actual.dweight, Expected(x, weight, dy, recipe).dweight),
              is_float8 ? 1e-6 : 4e-3);
  }
}

// Counts the calls of float8_cast while it lives. Each finds magnitudes and rounds.
class CastCounter {
 public:
  CastCounter()
      : handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback(OnStart).scopes({at::RecordScope::FUNCTION}))) {
    count_ = 0;
  }
  CastCounter(const CastCounter&) = delete;
  CastCounter& operator=(const CastCounter&) = delete;
  ~CastCounter() { at::removeCallback(handle_); }

  int Count() const { return count_; }

 private:
  static std::unique_ptr<at::ObserverContext> OnStart(const at::RecordFunction& function) {
    if (std::string(function.name()) == "lockstep::float8_cast") ++count_;
    return nullptr;
  }
  static thread_local int count_;
  at::CallbackHandle handle_;
};
thread_local int CastCounter::count_;

Results Step(const at::Tensor& x, const at::Tensor& weight, const char* recipe, bool keep) {
  const at::Tensor leaf = Leaf(x);
  const at::Tensor y = Float8Linear(leaf, weight, std::nullopt, recipe, keep);
  const variable_list gradients = torch::autograd::grad({y}, {leaf, weight}, {y.detach()});
  return {y.detach(), gradients[0], gradients[1]};
}

TEST(Float8Linear, AWeightIsCastOnceUntilItChanges) {
  // x, and dy where its rows and columns have scales, are cast for each product that needs it.
  const struct {
    const char* recipe;
    int first, later, not_kept;
  } kCases[] = {{"tensorwise", 4, 3, 5}, {"rowwise", 6, 4, 6}, {"rowwise_with_gw_hp", 4, 2, 4}};
  const at::Tensor x = at::randn({5, 16});
  for (const auto& one : kCases) {
    const at::Tensor weight = Leaf(at::randn({32, 16}));
    const auto casts_of_step = [&](bool keep) {
      const CastCounter counter;
      Step(x, weight, one.recipe, keep);
      return counter.Count();
    };
    for (int step = 0; step < 2; ++step) {
      EXPECT_EQ(casts_of_step(true), one.first) << one.recipe;
      EXPECT_EQ(casts_of_step(true), one.later) << one.recipe;
      {
        const at::NoGradGuard no_grad;
        const CastCounter counter;
        Float8Linear(x, weight, std::nullopt, one.recipe, /*keep=*/true);
        EXPECT_EQ(counter.Count(), 1) << "evaluation casts x alone";
      }
      EXPECT_EQ(casts_of_step(true), one.later) << one.recipe;
      EXPECT_EQ(casts_of_step(false), one.not_kept) << one.recipe;
      const at::NoGradGuard no_grad;
      weight.mul_(2);
    }
  }
}

TEST(Float8Linear, AKeptCastTakesAByteForEachNumberAndDirection) {
  base::ForgetAllCopies();
  const at::Tensor x = at::randn({5, 16}), weight = Leaf(at::randn({32, 16}));
  Float8Linear(x, weight, std::nullopt, "rowwise", /*keep=*/true);
  EXPECT_EQ(base::BytesOfCopies(), 32 * 16 + 32 * 4);
  Step(x, weight, "rowwise", true);
  EXPECT_EQ(base::BytesOfCopies(), 2 * 32 * 16 + (32 + 16) * 4);
  const at::NoGradGuard no_grad;
  weight.mul_(2);
  Float8Linear(x, weight, std::nullopt, "rowwise", /*keep=*/true);
  EXPECT_EQ(base::BytesOfCopies(), 32 * 16 + 32 * 4);
  Float8Linear(x, Leaf(weight), std::nullopt, "rowwise");
  EXPECT_EQ(base::BytesOfCopies(), 32 * 16 + 32 * 4);
}

// Whatever changes a weight between the calls.
TEST(Float8Linear, KeptCastsHaveTheBitsOfNewOnes) {
  at::manual_seed(6);
  const auto zeros = [] { return at::zeros({32, 16}); };
  const std::function<void(const at::Tensor&)> kChanges[] = {
      [](const at::Tensor&) {},
      [](const at::Tensor& w) { w.mul_(2); },
      [](const at::Tensor& w) { w[3].add_(1); },
      [](const at::Tensor& w) {
        w.detach().copy_(at::randn({32, 16}));
      },
      [](const at::Tensor& w) {
        w.set_data(at::randn({32, 16}));
      },
      [](const at::Tensor& w) { at::_foreach_mul_({w}, 3); },
      [](const at::Tensor& w) {
        at::_foreach_copy_({w}, {at::randn({32, 16})});
      },
      [&](const at::Tensor& w) {
        at::_fused_adamw_({w}, {at::randn({32, 16})}, {zeros()}, {zeros()}, {}, {at::ones({})}, 0.1,
                          0.9, 0.99, 0, 1e-8, false, false);
      },
      [&](const at::Tensor& w) {
        at::_fused_sgd_({w}, {at::randn({32, 16})}, {}, 0, 0, 0.1, 0, false, false, false);
      },
      [](const at::Tensor&) { base::ForgetAllCopies(); },
  };
  for (const char* recipe : kRecipes) {
    const at::Tensor weight = Leaf(at::randn({32, 16}));
    for (const auto& change : kChanges) {
      for (int call = 0; call < 2; ++call) {
        const at::Tensor x = at::randn({5, 16});
        const Results actual = Step(x, weight, recipe, true);
        const Results expected = Step(x, weight, recipe, false);
        const auto place = &change - kChanges;
        EXPECT_TRUE(at::equal(actual.y, expected.y)) << recipe << " before change " << place;
        EXPECT_TRUE(at::equal(actual.dx, expected.dx)) << recipe << " before change " << place;
        EXPECT_TRUE(at::equal(actual.dweight, expected.dweight)) << recipe;
      }
      const at::NoGradGuard no_grad;
      change(weight);
      EXPECT_TRUE(at::equal(Float8Linear(weight, weight, std::nullopt, recipe, true),
                            Float8Linear(weight, weight, std::nullopt, recipe, false)))
          << recipe << " after change " << &change - kChanges;
    }
  }
}

TEST(Float8Linear, AutocastChoosesTheDtypeOfTheResultAlone) {
  const at::Tensor x = Leaf(at::randn({3, 16})), weight = Leaf(at::randn({32, 16}));
  const at::Tensor outside = Float8Linear(x.to(at::kBFloat16), weight, std::nullopt, "tensorwise");
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  const at::Tensor y = Float8Linear(x, weight, weight.detach().select(1, 0), "tensorwise");
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::equal(y, outside + weight.select(1, 0).to(at::kBFloat16)));
  EXPECT_EQ(torch::autograd::grad({y.sum()}, {x})[0].scalar_type(), at::kFloat);
}

TEST(Float8Linear, ComputesAndKeepsOnlyWhatIsNeeded) {
  const at::Tensor weight = at::randn({16, 16});
  const at::Tensor x = at::randn({4, 16});
  EXPECT_FALSE(Float8Linear(x, weight, std::nullopt, "rowwise").requires_grad());
  for (const bool weight_learns : {false, true}) {
    const at::Tensor input = Leaf(x) * 2;
    const at::Tensor y =
        Float8Linear(input, weight_learns ? Leaf(weight) : weight, std::nullopt, "rowwise");
    EXPECT_EQ(input.use_count(), weight_learns ? 2 : 1);  // a frozen weight needs no x
  }
}

TEST(Float8Linear, GivesShapesOfMetaTensors) {
  const auto options = at::device(at::kMeta).dtype(at::kBFloat16);
  const at::Tensor x = at::empty({2, 3, 16}, options).set_requires_grad(true);
  const at::Tensor weight = at::empty({32, 16}, options).set_requires_grad(true);
  for (const char* recipe : kRecipes) {
    const at::Tensor y = Float8Linear(x, weight, std::nullopt, recipe);
    EXPECT_EQ(y.sizes(), at::IntArrayRef({2, 3, 32}));
    const variable_list gradients = torch::autograd::grad({y.sum()}, {x, weight});
    EXPECT_EQ(gradients[0].sizes(), x.sizes());
    EXPECT_EQ(gradients[1].sizes(), weight.sizes());
  }
}

TEST(Float8Linear, RefusesWhatItCannotMultiply) {
  const at::Tensor x = at::ones({2, 16}), weight = at::ones({32, 16});
  const auto message = [](const at::Tensor& of_x, const at::Tensor& of_weight,
                          const std::optional<at::Tensor>& bias, const char* recipe) {
    return MessageOf([&] { Float8Linear(of_x, of_weight, bias, recipe); });
  };
  const auto none = std::nullopt;
  EXPECT_THAT(message(x, weight, none, "blockwise"), HasSubstr("unknown recipe \"blockwise\""));
  EXPECT_THAT(message(x.to(at::kDouble), weight, none, "rowwise"), HasSubstr("x must be float32"));
  EXPECT_THAT(message(x, weight.to(at::kLong), none, "rowwise"),
              HasSubstr("weight must be float32"));
  EXPECT_THAT(message(x, at::ones({32, 32}), none, "rowwise"),
              HasSubstr("got [2, 16] and [32, 32]"));
  EXPECT_THAT(message(x, at::ones({16}), none, "rowwise"), HasSubstr("weight [out, in]"));
  EXPECT_THAT(message(x, at::ones({40, 16}), none, "rowwise"),
              HasSubstr("must be multiples of 16, got [40, 16]"));
  EXPECT_THAT(message(at::ones({2, 8}), at::ones({32, 8}), none, "rowwise"),
              HasSubstr("must be multiples of 16, got [32, 8]"));
  EXPECT_THAT(message(x, weight, at::ones({16}), "rowwise"),
              HasSubstr("bias must be [32], got [16]"));
  EXPECT_THAT(message(x, weight.to(at::kMeta), none, "rowwise"), HasSubstr("move one of them"));
  const at::Tensor leaf = Leaf(x);
  const at::Tensor y = Float8Linear(leaf, weight, none, "rowwise").pow(2).sum();
  EXPECT_THAT(MessageOf([&] {
                torch::autograd::grad({y}, {leaf}, {}, /*retain_graph=*/true,
                                      /*create_graph=*/true);
              }),
              HasSubstr("gradients of gradients are not supported"));
}

}  // namespace
}  // namespace lockstep::kernels
