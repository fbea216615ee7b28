// The operators and arguments that a recording takes, and those that it refuses.

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/pointwise/fuse.h"
#include "tests/support/message_of.h"

namespace lockstep::kernels {
namespace {

using ::testing::HasSubstr;
using tests::MessageOf;
using Tensors = std::vector<at::Tensor>;

at::Tensor One(FusedFunction& fused, const std::vector<PointwiseArgument>& arguments) {
  return fused(arguments)[0];
}

TEST(Recording, IsMadeOnceForTheDtypesOfTheArguments) {
  int calls = 0;
  FusedFunction fused([&](const Tensors& in) {
    ++calls;
    return Tensors{in[0] + in[1]};
  });

  for (const int64_t size : {1, 2, 3})
    for (int turn = 0; turn < 2; ++turn) One(fused, {at::ones({size}), at::ones({size, 1})});
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(fused.num_recordings(), 1);

  One(fused, {at::ones({2}), at::ones({2}, at::kBFloat16)});
  One(fused, {at::ones({2}), at::ones({})});
  One(fused, {at::ones({2}), 1.0});
  EXPECT_EQ(fused.num_recordings(), 4);
}

TEST(Recording, NumbersFromOutsideAreConstants) {
  double factor = 2;
  FusedFunction fused([&](const Tensors& in) { return Tensors{in[0] * factor}; });
  One(fused, {at::ones({2})});

  factor = 3;

  EXPECT_TRUE(at::equal(One(fused, {at::ones({2})}), at::full({2}, 2.0)));
}

TEST(Recording, IsOffAfterwards) {
  FusedFunction fused([](const Tensors& in) { return Tensors{in[0].cumsum(0)}; });
  EXPECT_THAT(MessageOf([&] { One(fused, {at::ones({2})}); }), HasSubstr("torch.cumsum"));
  const at::Tensor x = at::ones({2}).requires_grad_(true);

  EXPECT_TRUE(at::equal(x.cumsum(0), at::tensor({1.0, 2.0}).to(at::kFloat)));
  EXPECT_TRUE((x * 2).requires_grad());
}

TEST(Recording, WhatIsNotPointwiseIsRefused) {
  const at::Tensor outside = at::ones({3}), number = at::ones({});
  const std::vector<std::pair<std::function<Tensors(const Tensors&)>, const char*>> cases = {
      {[](const Tensors& in) { return Tensors{in[0].cumsum(0)}; }, "torch.cumsum is not pointwise"},
      {[](const Tensors& in) { return Tensors{in[0].softmax(-1)}; },
       "torch.softmax is not pointwise"},
      {[](const Tensors& in) { return Tensors{in[0] * in[0].sum()}; },
       "torch.sum over all dimensions cannot be fused"},
      {[](const Tensors& in) { return Tensors{std::get<0>(in[0].max(0)) + in[0]}; },
       "torch.max over dimensions is not pointwise"},
      {[](const Tensors& in) { return Tensors{in[0].max() + in[0]}; },
       "torch.max over dimensions is not pointwise"},
      {[](const Tensors& in) { return Tensors{in[0].select(0, 0) + in[0]}; },
       "torch.select is not pointwise"},
      {[](const Tensors& in) { return Tensors{in[0].t() + in[0]}; }, "torch.t is not pointwise"},
      {[](const Tensors& in) { return Tensors{at::dropout(in[0], 0.5, true)}; },
       "torch.dropout is not pointwise"},
      {[](const Tensors& in) {
         return Tensors{at::cat({in[0], in[0]})};
       },
       "torch.cat is not pointwise"},
      {[](const Tensors& in) {
         in[0].mul_(2);
         return Tensors{in[0]};
       },
       "torch.mul_ changes an argument or a tensor from outside in place"},
      {[](const Tensors& in) {
         at::Tensor to = at::empty({2}, at::kMeta);
         at::add_out(to, in[0], in[0]);
         return Tensors{to};
       },
       "torch.add changes an argument or a tensor from outside in place"},
      {[&](const Tensors& in) { return Tensors{in[0] + outside}; },
       "torch.add reads a tensor that is not an argument of the fused function; pass it as one"},
      {[&](const Tensors& in) { return Tensors{in[0] + number}; }, "torch.add reads a tensor"},
      {[&](const Tensors&) { return Tensors{outside}; },
       "result 1 of the function is not computed from its tensors"},
      {[](const Tensors&) { return Tensors{}; }, "the function returns nothing"},
      {[](const Tensors& in) { return Tensors{in[0] * in[0].size(0)}; }, "for another shape"},
      {[](const Tensors& in) { return Tensors{in[0] * in[0].dim()}; }, "for another shape"},
      {[](const Tensors& in) { return Tensors{in[0].to(at::kLong)}; }, "torch.to gives Long"},
      {[](const Tensors& in) { return Tensors{at::div(in[0], 2, "trunc")}; },
       "torch.div with a rounding mode cannot be fused"},
  };
  for (const auto& [function, message] : cases) {
    FusedFunction fused(function);
    const std::string actual = MessageOf([&] { One(fused, {at::ones({3})}); });
    EXPECT_THAT(actual, HasSubstr(message));
    EXPECT_EQ(fused.num_recordings(), 0);
  }
}

TEST(Recording, ReductionsOfOtherDimensionsAreRefused) {
  const std::vector<std::pair<PointwiseFunction, const char*>> cases = {
      {[](const Tensors& in) { return Tensors{in[0] * in[0].sum()}; },
       "torch.sum over all dimensions cannot be fused; it may reduce the last dimension, given as "
       "-1"},
      {[](const Tensors& in) { return Tensors{in[0].amax({}, true)}; },
       "torch.amax over all dimensions cannot be fused"},
      {[](const Tensors& in) { return Tensors{in[0].sum(0)}; },
       "torch.sum over dimension 0 cannot be fused"},
      {[](const Tensors& in) { return Tensors{in[0].mean(1, true)}; },
       "torch.mean over dimension 1 cannot be fused"},
      {[](const Tensors& in) {
         return Tensors{in[0].sum(at::IntArrayRef({0, -1}))};
       },
       "torch.sum over several dimensions cannot be fused"},
      {[](const Tensors& in) { return Tensors{in[0] - in[0].sum(-1)}; },
       "torch.sub of a tensor without its last dimension and of one that has it; let the reduction "
       "keep it: torch.sum(x, -1, true)"},
      {[](const Tensors& in) { return Tensors{in[0].sum(-1).sum(-1)}; },
       "torch.sum of a tensor without a last dimension"},
      {[](const Tensors& in) { return Tensors{in[1].sum(-1) * in[0]}; },
       "torch.sum of a tensor without a last dimension"},
      {[](const Tensors& in) { return Tensors{std::get<0>(in[0].max(-1, true)) + in[0]}; },
       "torch.max over dimensions is not pointwise; torch.amax(x, -1, true) and torch.amin"},
      {[](const Tensors& in) { return Tensors{in[0] * in[0].argmax(-1, true)}; },
       "torch.argmax is not pointwise"},
      {[](const Tensors& in) { return Tensors{(in[0] > 0).sum(-1, true) * in[0]}; },
       "torch.sum gives Long"},
      {[](const Tensors& in) { return Tensors{in[0].cumsum(-1)}; },
       "torch.cumsum is not pointwise"},
      {[](const Tensors& in) { return Tensors{in[0].var(-1)}; }, "torch.var is not pointwise"},
  };
  for (const auto& [function, message] : cases) {
    FusedFunction fused(function);
    const std::string actual = MessageOf([&] { One(fused, {at::ones({2, 3}), at::ones({})}); });

    EXPECT_THAT(actual, HasSubstr(message));
    EXPECT_THAT(actual, HasSubstr("sum, mean, amax and amin over the last dimension"));
  }
}

TEST(Recording, TheListOfOperatorsIsInTheMessage) {
  FusedFunction fused([](const Tensors& in) { return Tensors{in[0].cumsum(0)}; });

  const std::string message = MessageOf([&] { One(fused, {at::ones({3})}); });

  EXPECT_THAT(message, HasSubstr("A fused function may use + - * / ^, exp, log"));
}

TEST(Recording, TheFirstMistakeIsReportedWithItsLine) {
  PointwiseRecordings recordings;
  int line = 0;
  const PointwiseFunction function = [&](const Tensors& in) {
    line = 7;
    const at::Tensor x = in[0].cumsum(0);
    line = 8;
    return Tensors{x.sum() + in[0]};
  };

  const std::string message = MessageOf([&] {
    recordings.Call(function, {at::ones({3})},
                    [&] { return "script.lua:" + std::to_string(line); });
  });

  EXPECT_THAT(message, HasSubstr("at script.lua:7: torch.cumsum is not pointwise"));
}

TEST(Recording, ArgumentsMustBeFloatingPointTensorsOrNumbers) {
  FusedFunction fused([](const Tensors& in) { return Tensors{in[0] + 1}; });

  EXPECT_THAT(MessageOf([&] { One(fused, {at::ones({2}, at::kLong)}); }),
              HasSubstr("argument 1 has dtype Long"));
  EXPECT_THAT(MessageOf([&] { One(fused, {at::ones({2}, at::kComplexFloat)}); }),
              HasSubstr("argument 1 has dtype ComplexFloat"));
  EXPECT_THAT(MessageOf([&] { One(fused, {at::Tensor()}); }),
              HasSubstr("argument 1 is an undefined tensor"));
  EXPECT_THAT(MessageOf([&] { One(fused, {1.0}); }),
              HasSubstr("at least one argument must be a tensor"));
}

TEST(Recording, AFusedFunctionMayCallAnother) {
  FusedFunction inner([](const Tensors& in) { return Tensors{in[0] * in[1]}; });
  FusedFunction outer([&](const Tensors& in) { return Tensors{inner({in[0], 3.0})[0] + 1}; });

  EXPECT_TRUE(at::equal(One(outer, {at::ones({2})}), at::full({2}, 4.0)));
  EXPECT_EQ(inner.num_recordings(), 0);
}

TEST(Recording, TensorsThatTheFunctionMadeMayChangeInPlace) {
  FusedFunction fused([](const Tensors& in) {
    at::Tensor x = in[0] * 2;
    x.add_(1).mul_(in[1]);
    return Tensors{x, at::ones_like(in[0]) * in[1] - at::zeros_like(in[1])};
  });
  const at::Tensor x = at::randn({4, 1}), y = at::randn({3});

  const Tensors actual = fused({x, y});

  EXPECT_TRUE(at::allclose(actual[0], (x * 2 + 1) * y));
  EXPECT_TRUE(at::equal(actual[1], y.expand({4, 3})));
}

TEST(Recording, CastsAndCopiesAreTheSameNumbers) {
  FusedFunction fused([](const Tensors& in) {
    return Tensors{(in[0].to(at::kFloat).contiguous().clone() * 3).to(in[0].scalar_type())};
  });
  const at::Tensor x = at::randn({5}).to(at::kBFloat16);

  const at::Tensor y = One(fused, {x});

  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::equal(y, (x.to(at::kFloat) * 3).to(at::kBFloat16)));
}

}  // namespace
}  // namespace lockstep::kernels
