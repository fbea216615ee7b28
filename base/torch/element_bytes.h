// Views a tensor as bytes. A collective that only moves values sends bytes, because Gloo and NCCL
// lack some dtypes.

#ifndef LOCKSTEP_BASE_TORCH_ELEMENT_BYTES_H_
#define LOCKSTEP_BASE_TORCH_ELEMENT_BYTES_H_

#include "ATen/core/TensorBody.h"

namespace lockstep::base {

// Returns a view of the elements of a contiguous tensor: one dimension, uint8.
inline at::Tensor ElementBytes(const at::Tensor& dense) {
  return dense.view({dense.numel()}).view(at::kByte);
}

}  // namespace lockstep::base

#endif  // LOCKSTEP_BASE_TORCH_ELEMENT_BYTES_H_
