#include "tiled_mlp/leaves.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/cpu_memory.h"
#include "tiled_mlp/tiled.h"
#include "torch/csrc/autograd/autograd.h"

namespace lockstep::tiled_mlp {
namespace {

using ::testing::HasSubstr;

TEST(LeavesMemory, BesideTheSumsOneShareIsHeldAtATime) {
  constexpr int64_t kSize = 256, kBytes = kSize * kSize * 4;
  std::vector<at::Tensor> weights;
  for (int i = 0; i < 6; ++i)
    weights.push_back(at::eye(kSize, at::kFloat).contiguous().requires_grad_());
  const TileBody chain = [](const at::Tensor& tile, at::TensorList w) {
    at::Tensor h = tile;
    for (const at::Tensor& weight : w) h = at::linear(h, weight);
    return std::vector{h};
  };
  const at::Tensor x = at::ones({8, kSize}).requires_grad_();

  const tests::Memory tiled = tests::MemoryOf([&] {
    const at::Tensor y = RunTiled(chain, x, weights, {.size = {.num_tiles = 4}})[0];
    torch::autograd::grad({y.sum()}, weights);
  });

  EXPECT_LT(tiled.peak, (6 + 1 + 0.5) * kBytes);
  EXPECT_GE(tiled.peak, (6 + 1) * kBytes);
}

TEST(LeavesMemory, OfManyStepsIsFlat) {
  const at::Tensor w = at::ones({16, 16}).requires_grad_(), x = at::ones({40, 16}).requires_grad_();
  const auto step = [&] {
    const TileBody body = [](const at::Tensor& tile, at::TensorList weights) {
      return std::vector{at::silu(at::linear(tile, weights[0]))};
    };
    RunTiled(body, x, {w}, {.size = {.num_tiles = 4}})[0].sum().backward();
  };
  step();

  const tests::Memory later = tests::MemoryOf([&] {
    for (int i = 0; i < 200; ++i) step();
  });

  EXPECT_EQ(later.kept, 0);
}

TEST(Leaves, HandTheirGradientOverBeforeOlderNodesRun) {
  std::vector<char> order;
  const at::Tensor x = at::ones({3}).requires_grad_();
  x.register_hook([&](const at::Tensor&) { order.push_back('x'); });
  const at::Tensor weight = at::ones({3}).requires_grad_();
  weight.register_hook([&](const at::Tensor&) { order.push_back('!'); });
  at::Tensor gradient;

  const at::Tensor h = x * 1;  // older than the product
  const Leaves leaves;
  const at::Tensor leaf = leaves.On(weight, [&](at::Tensor g) {
    gradient = std::move(g);
    order.push_back('w');
  });
  (h * leaf).sum().backward();

  EXPECT_EQ(order, (std::vector<char>{'w', 'x'}));  // and no hook of the weight itself
  EXPECT_TRUE(at::equal(gradient, at::ones({3})));
  EXPECT_FALSE(weight.grad().defined());
}

TEST(Leaves, AreDeadAfterTheirBackward) {
  const at::Tensor x = at::ones({6, 3}).requires_grad_(), w = at::ones({3, 3}).requires_grad_();
  at::Tensor kept;
  const TileBody body = [&](const at::Tensor& tile, at::TensorList weights) {
    if (at::GradMode::is_enabled()) kept = tile * weights[0].sum();
    return std::vector{at::linear(tile, weights[0])};
  };
  RunTiled(body, x, {w}, {.size = {.num_tiles = 2}})[0].sum().backward();
  const at::Tensor gradient = w.grad().clone();

  std::string error = "none";
  try {
    kept.sum().backward();
  } catch (const c10::Error& caught) {
    error = caught.what_without_backtrace();
  }

  EXPECT_THAT(error, HasSubstr("a tensor that the function kept of a tile"));
  EXPECT_TRUE(at::equal(w.grad(), gradient));
}

TEST(WeightGradient, TakesTheFirstShareAsItIs) {
  WeightGradient sum(at::zeros({2}), /*accumulate_fp32=*/false);
  at::Tensor share = at::ones({2});
  const void* const memory = share.data_ptr();

  sum.Add(std::move(share));
  sum.Add(at::ones({2}));

  const at::Tensor total = sum.Take(/*zeros=*/false);
  EXPECT_EQ(total.data_ptr(), memory);
  EXPECT_TRUE(at::equal(total, at::full({2}, 2.0)));
}

TEST(WeightGradient, DoesNotChangeAShareThatIsHeldElsewhere) {
  WeightGradient sum(at::zeros({2}), /*accumulate_fp32=*/false);
  const at::Tensor share = at::ones({2});

  sum.Add(share);
  sum.Add(share);

  EXPECT_TRUE(at::equal(share, at::ones({2})));
  EXPECT_TRUE(at::equal(sum.Take(false), at::full({2}, 2.0)));
}

}  // namespace
}  // namespace lockstep::tiled_mlp
