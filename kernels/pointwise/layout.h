// The layout in memory of tensors that are broadcast together.

#ifndef LOCKSTEP_KERNELS_POINTWISE_LAYOUT_H_
#define LOCKSTEP_KERNELS_POINTWISE_LAYOUT_H_

#include <vector>

#include "ATen/core/TensorBody.h"
#include "c10/util/DimVector.h"
#include "c10/util/SmallVector.h"
#include "kernels/pointwise/interpreter.h"

namespace lockstep::kernels::pointwise {

// Dimensions that all inputs cross with one stride are one. strides[i] are those of input i.
struct Layout {
  at::DimVector sizes;
  c10::SmallVector<at::DimVector, 8> strides;
};

// Returns the layout of inputs that are broadcast to `shape`.
Layout LayoutOf(at::IntArrayRef shape, const std::vector<const at::Tensor*>& inputs);

Access AccessOf(const at::DimVector& sizes, const at::DimVector& strides);

}  // namespace lockstep::kernels::pointwise

#endif  // LOCKSTEP_KERNELS_POINTWISE_LAYOUT_H_
