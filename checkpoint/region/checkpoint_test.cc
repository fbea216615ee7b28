#include "checkpoint/region/checkpoint.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "ATen/Context.h"
#include "ATen/autocast_mode.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/dropout.h"
#include "ATen/ops/equal.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/rand.h"
#include "ATen/ops/sigmoid.h"
#include "ATen/ops/tanh.h"
#include "ATen/ops/zeros.h"
#include "base/torch/versions/node.h"
#include "checkpoint/testing/fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/csrc/autograd/functions/utils.h"

namespace lockstep::checkpoint {
namespace {

using ::testing::HasSubstr;

TEST(Checkpoint, HeaderExample) {
  const Layer net(4);
  const auto layer = [&](const Tensors& in) { return Tensors{net(in[0])}; };
  const at::Tensor x = Random({2, 4});

  Checkpoint checkpoint;
  std::vector<at::Tensor> y = checkpoint(layer, {x});
  y[0].sum().backward();

  EXPECT_TRUE(x.grad().defined());
  EXPECT_EQ(checkpoint.stats().regions, 1);
  EXPECT_EQ(checkpoint.stats().recomputes, 1);
}

class BothWaysOfStopping : public ::testing::TestWithParam<bool> {
 protected:
  const Checkpoint checkpoint_{{.early_stop = GetParam()}};
};
INSTANTIATE_TEST_SUITE_P(EarlyStop, BothWaysOfStopping, ::testing::Bool());

TEST_P(BothWaysOfStopping, GradientsAreTheSameBits) {
  const Layer a(8), b(8);
  const at::Tensor x = Random({3, 8});
  Tensors leaves = a.weights();
  leaves.push_back(x);
  const Tensors expected = GradientsOf(b(a(x)), leaves);

  const at::Tensor y = Call(checkpoint_, b, Call(checkpoint_, a, x));

  EXPECT_TRUE(SameBits(GradientsOf(y, leaves), expected));
  EXPECT_EQ(checkpoint_.stats().recomputes, 2);
}

TEST_P(BothWaysOfStopping, SeveralOutputsShareOneRecomputation) {
  const at::Tensor x = Random({3, 8});
  const auto f = [](const Tensors& in) {
    return Tensors{at::tanh(in[0]), at::sigmoid(in[0]), in[0].detach()};
  };
  const Tensors plain = f({x});
  const Tensors expected = GradientsOf(at::cat({plain[0], plain[1]}), {x});

  const Tensors y = checkpoint_(f, {x});

  EXPECT_TRUE(SameBits(GradientsOf(at::cat({y[0], y[1]}), {x}), expected));
  EXPECT_EQ(checkpoint_.stats().recomputes, 1);
  EXPECT_FALSE(y[2].requires_grad());
}

TEST_P(BothWaysOfStopping, ASecondBackwardRecomputesAgain) {
  const Layer net(8);
  const at::Tensor x = Random({3, 8});
  const Tensors expected = GradientsOf(net(x), {x});

  const at::Tensor y = Call(checkpoint_, net, x);

  for (int backward = 1; backward <= 3; ++backward) {
    EXPECT_TRUE(SameBits(GradientsOf(y, {x}, /*retain_graph=*/backward < 3), expected));
    EXPECT_EQ(checkpoint_.stats().recomputes, backward);
  }
  EXPECT_THAT(MessageOf([&] { GradientsOf(y, {x}); }), HasSubstr("second time"));
}

TEST_P(BothWaysOfStopping, RegionsNestToAnyDepth) {
  const Layer net(4);
  const at::Tensor x = Random({2, 4});
  Tensors leaves = net.weights();
  leaves.push_back(x);
  for (int depth = 1; depth <= 4; ++depth) {
    for (const bool retain : {false, true}) {
      SCOPED_TRACE(testing::Message() << "depth " << depth << ", retain_graph " << retain);
      const std::function<at::Tensor(const at::Tensor&, int)> nest = [&](const at::Tensor& in,
                                                                         int levels) {
        const at::Tensor y = net(at::sigmoid(in));
        return levels == 0 ? y : at::tanh(nest(y, levels - 1));
      };
      const std::function<at::Tensor(const at::Tensor&, int)> nest_regions =
          [&](const at::Tensor& in, int levels) {
            return Call(
                checkpoint_,
                [&, levels](const at::Tensor& inner) {
                  const at::Tensor y = net(at::sigmoid(inner));
                  return levels == 0 ? y : at::tanh(nest_regions(y, levels - 1));
                },
                in);
          };
      const Tensors expected = GradientsOf(nest(x, depth), leaves);

      const at::Tensor y = nest_regions(x, depth);

      EXPECT_TRUE(SameBits(GradientsOf(y, leaves, retain), expected));
      if (retain) {
        EXPECT_TRUE(SameBits(GradientsOf(y, leaves), expected));
      }
    }
  }
}

// The outer region recomputes the input that an inner region saved, so the outer function runs
// first. If it stops early, it stops at that input, and the inner one runs once.
TEST_P(BothWaysOfStopping, TheOuterFunctionRunsFirstAndEachOnlyOnce) {
  const at::Tensor x = Random({4});
  std::string runs;
  const auto inner = [&](const at::Tensor& in) {
    runs += "i";
    return at::tanh(in);
  };
  const at::Tensor y = Call(
      checkpoint_,
      [&](const at::Tensor& in) {
        runs += "o";
        return Call(checkpoint_, inner, at::sigmoid(in));
      },
      x);
  runs += " ";

  GradientsOf(y, {x});

  EXPECT_EQ(runs, GetParam() ? "oi oi" : "oi oii");
  EXPECT_EQ(checkpoint_.stats().recomputes, 2);
}

TEST_P(BothWaysOfStopping, TwoRegionsWithinOne) {
  const Layer a(4), b(4), c(4);
  const at::Tensor x = Random({2, 4});
  const Tensors expected = GradientsOf(c(b(a(x))), {x});

  const at::Tensor y = Call(
      checkpoint_,
      [&](const at::Tensor& in) { return c(Call(checkpoint_, b, Call(checkpoint_, a, in))); }, x);

  EXPECT_TRUE(SameBits(GradientsOf(y, {x}), expected));
}

TEST_P(BothWaysOfStopping, BackwardWithinTheRegion) {
  const Layer net(4);
  const at::Tensor x = Random({2, 4});
  const auto f = [&](const at::Tensor& in) {
    const at::Tensor y = net(in);
    const at::Tensor slope = torch::autograd::grad({(y * y).sum()}, {in}, {}, true)[0];
    return at::tanh(y) * slope;
  };
  const Tensors expected = GradientsOf(f(x), {x});

  const at::Tensor y = Call(checkpoint_, f, x);

  EXPECT_TRUE(SameBits(GradientsOf(y, {x}), expected));
}

TEST_P(BothWaysOfStopping, BackwardThroughARegionWithinAnother) {
  const Layer net(4);
  const at::Tensor x = Random({2, 4});
  const auto f = [&](const at::Tensor& in, bool region) {
    const at::Tensor y = region ? Call(checkpoint_, net, in) : net(in);
    const at::Tensor slope = torch::autograd::grad({(y * y).sum()}, {in}, {}, true)[0];
    return at::tanh(y) * slope;
  };
  const Tensors expected = GradientsOf(f(x, false), {x});

  const at::Tensor y = Call(
      checkpoint_, [&](const at::Tensor& in) { return f(in, true); }, x);

  EXPECT_TRUE(SameBits(GradientsOf(y, {x}), expected));
}

TEST_P(BothWaysOfStopping, SecondDerivatives) {
  const Layer net(4);
  const at::Tensor x = Random({2, 4});
  const auto penalty = [&](const at::Tensor& y) {
    return torch::autograd::grad({y.sum()}, {x}, {}, true, /*create_graph=*/true)[0];
  };
  const Tensors expected = GradientsOf(penalty(net(x)), {x});

  EXPECT_TRUE(SameBits(GradientsOf(penalty(Call(checkpoint_, net, x)), {x}), expected));
}

TEST_P(BothWaysOfStopping, FrozenInputsAndFrozenWeights) {
  const Layer frozen(4), trained(4);
  for (const at::Tensor& w : frozen.weights()) w.set_requires_grad(false);
  const at::Tensor x = Random({2, 4}, false);
  const Tensors expected = GradientsOf(trained(frozen(x)), trained.weights());

  const at::Tensor y = Call(checkpoint_, trained, Call(checkpoint_, frozen, x));

  EXPECT_TRUE(SameBits(GradientsOf(y, trained.weights()), expected));
}

TEST_P(BothWaysOfStopping, DropoutDrawsTheSameMasksAndTheAmbientStateIsUntouched) {
  const Layer net(8);
  const at::Tensor x = Random({3, 8});
  const auto f = [&](const at::Tensor& in) {
    return at::dropout(net(at::dropout(in, 0.5, true)), 0.5, true);
  };
  const auto run = [&](bool region, Tensors* next) {
    at::manual_seed(7);
    const at::Tensor y = region ? Call(checkpoint_, f, x) : f(x);
    next->push_back(at::rand({4}));
    const Tensors gradients = GradientsOf(y, {x});
    next->push_back(at::rand({4}));
    return gradients;
  };
  Tensors drawn, drawn_plainly;

  EXPECT_TRUE(SameBits(run(true, &drawn), run(false, &drawn_plainly)));

  EXPECT_TRUE(SameBits(drawn, drawn_plainly));
}

TEST(Checkpoint, WithoutPreserveRngMasksDiffer) {
  const at::Tensor x = Random({1000});
  const Checkpoint checkpoint({.preserve_rng = false});

  const at::Tensor y = Call(
      checkpoint, [](const at::Tensor& in) { return at::dropout(in, 0.5, true); }, x);
  torch::autograd::backward({y.sum()});

  EXPECT_FALSE(at::equal(x.grad() == 0, y == 0));
}

TEST_P(BothWaysOfStopping, AutocastIsReplayed) {
  const at::Tensor w = at::ones({4, 4}).set_requires_grad(true);
  const at::Tensor x = at::rand({2, 4}).set_requires_grad(true);
  const auto f = [&](const at::Tensor& in) { return at::tanh(in.matmul(w)); };
  const auto run = [&](bool region) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::increment_nesting();
    const at::Tensor y = region ? Call(checkpoint_, f, x) : f(x);
    at::autocast::decrement_nesting();
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    return GradientsOf(y, {x, w});
  };

  EXPECT_TRUE(SameBits(run(true), run(false)));
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
}

TEST_P(BothWaysOfStopping, WithGradientsOffTheRegionJustRuns) {
  const Layer net(4);
  const at::Tensor x = Random({2, 4});
  const at::NoGradGuard no_grad;

  const at::Tensor y = Call(checkpoint_, net, x);

  EXPECT_FALSE(y.requires_grad());
  EXPECT_EQ(checkpoint_.stats().regions, 0);
}

TEST(Checkpoint, TheTailThatSavesNothingIsNotRecomputed) {
  const at::Tensor x = Random({4});
  int tails = 0;
  const auto f = [&](const at::Tensor& in) {
    const at::Tensor y = at::tanh(in);
    ++tails;
    return y + 1;
  };

  torch::autograd::backward({Call(Checkpoint(), f, x).sum()});

  EXPECT_EQ(tails, 1);
}

TEST(Checkpoint, TensorsSavedForAnUnusedOutputAreNotRecomputed) {
  const at::Tensor x = Random({4});
  int tails = 0;
  Tensors y = Checkpoint()(
      [&](const Tensors& in) {
        const at::Tensor used = at::tanh(in[0]);
        ++tails;
        return Tensors{used, at::sigmoid(in[0])};
      },
      {x});

  y[1] = at::Tensor();
  torch::autograd::backward({y[0].sum()});

  EXPECT_EQ(tails, 1);
}

// A node of its own that saves its input before it computes: early stop spares the computation.
TEST(Checkpoint, ANodeThatSavesBeforeItComputesIsNotComputedAgain) {
  static int computed = 0;
  struct Square : public torch::autograd::Node {
    torch::autograd::SavedVariable input;
    Tensors apply(Tensors&& gradients) override { return {2 * gradients[0] * input.unpack()}; }
  };
  const auto square = [](const at::Tensor& in) {
    const auto node = base::MakeNode<Square>();
    node->set_next_edges(torch::autograd::collect_next_edges(in));
    node->input = torch::autograd::SavedVariable(in, false);
    ++computed;
    const at::NoGradGuard no_grad;
    at::Tensor y = in * in;
    torch::autograd::set_history(y, node);
    return y;
  };
  const at::Tensor x = Random({4});
  computed = 0;

  torch::autograd::backward({Call(Checkpoint(), square, x).sum()});

  EXPECT_EQ(computed, 1);
  EXPECT_TRUE(at::equal(x.grad(), 2 * x.detach()));
}

TEST_P(BothWaysOfStopping, ExceptionsLeaveForwardAndBackwardAndNothingIsLeftBehind) {
  const Layer net(4);
  const at::Tensor x = Random({2, 4});
  bool fails = true;
  const auto f = [&](const at::Tensor& in) {
    const at::Tensor y = net(in);
    if (fails) throw std::runtime_error("disk on fire");
    return at::tanh(y);
  };

  EXPECT_EQ(MessageOf([&] { Call(checkpoint_, f, x); }), "disk on fire");
  fails = false;
  const at::Tensor y = Call(checkpoint_, f, x);
  fails = true;
  const at::Tensor before = at::rand({2});  // a failed recomputation puts generators back, too
  EXPECT_EQ(MessageOf([&] { GradientsOf(y, {x}, true); }), "disk on fire");
  fails = false;

  EXPECT_TRUE(SameBits(GradientsOf(y, {x}), GradientsOf(at::tanh(net(x)), {x})));
  EXPECT_EQ(MemoryOf([&] { Call(checkpoint_, f, x); }).kept, 0);
}

// Code that keeps the stop from leaving costs time, not correctness.
TEST(Checkpoint, AFunctionThatCatchesTheStopStillGivesItsTensors) {
  const at::Tensor x = Random({4});
  const at::Tensor y = Call(
      Checkpoint(),
      [](const at::Tensor& in) {
        try {
          return at::tanh(in);
        } catch (const std::exception&) {
          return in * 1;
        }
      },
      x);

  EXPECT_TRUE(SameBits(GradientsOf(y, {x}), GradientsOf(at::tanh(x), {x})));
}

TEST(Checkpoint, TwoModelsInterleaved) {
  const Layer a(4), b(4);
  const at::Tensor x = Random({2, 4});
  const Tensors expected_a = GradientsOf(a(x), a.weights());
  const Tensors expected_b = GradientsOf(b(x), b.weights());
  const Checkpoint checkpoint;

  const at::Tensor ya = Call(checkpoint, a, x);
  const at::Tensor yb = Call(checkpoint, b, x);

  EXPECT_TRUE(SameBits(GradientsOf(ya, a.weights()), expected_a));
  EXPECT_TRUE(SameBits(GradientsOf(Call(checkpoint, a, x), a.weights()), expected_a));
  EXPECT_TRUE(SameBits(GradientsOf(yb, b.weights()), expected_b));
}

TEST(Checkpoint, RegionsOnSeveralThreads) {
  const Checkpoint checkpoint;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&checkpoint] {
      const Layer net(8);
      const at::Tensor x = Random({3, 8});
      const Tensors expected = GradientsOf(net(x), {x});
      for (int step = 0; step < 50; ++step)
        EXPECT_TRUE(SameBits(GradientsOf(Call(checkpoint, net, x), {x}), expected));
    });
  for (std::thread& thread : threads) thread.join();

  EXPECT_EQ(checkpoint.stats().recomputes, 200);
}

// Two backward calls of one graph at the same time: each has a recomputation of its own.
TEST(Checkpoint, BackwardOfOneGraphOnSeveralThreads) {
  const Layer net(8);
  const at::Tensor x = Random({3, 8});
  const Checkpoint checkpoint;
  const at::Tensor y = Call(
      checkpoint, [&](const at::Tensor& in) { return net(Call(checkpoint, net, in)); }, x);
  const auto gradient = [&] {
    return torch::autograd::grad({y.sum()}, {x}, {}, /*retain_graph=*/true);
  };
  const Tensors expected = gradient();

  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int step = 0; step < 20; ++step) EXPECT_TRUE(SameBits(gradient(), expected));
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(Checkpoint, UndefinedAndIntegerInputsPassThrough) {
  const at::Tensor x = Random({4});
  const at::Tensor index = at::zeros({2}, at::kLong);
  const Tensors y = Checkpoint()(
      [](const Tensors& in) {
        EXPECT_FALSE(in[1].defined());
        return Tensors{at::tanh(in[0].index_select(0, in[2]))};
      },
      {x, at::Tensor(), index});

  EXPECT_TRUE(
      SameBits(GradientsOf(y[0], {x}), GradientsOf(at::tanh(x.index_select(0, index)), {x})));
}

}  // namespace
}  // namespace lockstep::checkpoint
