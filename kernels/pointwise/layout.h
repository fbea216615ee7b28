// The layout in memory of tensors that are broadcast together.

#ifndef LOCKSTEP_KERNELS_POINTWISE_LAYOUT_H_
#define LOCKSTEP_KERNELS_POINTWISE_LAYOUT_H_

#include <vector>

#include "ATen/core/TensorBody.h"
#include "c10/util/DimVector.h"
#include "c10/util/SmallVector.h"
#include "kernels/pointwise/interpreter.h"
#include "kernels/pointwise/program.h"

namespace lockstep::kernels::pointwise {

// Dimensions that all inputs cross with one stride are one. strides[i] are those of input i.
struct Layout {
  at::DimVector sizes;
  c10::SmallVector<at::DimVector, 8> strides;
};

// Returns the layout of inputs that are broadcast to `shape`.
Layout LayoutOf(at::IntArrayRef shape, const std::vector<const at::Tensor*>& inputs);

Access AccessOf(const at::DimVector& sizes, const at::DimVector& strides);

// Returns the size of the last dimension, 1 for a tensor without dimensions.
int64_t LengthOf(at::IntArrayRef shape);

// Returns the shape with a last dimension of size 1.
at::DimVector ShapeOfRows(at::IntArrayRef shape);

// The memory of a call's tensors. It points into the tensors and into itself, so it is not copied.
class CallMemory {
 public:
  // Inputs of rows are broadcast to ShapeOfRows(shape), the others to `shape`. Results are
  // contiguous.
  CallMemory(const Program& program, at::IntArrayRef shape, at::TensorList inputs,
             at::TensorList results);
  CallMemory(const CallMemory&) = delete;
  CallMemory& operator=(const CallMemory&) = delete;

  at::ArrayRef<InputMemory> inputs() const { return inputs_; }
  at::ArrayRef<ResultMemory> results() const { return results_; }

 private:
  Layout elements_, rows_;
  c10::SmallVector<InputMemory, 8> inputs_;
  c10::SmallVector<ResultMemory, 4> results_;
};

}  // namespace lockstep::kernels::pointwise

#endif  // LOCKSTEP_KERNELS_POINTWISE_LAYOUT_H_
