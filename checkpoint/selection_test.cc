#include "checkpoint/selection.h"

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "ATen/Context.h"
#include "ATen/ops/allclose.h"
#include "ATen/ops/dropout.h"
#include "ATen/ops/equal.h"
#include "ATen/ops/mm.h"
#include "ATen/ops/native_dropout.h"
#include "ATen/ops/rand.h"
#include "ATen/ops/scaled_dot_product_attention.h"
#include "ATen/ops/sigmoid.h"
#include "ATen/ops/sort.h"
#include "ATen/ops/tanh.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/fixture.h"
#include "gtest/gtest.h"
#include "torch/csrc/autograd/autograd.h"

namespace lockstep::checkpoint {
namespace {

Checkpoint Keeping(const std::vector<std::string>& operators) {
  return Checkpoint({.save = Selection::Of(operators)});
}

TEST(Selection, HeaderExample) {
  CheckpointOptions options;
  options.save = Selection::Of({"aten::mm", "aten::_scaled_dot_product_flash_attention"});
  const Layer net(4);
  const at::Tensor x = Random({2, 4});

  EXPECT_TRUE(
      SameBits(GradientsOf(Call(Checkpoint(options), net, x), {x}), GradientsOf(net(x), {x})));
}

TEST(Selection, GradientsAreTheSameBitsInEveryBackward) {
  const Layer net(8);
  const at::Tensor x = Random({3, 8});
  Tensors leaves = net.weights();
  leaves.push_back(x);
  const auto f = [&](const at::Tensor& in) { return at::tanh(net(at::sigmoid(in)).exp()); };
  const Tensors expected = GradientsOf(f(x), leaves);
  for (const std::vector<std::string>& kept : std::vector<std::vector<std::string>>{
           {"aten::mm"}, {"aten::tanh"}, {"aten::exp", "aten::mm"}}) {
    const Checkpoint checkpoint = Keeping(kept);
    const at::Tensor y = Call(checkpoint, f, x);

    EXPECT_TRUE(SameBits(GradientsOf(y, leaves, /*retain_graph=*/true), expected));
    EXPECT_TRUE(SameBits(GradientsOf(y, leaves), expected));
  }
}

// What the product reads has changed since: the result is of forward all the same.
TEST(Selection, KeptResultsAreNotComputedAgain) {
  const at::Tensor x = Random({4, 4});
  at::Tensor factor = Random({4, 4}, false);
  const auto f = [&](const at::Tensor& in) { return at::tanh(in.mm(factor)); };
  const at::Tensor in_forward = f(x).detach();
  const at::Tensor kept = Call(Keeping({"aten::mm"}), f, x);
  const at::Tensor recomputed = Call(Checkpoint(), f, x);

  factor = Random({4, 4}, false);

  const auto gradient = [&](const at::Tensor& tanh) { return (1 - tanh * tanh).mm(factor.t()); };
  EXPECT_TRUE(at::allclose(torch::autograd::grad({kept.sum()}, {x})[0], gradient(in_forward)));
  EXPECT_TRUE(
      at::allclose(torch::autograd::grad({recomputed.sum()}, {x})[0], gradient(f(x).detach())));
  EXPECT_FALSE(at::allclose(gradient(in_forward), gradient(f(x).detach())));
}

// On the CPU aten::dropout is made of other operators.
at::Tensor Dropout(const at::Tensor& x, double p, bool train) {
  return std::get<0>(at::native_dropout(x, p, train));
}

TEST(Selection, DropoutAfterAKeptDropoutDrawsTheSameMask) {
  const at::Tensor x = Random({100});
  const auto f = [](const at::Tensor& in) {
    return at::dropout(Dropout(in, 0.5, true).exp(), 0.5, true).exp();  // nowhere 0
  };
  at::manual_seed(3);
  const Tensors expected = GradientsOf(f(x), {x});

  at::manual_seed(3);
  const at::Tensor y = Call(Keeping({"aten::native_dropout"}), f, x);

  EXPECT_TRUE(SameBits(GradientsOf(y, {x}), expected));
}

TEST(Selection, WithoutPreserveRngGeneratorsAreLeftAlone) {
  const at::Tensor x = Random({100});
  const Checkpoint checkpoint(
      {.preserve_rng = false, .save = Selection::Of({"aten::native_dropout"})});
  const auto f = [](const at::Tensor& in) { return at::tanh(Dropout(in, 0.5, true)); };
  const at::Tensor y = Call(checkpoint, f, x);

  at::manual_seed(9);
  GradientsOf(y, {x});
  const at::Tensor drawn = at::rand({4});

  at::manual_seed(9);
  EXPECT_TRUE(at::equal(drawn, at::rand({4})));
}

TEST(Selection, OperatorsOfSeveralResults) {
  const at::Tensor x = Random({5, 7});
  const auto f = [](const at::Tensor& in) { return at::tanh(std::get<0>(at::sort(in, 1))); };

  EXPECT_TRUE(
      SameBits(GradientsOf(Call(Keeping({"aten::sort"}), f, x), {x}), GradientsOf(f(x), {x})));
}

TEST(Selection, AttentionIsKeptAsAWhole) {
  const at::Tensor x = Random({1, 2, 8, 4});
  const auto f = [](const at::Tensor& in) {
    return at::tanh(
        at::scaled_dot_product_attention(at::sigmoid(in), in, in).matmul(in.transpose(-1, -2)));
  };
  const Checkpoint checkpoint =
      Keeping({"aten::_scaled_dot_product_flash_attention_for_cpu", "aten::bmm"});

  EXPECT_TRUE(SameBits(GradientsOf(Call(checkpoint, f, x), {x}), GradientsOf(f(x), {x})));
}

TEST(Selection, AnInnerRegionKeepsByItsOwnSelection) {
  const Layer net(4);
  const at::Tensor x = Random({2, 4});
  const Checkpoint outer = Keeping({"aten::mm"});
  const Checkpoint inner;
  const auto f = [&](const at::Tensor& in) { return at::tanh(net(net(in))); };

  const at::Tensor y = Call(
      outer, [&](const at::Tensor& in) { return at::tanh(Call(inner, net, Call(inner, net, in))); },
      x);

  EXPECT_TRUE(SameBits(GradientsOf(y, {x}), GradientsOf(f(x), {x})));
}

TEST(Selection, AResultModifiedInPlaceIsAnError) {
  const at::Tensor x = Random({4, 4});
  const at::Tensor y = Call(
      Keeping({"aten::mm"}), [](const at::Tensor& in) { return at::tanh(in.mm(in).add_(1)); }, x);

  EXPECT_NE(MessageOf([&] {
              GradientsOf(y, {x});
            }).find("result 0 of aten::mm, which a selection keeps, was modified in place"),
            std::string::npos);
}

TEST(Selection, MoreCallsThanInForwardAreAnError) {
  const at::Tensor x = Random({4, 4});
  int pass = 0;
  const Checkpoint checkpoint({.early_stop = false, .save = Selection::Of({"aten::mm"})});
  const at::Tensor y = Call(
      checkpoint,
      [&](const at::Tensor& in) { return at::tanh(pass++ == 0 ? in.mm(in) : in.mm(in).mm(in)); },
      x);

  EXPECT_NE(MessageOf([&] { GradientsOf(y, {x}); }).find("calls aten::mm more often"),
            std::string::npos);
}

TEST(Selection, OutsideOfARegionOperatorsAreAsEver) {
  Keeping({"aten::mm"});
  const at::Tensor x = Random({3, 3});

  EXPECT_TRUE(at::equal(at::mm(x, x), x.matmul(x)));
}

TEST(Selection, NamesOfNoUseAreRefused) {
  const auto message = [](const std::string& name) {
    return MessageOf([&] { Selection::Of({name}); });
  };

  EXPECT_NE(message("aten::matmull").find("there is no operator \"aten::matmull\""),
            std::string::npos);
  EXPECT_NE(message("aten::matmul").find("name those (aten::mm"), std::string::npos);
  EXPECT_NE(message("aten::add_").find("writes into its arguments"), std::string::npos);
  EXPECT_NE(message("aten::transpose.int").find("returns a view"), std::string::npos);
  EXPECT_NE(MessageOf([] { Selection::Of({}); }).find("at least one"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::checkpoint
