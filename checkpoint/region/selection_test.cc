#include "checkpoint/region/selection.h"

#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ATen/Context.h"
#include "ATen/ops/allclose.h"
#include "ATen/ops/cdist.h"
#include "ATen/ops/dropout.h"
#include "ATen/ops/equal.h"
#include "ATen/ops/linear.h"
#include "ATen/ops/matmul.h"
#include "ATen/ops/mm.h"
#include "ATen/ops/native_dropout.h"
#include "ATen/ops/rand.h"
#include "ATen/ops/scaled_dot_product_attention.h"
#include "ATen/ops/sigmoid.h"
#include "ATen/ops/sort.h"
#include "ATen/ops/tanh.h"
#include "checkpoint/region/checkpoint.h"
#include "checkpoint/testing/fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/csrc/autograd/autograd.h"

namespace lockstep::checkpoint {
namespace {

using ::testing::HasSubstr;

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

// The product's input has changed since: the result is from forward all the same.
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

// Functions that change a product in place, where the count of writes of the product itself sees it
// and where it does not: aten::_unsafe_view, unsafe_split and kernels of devices hide it.
TEST(Selection, AResultModifiedInPlaceIsComputedAgain) {
  const at::Tensor w = Random({4, 4}), b = Random({4});
  const std::vector<std::pair<const char*, std::function<at::Tensor(const at::Tensor&)>>> cases = {
      {"plain", [&](const at::Tensor& x) { return at::tanh(x[0].mm(w).add_(1)); }},
      {"linear of a transposed input",
       [&](const at::Tensor& x) { return at::tanh(at::linear(x.transpose(0, 1), w, b)); }},
      {"linear of a slice",
       [&](const at::Tensor& x) { return at::tanh(at::linear(x.slice(1, 0, 2), w, b)); }},
      {"linear of a vector with a stride",
       [&](const at::Tensor& x) {
         return at::tanh(at::linear(x.view({4, -1}).select(1, 1).exp(), w, b));
       }},
      {"a bias added to a product in three dimensions",
       [&](const at::Tensor& x) { return at::tanh(at::matmul(x, w).add_(b)); }},
      {"a product in four dimensions, scaled",
       [&](const at::Tensor& x) {
         const at::Tensor h = x.unsqueeze(0);
         return at::tanh(at::matmul(h, h.transpose(-1, -2)).mul_(0.5));
       }},
      {"parts of a product",
       [&](const at::Tensor& x) {
         const Tensors parts = at::matmul(x, w).unsafe_chunk(2, -1);
         return parts[0].sigmoid_() * parts[1].tanh_();
       }},
      {"within another operator",
       [&](const at::Tensor& x) {
         return at::tanh(at::cdist(x, x.exp(), 2, /*compute_mode=*/1));  // the one with a product
       }},
  };
  const Checkpoint checkpoint = Keeping({"aten::mm", "aten::bmm"});
  for (const auto& [name, f] : cases) {
    SCOPED_TRACE(name);
    const at::Tensor x = Random({2, 3, 4});
    const Tensors expected = GradientsOf(f(x), {x});
    const at::Tensor y = Call(checkpoint, f, x);

    EXPECT_TRUE(SameBits(GradientsOf(y, {x}, /*retain_graph=*/true), expected));
    EXPECT_TRUE(SameBits(GradientsOf(y, {x}), expected));
  }
  EXPECT_GT(checkpoint.stats().modified_results, 0);
}

// The memory of a result that is of no use is free as soon as forward has left the region.
TEST(Selection, AModifiedResultIsDroppedAndAnUnmodifiedOneIsKept) {
  const at::Tensor x = Random({64, 64});
  const auto kept = [&](const std::function<at::Tensor(const at::Tensor&)>& f) {
    at::Tensor y;
    return MemoryOf([&] { y = Call(Keeping({"aten::mm"}), f, x); }).kept;
  };

  const int64_t untouched = kept([](const at::Tensor& in) { return at::tanh(in.mm(in)); });
  const int64_t modified = kept([](const at::Tensor& in) { return at::tanh(in.mm(in).add_(1)); });

  EXPECT_EQ(untouched - modified, x.nbytes());
}

TEST(Selection, AResultModifiedAfterTheRegionIsComputedAgain) {
  const at::Tensor x = Random({2, 3, 4}), w = Random({4, 4});
  const Checkpoint checkpoint = Keeping({"aten::mm"});
  Tensors y = checkpoint(
      [&](const Tensors& in) {
        const at::Tensor product = at::matmul(in[0], w);
        return Tensors{product, at::tanh(product.detach() * in[0])};
      },
      {x});
  const Tensors expected = GradientsOf(at::tanh(at::matmul(x, w).detach() * x), {x});

  y[0].mul_(2);

  EXPECT_TRUE(SameBits(GradientsOf(y[1], {x}), expected));
  EXPECT_EQ(checkpoint.stats().modified_results, 1);
}

// The gradient within the function recomputes before forward has ended. Without an early stop that
// recomputation goes on to calls that forward has not made yet.
TEST(Selection, AGradientWithinTheFunctionIsThatOfThePlainGraph) {
  const Layer net(4);
  const at::Tensor x = Random({3, 4});
  for (const bool create_graph : {false, true}) {
    const auto f = [&](const at::Tensor& in) {
      const at::Tensor y = at::tanh(net(in));
      const at::Tensor slope = torch::autograd::grad({y.sum()}, {in}, {}, true, create_graph)[0];
      return at::tanh(y + net(slope));
    };
    const Tensors expected = GradientsOf(f(x), {x});
    for (const bool early_stop : {true, false}) {
      for (const char* kept : {"aten::mm", "aten::addmm", "aten::tanh", "aten::tanh_backward"}) {
        const Checkpoint checkpoint({.early_stop = early_stop, .save = Selection::Of({kept})});

        EXPECT_TRUE(SameBits(GradientsOf(Call(checkpoint, f, x), {x}), expected))
            << kept << ", early stop " << early_stop << ", create_graph " << create_graph;
      }
    }
  }
}

TEST(Selection, MoreCallsThanInForwardAreAnError) {
  const at::Tensor x = Random({4, 4});
  int pass = 0;
  const Checkpoint checkpoint({.early_stop = false, .save = Selection::Of({"aten::mm"})});
  const at::Tensor y = Call(
      checkpoint,
      [&](const at::Tensor& in) { return at::tanh(pass++ == 0 ? in.mm(in) : in.mm(in).mm(in)); },
      x);

  EXPECT_THAT(MessageOf([&] { GradientsOf(y, {x}); }), HasSubstr("calls aten::mm more often"));
}

TEST(Selection, OutsideOfARegionOperatorsDoNotChange) {
  Keeping({"aten::mm"});
  const at::Tensor x = Random({3, 3});

  EXPECT_TRUE(at::equal(at::mm(x, x), x.matmul(x)));
}

TEST(Selection, NamesOfNoUseAreRefused) {
  const auto message = [](const std::string& name) {
    return MessageOf([&] { Selection::Of({name}); });
  };

  EXPECT_THAT(message("aten::matmull"), HasSubstr("there is no operator \"aten::matmull\""));
  EXPECT_THAT(message("aten::matmul"), HasSubstr("name those (aten::mm"));
  EXPECT_THAT(message("aten::add_"), HasSubstr("writes into its arguments"));
  EXPECT_THAT(message("aten::transpose.int"), HasSubstr("returns a view"));
  EXPECT_THAT(MessageOf([] { Selection::Of({}); }), HasSubstr("at least one"));
}

}  // namespace
}  // namespace lockstep::checkpoint
