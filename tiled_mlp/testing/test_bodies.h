// Token-wise functions for tests. Each is a case that tiled MLPs are known to get wrong.

#ifndef LOCKSTEP_TILED_MLP_TESTING_TEST_BODIES_H_
#define LOCKSTEP_TILED_MLP_TESTING_TEST_BODIES_H_

#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "tiled_mlp/tiled.h"

namespace lockstep::tiled_mlp {

struct TestCase {
  std::string name;
  TileBody body;
  at::Tensor x;                     // [100, 6], double
  std::vector<at::Tensor> weights;  // arguments of the body
  std::vector<at::Tensor> trained;  // the trained ones of these, each once
};

inline at::Tensor RandomWeight(at::IntArrayRef sizes) {
  return at::randn(sizes, at::kDouble).mul_(0.3).requires_grad_();
}

// A gated MLP. `seed` changes x and the gradient of its output; the weights are always the same.
inline TestCase Dense(int seed = 0) {
  at::manual_seed(1);
  const std::vector<at::Tensor> w = {RandomWeight({10, 6}), RandomWeight({10, 6}),
                                     RandomWeight({6, 10})};
  at::manual_seed(100 + seed);
  return {"dense",
          [](const at::Tensor& tile, at::TensorList w) {
            return std::vector{
                at::linear(at::silu(at::linear(tile, w[0])) * at::linear(tile, w[1]), w[2])};
          },
          at::randn({100, 6}, at::kDouble).requires_grad_(), w, w};
}

// Sends tokens with a positive first feature to the second expert too. These are the first five
// tokens, all in the first tile.
inline TestCase ExpertOfTheFirstTile(int seed = 0) {
  at::manual_seed(1);
  const std::vector<at::Tensor> w = {RandomWeight({6, 6}), RandomWeight({6, 6})};
  at::manual_seed(100 + seed);
  at::Tensor x = at::randn({100, 6}, at::kDouble);
  x.select(1, 0).fill_(-1).narrow(0, 0, 5).fill_(1);
  return {"expert used in the first tile only",
          [](const at::Tensor& tile, at::TensorList w) {
            const at::Tensor y = at::linear(tile, w[0]);
            const at::Tensor chosen = at::nonzero(tile.detach().select(1, 0) > 0).flatten();
            if (chosen.numel() == 0) return std::vector{y};
            const at::Tensor rows = tile.index_select(0, chosen);
            return std::vector{y.index_add(0, chosen, at::silu(at::linear(rows, w[1])))};
          },
          x.requires_grad_(), w, w};
}

inline TestCase FrozenInput(int seed = 0) {
  TestCase test = Dense(seed);
  test.name = "frozen input";
  test.x = test.x.detach();
  return test;
}

inline TestCase Lora(int seed = 0) {
  at::manual_seed(1);
  const at::Tensor frozen = RandomWeight({6, 6}).detach();
  const std::vector<at::Tensor> adapters = {RandomWeight({2, 6}), RandomWeight({6, 2})};
  at::manual_seed(100 + seed);
  return {"LoRA",
          [](const at::Tensor& tile, at::TensorList w) {
            return std::vector{at::linear(tile, w[0]) + at::linear(at::linear(tile, w[1]), w[2])};
          },
          at::randn({100, 6}, at::kDouble).requires_grad_(),
          {frozen, adapters[0], adapters[1]},
          adapters};
}

inline TestCase Tied(int seed = 0) {
  at::manual_seed(1);
  const at::Tensor w = RandomWeight({10, 6});
  at::manual_seed(100 + seed);
  return {"tied",
          [](const at::Tensor& tile, at::TensorList w) {
            return std::vector{at::linear(at::tanh(at::linear(tile, w[0])), w[1].t())};
          },
          at::randn({100, 6}, at::kDouble).requires_grad_(),
          {w, w},
          {w}};
}

}  // namespace lockstep::tiled_mlp

#endif  // LOCKSTEP_TILED_MLP_TESTING_TEST_BODIES_H_
