// Allocates the result of an operator, which a kernel then writes.

#ifndef LOCKSTEP_BASE_TORCH_EMPTY_LIKE_H_
#define LOCKSTEP_BASE_TORCH_EMPTY_LIKE_H_

#include "ATen/core/TensorBody.h"
#include "ATen/ops/empty.h"

namespace lockstep::base {

// Returns a contiguous tensor with x's sizes and options, whatever x's strides are. at::empty_like
// keeps the order of x's strides. Sizes may be symbols, as torch.compile has them.
inline at::Tensor EmptyLike(const at::Tensor& x) {
  return at::empty_symint(x.sym_sizes(), x.options());
}

}  // namespace lockstep::base

#endif  // LOCKSTEP_BASE_TORCH_EMPTY_LIKE_H_
