// Results of a function of tensors, and their gradients, for tests that compare two functions.

#ifndef LOCKSTEP_TESTS_SUPPORT_RESULTS_H_
#define LOCKSTEP_TESTS_SUPPORT_RESULTS_H_

#include <functional>
#include <vector>

#include "ATen/ATen.h"
#include "torch/csrc/autograd/autograd.h"

namespace lockstep::tests {

using Tensors = std::vector<at::Tensor>;

inline Tensors Leaves(Tensors inputs, at::ScalarType dtype) {
  for (at::Tensor& x : inputs) x = x.detach().to(dtype).clone().requires_grad_(true);
  return inputs;
}

// Returns a number that depends on each floating-point element in its own way.
inline at::Tensor Mixed(const Tensors& tensors) {
  at::Tensor sum = at::zeros({}, at::kDouble);
  for (const at::Tensor& x : tensors) {
    if (!at::isFloatingType(x.scalar_type())) continue;
    // Each dtype has these numbers, so that a gradient is not rounded before it is read.
    const at::Tensor factors = at::arange(x.numel(), at::kFloat).add(1).sin().to(at::kBFloat16);
    sum = sum + (x.to(at::kDouble) * factors.to(at::kDouble).view(x.sizes())).sum();
  }
  return sum;
}

// Returns the results, then the gradients of Mixed(results). The gradient of an input that takes no
// part is undefined.
inline Tensors Results(const std::function<Tensors(const Tensors&)>& function,
                       const Tensors& leaves) {
  Tensors results = function(leaves);
  const Tensors gradients =
      torch::autograd::grad({Mixed(results)}, leaves, {}, /*retain_graph=*/false,
                            /*create_graph=*/false, /*allow_unused=*/true);
  results.insert(results.end(), gradients.begin(), gradients.end());
  return results;
}

}  // namespace lockstep::tests

#endif  // LOCKSTEP_TESTS_SUPPORT_RESULTS_H_
