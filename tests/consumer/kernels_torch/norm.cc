// Another project's program: a fused norm of @lockstep//kernels:torch, next to ATen's operators.

#include <cstdio>

#include "ATen/core/TensorBody.h"
#include "ATen/ops/allclose.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/randn.h"
#include "lockstep/kernels/kernels.h"

int main() {
  const at::Tensor x = at::randn({5, 64}), weight = at::ones({64});

  const at::Tensor y = lockstep::kernels::RmsNorm(x, weight, 1e-6);

  const at::Tensor expected = x.div(x.square().mean(-1, true).add(1e-6).sqrt()).mul(weight);
  std::printf("%s values\n", at::allclose(y, expected, 1e-5, 1e-6) ? "the same" : "OTHER");
  return 0;
}
