// The relative error of a tensor, for tests.

#ifndef LOCKSTEP_TESTS_SUPPORT_RELATIVE_ERROR_H_
#define LOCKSTEP_TESTS_SUPPORT_RELATIVE_ERROR_H_

#include "ATen/core/Tensor.h"

namespace lockstep::tests {

// Returns ||actual - truth|| / ||truth|| in float64, or only the numerator if the truth is zero or
// empty.
inline double RelativeError(const at::Tensor& actual, const at::Tensor& truth) {
  const at::Tensor wide = truth.to(at::kDouble);
  const double norm = wide.norm().item<double>();
  return (actual.to(at::kDouble) - wide).norm().item<double>() / (norm == 0 ? 1 : norm);
}

}  // namespace lockstep::tests

#endif  // LOCKSTEP_TESTS_SUPPORT_RELATIVE_ERROR_H_
