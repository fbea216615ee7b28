// Derivatives by differences, for tests of gradients.

#ifndef LOCKSTEP_TESTS_SUPPORT_FINITE_DIFFERENCES_H_
#define LOCKSTEP_TESTS_SUPPORT_FINITE_DIFFERENCES_H_

#include <functional>

#include "ATen/core/Tensor.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/empty_like.h"

namespace lockstep::tests {

// Returns (f with x[i] + step - f with x[i] - step) / (2 step) for each element of x. Moves x, a
// contiguous float64 tensor that f reads, in place and puts it back.
inline at::Tensor FiniteDifferences(const std::function<at::Tensor()>& f, const at::Tensor& x,
                                    double step) {
  const at::NoGradGuard no_grad;
  at::Tensor result = at::empty_like(x);
  const at::Tensor flat = x.view(-1), differences = result.view(-1);
  for (int64_t i = 0; i < x.numel(); ++i) {
    const double before = flat[i].item<double>();
    flat[i] = before + step;
    const double above = f().item<double>();
    flat[i] = before - step;
    const double below = f().item<double>();
    flat[i] = before;
    differences[i] = (above - below) / (2 * step);
  }
  return result;
}

}  // namespace lockstep::tests

#endif  // LOCKSTEP_TESTS_SUPPORT_FINITE_DIFFERENCES_H_
