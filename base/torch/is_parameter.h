// Tells parameters, and views of parameters, from activations.

#ifndef LOCKSTEP_BASE_TORCH_IS_PARAMETER_H_
#define LOCKSTEP_BASE_TORCH_IS_PARAMETER_H_

#include "ATen/core/TensorBody.h"

namespace lockstep::base {

// Returns whether `tensor` is a parameter: a leaf of the graph that requires a gradient.
inline bool IsParameter(const at::TensorBase& tensor) {
  return tensor.is_leaf() && tensor.requires_grad();
}

// Returns whether `tensor` is a parameter, or a view of one: a transposed weight, a row of an
// embedding.
inline bool IsOfParameter(const at::TensorBase& tensor) {
  return IsParameter(tensor) || (tensor.is_view() && IsParameter(tensor._base()));
}

}  // namespace lockstep::base

#endif  // LOCKSTEP_BASE_TORCH_IS_PARAMETER_H_
