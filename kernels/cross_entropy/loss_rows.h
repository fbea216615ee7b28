// The loops of the cross entropy over rows of memory, compiled once for each instruction set of the
// CPU, and once for NVIDIA GPUs. No tensors here: cross_entropy.cc checks them, and runs a loop's
// range on each thread. Strides count elements. Acc is float64 if dtype is, else float32.

#ifndef LOCKSTEP_KERNELS_CROSS_ENTROPY_LOSS_ROWS_H_
#define LOCKSTEP_KERNELS_CROSS_ENTROPY_LOSS_ROWS_H_

#include <cstdint>

#include "c10/core/ScalarType.h"

namespace lockstep::kernels {

// Rows of `size` logits, and a label for each.
struct LossRows {
  at::ScalarType dtype;
  int64_t size;
  const void* logits;
  int64_t stride;
  const int64_t* target;
  int64_t ignore_index;
  double label_smoothing, z_loss;
  const void* weight;  // Acc, or nullptr
  void* loss;          // Acc
  double* lse;         // gradients read it
  void* entropy;       // Acc, or nullptr; gradients read it
  void* gradient;      // of the sum of losses, in place of the logits; or nullptr
};

// The gradients of results, Acc, or nullptr. A stride of 0: all rows have one number.
struct LossGradientRows {
  LossRows rows;
  const void* dloss;
  int64_t dloss_stride;
  const void* dlse;
  int64_t dlse_stride;
  const void* dentropy;
  int64_t dentropy_stride;
  void* dlogits;  // contiguous
};

// Each runs the range [begin, end) of rows. On a GPU it launches on the current stream of the
// current device, and does not wait.
struct LossKernels {
  void (*losses)(const LossRows&, int64_t begin, int64_t end);
  void (*gradients)(const LossGradientRows&, int64_t begin, int64_t end);
};

}  // namespace lockstep::kernels

#endif  // LOCKSTEP_KERNELS_CROSS_ENTROPY_LOSS_ROWS_H_
