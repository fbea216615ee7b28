// Tests bodies that break the rules, and operations on outputs. Each gives one clear error, or the
// result of the untiled function.

#include <memory>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/message_of.h"
#include "tiled_mlp/mlp.h"
#include "tiled_mlp/testing/test_bodies.h"
#include "tiled_mlp/tiled.h"
#include "torch/csrc/autograd/autograd.h"

namespace lockstep::tiled_mlp {
namespace {

using ::testing::HasSubstr;
using tests::MessageOf;

const TileOptions kThree = {.size = {.num_tiles = 3}};

void ExpectContains(const std::string& error, const std::string& part) {
  EXPECT_THAT(error, HasSubstr(part));
}

// Calls `change` in the tile numbered `at`, counted over forward and backward.
TileBody ChangedAt(int at, std::vector<at::Tensor> (*change)(const at::Tensor&)) {
  auto count = std::make_shared<int>(0);
  return [=](const at::Tensor& tile, at::TensorList w) {
    if (++*count == at) return change(tile);
    return std::vector{at::linear(tile, w[0]), tile * 2};
  };
}

TEST(RunTiledMisuse, AnInputChangedInPlaceIsNamedInForward) {
  const at::Tensor x = RandomWeight({9, 6}), w = RandomWeight({6, 6});
  const TileBody changes_tile = [](const at::Tensor& tile, at::TensorList) {
    const at::Tensor same = tile;
    return std::vector{same.mul_(2)};
  };
  const TileBody changes_weight = [](const at::Tensor& tile, at::TensorList weights) {
    const at::Tensor same = weights[0];
    return std::vector{at::linear(tile, same.mul_(2))};
  };

  ExpectContains(MessageOf([&] { RunTiled(changes_tile, x * 1, {w}, kThree); }),
                 "changes its tile of x in place");
  ExpectContains(MessageOf([&] { RunTiled(changes_weight, x, {w * 1}, kThree); }),
                 "changes weight 0 in place");
}

TEST(RunTiledMisuse, ADifferentResultInBackwardIsNamed) {
  const at::Tensor x = RandomWeight({9, 6}), w = RandomWeight({6, 6});
  const auto error_of = [&](std::vector<at::Tensor> (*change)(const at::Tensor&)) {
    return MessageOf([&] {
      const std::vector<at::Tensor> y = RunTiled(ChangedAt(5, change), x, {w}, kThree);
      (y[0].sum() + y[1].sum()).backward();
    });
  };

  ExpectContains(error_of([](const at::Tensor& tile) { return std::vector{tile}; }),
                 "2 tensors for the first tile and 1 for tile 2 in backward");
  ExpectContains(error_of([](const at::Tensor& tile) {
                   return std::vector{at::cat({tile, tile}, 1), tile};
                 }),
                 "row of output 0 of the function is Double [12] for tile 2 in backward, but "
                 "Double [6] for the first tile");
  ExpectContains(error_of([](const at::Tensor& tile) {
                   return std::vector{tile, tile.to(at::kFloat)};
                 }),
                 "row of output 1 of the function is Float [6] for tile 2 in backward, but Double");
}

TEST(RunTiledMisuse, AnInputChangedInPlaceIsNamedWhereNothingIsTiledToo) {
  const at::Tensor x = RandomWeight({9, 6}), w = RandomWeight({6, 6});
  const TileBody changes_tile = [](const at::Tensor& tile, at::TensorList) {
    const at::Tensor same = tile;
    return std::vector{same.mul_(2)};
  };
  const TileBody changes_weight = [](const at::Tensor& tile, at::TensorList weights) {
    const at::Tensor same = weights[0];
    return std::vector{at::linear(tile, same.mul_(2))};
  };

  ExpectContains(MessageOf([&] { RunTiled(changes_tile, x * 1, {w}, {}); }),
                 "changes its tile of x in place");
  ExpectContains(MessageOf([&] { RunTiled(changes_weight, x, {w * 1}, {}); }),
                 "changes weight 0 in place");
}

// Untiled too: else a script that was tried on short sequences fails on the first long one.
TEST(RunTiledMisuse, AWeightFromElsewhereIsAnErrorAtEveryLength) {
  const at::Tensor x = RandomWeight({9, 6}), w = RandomWeight({6, 6}), other = RandomWeight({5, 6});
  const at::Tensor made = other * 2, from_other = at::linear(x, other).repeat({1, 2});
  const struct {
    const char* name;
    at::Tensor x;
    std::vector<at::Tensor> weights;
    TileBody body;
    const char* shape;
  } kCases[] = {
      {"a weight",
       x,
       {w},
       [&](const auto& t, auto w) { return std::vector{at::linear(t, w[0] + other[0])}; },
       "[5, 6]"},
      {"what was made of a weight",
       x,
       {w},
       [&](const auto& t, auto w) { return std::vector{at::linear(t, w[0]) * made[0]}; },
       "[5, 6]"},
      {"a weight that is given as well",
       x,
       {w},
       [&](const auto& t, auto given) { return std::vector{at::linear(t, given[0]) + w[0]}; },
       "[6, 6]"},
      {"where x comes from it",
       from_other,
       {},
       [&](const auto& t, auto) { return std::vector{t.narrow(1, 0, 6) * other[0]}; },
       "[5, 6]"},
      {"where nothing else is trained",
       x.detach(),
       {},
       [&](const auto& t, auto) { return std::vector{at::linear(t, other)}; },
       "[5, 6]"},
  };
  for (const auto& c : kCases) {
    for (const int64_t tiles : {0, 1, 3}) {  // 0: untiled
      SCOPED_TRACE(testing::Message() << c.name << ", " << tiles << " tiles");
      const std::string error = MessageOf([&] {
        const at::Tensor y = RunTiled(c.body, c.x, c.weights, {.size = {.num_tiles = tiles}})[0];
        y.sum().backward({}, /*retain_graph=*/true);
      });
      ExpectContains(error, "uses a tensor of shape " + std::string(c.shape) +
                                " that requires a gradient but is none of the weights given");
    }
  }
  EXPECT_FALSE(other.grad().defined());
}

TEST(RunTiledMisuse, ACapturedFrozenTensorIsNoMistake) {
  const at::Tensor x = RandomWeight({9, 6}), w = RandomWeight({6, 6}),
                   scale = at::randn({6}, at::kDouble);
  const TileBody body = [&](const at::Tensor& tile, at::TensorList weights) {
    return std::vector{at::linear(tile, weights[0]) * scale};
  };
  const at::Tensor truth =
      torch::autograd::grad({(at::linear(x, w) * scale).square().sum()}, {w})[0];
  for (const int64_t tiles : {0, 3}) {
    const at::Tensor y = RunTiled(body, x, {w}, {.size = {.num_tiles = tiles}})[0];
    const at::Tensor gradient = torch::autograd::grad({y.square().sum()}, {w})[0];
    EXPECT_LT((gradient - truth).abs().max().item<double>(), 1e-12);
  }
}

TEST(RunTiledMisuse, AWeightFromElsewhereInALaterTileAloneIsAnError) {
  const at::Tensor x = RandomWeight({9, 6}), w = RandomWeight({6, 6}), other = RandomWeight({6});
  int calls = 0;
  const TileBody body = [&](const at::Tensor& tile, at::TensorList weights) {
    const at::Tensor y = at::linear(tile, weights[0]);
    return std::vector{++calls % 3 == 2 ? y * other : y};
  };

  const at::Tensor y = RunTiled(body, x, {w}, kThree)[0];

  ExpectContains(MessageOf([&] { y.sum().backward(); }), "none of the weights given");
  EXPECT_FALSE(other.grad().defined());
}

TEST(RunTiledMisuse, AWeightOfTheTilesAroundIsAnErrorToo) {
  const at::Tensor x = RandomWeight({9, 6}), w = RandomWeight({6, 6});
  const TileBody outer = [](const at::Tensor& tile, at::TensorList weights) {
    const at::Tensor taken = weights[0];
    const TileBody inner = [taken](const at::Tensor& rows, at::TensorList) {
      return std::vector{at::linear(rows, taken)};
    };
    return RunTiled(inner, tile, {}, kThree);
  };
  const at::Tensor y = RunTiled(outer, x, {w}, kThree)[0];

  ExpectContains(MessageOf([&] { y.sum().backward(); }), "none of the weights given");
}

TEST(RunTiledMisuse, AnErrorInBackwardLeavesTheNextPassWhole) {
  const at::Tensor x = RandomWeight({9, 6}), w = RandomWeight({6, 6});
  int calls = 0;
  const TileBody body = [&](const at::Tensor& tile, at::TensorList weights) {
    TORCH_CHECK(++calls != 5, "fails in the second tile of backward");
    return std::vector{at::linear(tile, weights[0])};
  };
  const at::Tensor y = RunTiled(body, x, {w}, kThree)[0].sum();

  ExpectContains(MessageOf([&] { y.backward({}, /*retain_graph=*/true); }), "in tile 2 of 3");
  EXPECT_FALSE(w.grad().defined());
  y.backward();

  EXPECT_LT((w.grad() - x.sum(0).expand({6, 6})).abs().max().item<double>(), 1e-12);
}

TEST(RunTiledOutputs, MayBeModifiedInPlace) {
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{9, 6}, {3, 3, 6}, {6}}) {
    const at::Tensor x = RandomWeight(sizes), w = RandomWeight({6, 6});
    const TileBody body = [](const at::Tensor& tile, at::TensorList weights) {
      return std::vector{at::tanh(at::linear(tile, weights[0]))};
    };
    const std::vector<at::Tensor> truth =
        torch::autograd::grad({(at::tanh(at::linear(x, w)) + x).square().sum()}, {x, w});
    for (const int64_t tiles : {1, 3}) {
      const at::Tensor y = RunTiled(body, x, {w}, {.size = {.num_tiles = tiles}})[0];
      y.add_(x);
      const std::vector<at::Tensor> tiled = torch::autograd::grad({y.square().sum()}, {x, w});
      for (size_t i = 0; i < truth.size(); ++i)
        EXPECT_LT((tiled[i] - truth[i]).abs().max().item<double>(), 1e-12);
    }
    const at::Tensor z =
        RunTiledMlp(x, {.gate = {}, .up = w, .down = w}, Activation::kSilu, kThree);
    z.add_(x);
    EXPECT_TRUE(torch::autograd::grad({z.square().sum()}, {x})[0].defined());
  }
}

}  // namespace
}  // namespace lockstep::tiled_mlp
