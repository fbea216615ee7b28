// Another project's program: an MLP in tiles of a sequence with @lockstep//tiled_mlp:torch, and how
// often each weight's gradient arrives.

#include <cstdio>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "ATen/ops/linear.h"
#include "ATen/ops/randn.h"
#include "ATen/ops/silu.h"
#include "lockstep/tiled_mlp/tiled.h"

int main() {
  namespace tiled_mlp = lockstep::tiled_mlp;
  const at::Tensor x = at::randn({2, 50, 16}, at::kDouble).requires_grad_();
  std::vector<at::Tensor> weights = {at::randn({40, 16}, at::kDouble).requires_grad_(),
                                     at::randn({16, 40}, at::kDouble).requires_grad_()};
  const tiled_mlp::TileBody mlp = [](const at::Tensor& tile, at::TensorList w) {
    return std::vector<at::Tensor>{at::linear(at::silu(at::linear(tile, w[0])), w[1])};
  };

  std::vector<int> arrivals(weights.size());
  std::vector<at::Tensor> untiled;
  mlp(x, weights)[0].sum().backward();
  for (at::Tensor& weight : weights) {
    untiled.push_back(weight.grad());
    weight.mutable_grad() = at::Tensor();
  }
  for (size_t i = 0; i < weights.size(); ++i)
    weights[i].register_hook([&arrivals, i](const at::Tensor&) { ++arrivals[i]; });
  tiled_mlp::RunTiled(mlp, x, weights, {.size = {.num_tiles = 4}})[0].sum().backward();

  for (size_t i = 0; i < weights.size(); ++i) {
    const bool same = weights[i].grad().allclose(untiled[i], 1e-12, 1e-12);
    std::printf("weight %d: %d arrival, %s gradient\n", static_cast<int>(i), arrivals[i],
                same ? "the same" : "ANOTHER");
  }
  return 0;
}
