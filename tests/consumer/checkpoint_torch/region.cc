// Another project's program: a region that runs again in backward, with
// @lockstep//checkpoint:torch.

#include <cstdio>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "ATen/ops/allclose.h"
#include "ATen/ops/randn.h"
#include "ATen/ops/tanh.h"
#include "lockstep/checkpoint/offload/host_offload.h"
#include "lockstep/checkpoint/region/checkpoint.h"

int main() {
  namespace checkpoint = lockstep::checkpoint;
  const at::Tensor x = at::randn({20, 8}, at::kDouble).requires_grad_();
  int runs = 0;
  const checkpoint::Checkpoint::Function layer = [&runs](const std::vector<at::Tensor>& inputs) {
    ++runs;
    return std::vector<at::Tensor>{at::tanh(at::tanh(inputs[0]))};
  };
  layer({x})[0].sum().backward();
  const at::Tensor expected = x.grad();
  x.mutable_grad() = at::Tensor();
  runs = 0;

  const checkpoint::Checkpoint region({.offload = checkpoint::HostOffload::New({})});
  region(layer, {x})[0].sum().backward();

  std::printf("%d runs, %s gradient\n", runs,
              at::allclose(x.grad(), expected) ? "the same" : "ANOTHER");
  return 0;
}
