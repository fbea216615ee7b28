// The kernels' loops over rows of memory, compiled once for each instruction set of the CPU, and
// once for NVIDIA GPUs. No tensors here: the operators (rms_norm.cc, swiglu.cc, rotate.cc,
// adamw.cc, generation/new_tokens.cc) check them, and run a loop's range on each thread. Strides
// count elements. Pointers are to `dtype`, those to Acc to float64 if dtype is float64, else to
// float32.

#ifndef LOCKSTEP_KERNELS_ROWS_H_
#define LOCKSTEP_KERNELS_ROWS_H_

#include <cstdint>

#include "c10/core/ScalarType.h"

namespace lockstep::kernels {

// Normalises rows of `size` numbers: y = norm(x), or with `residual` y = norm(x + residual), and
// the rounded sum is kept.
struct RmsNormRows {
  at::ScalarType dtype;
  int64_t size;
  double eps;
  const void* x;
  int64_t x_stride;
  const void* residual;  // or nullptr
  int64_t residual_stride;
  const void* weight;
  void* sum;  // contiguous; only with `residual`
  void* y;    // contiguous
};

// Rows whose shares of the weight's gradient one part of RmsNormGradientRows adds up on a CPU. It
// does not depend on the number of threads, and so the bits of the result do not. With 32 the error
// in float32 would exceed the error of ATen's sum.
inline constexpr int64_t kRowsOfPart = 16;

// The gradients of RmsNormRows from the normalised x, which backward reads again. It does not keep
// the scales of forward: the pass over a row that needs them sums the row's squares on the side.
struct RmsNormGradientRows {
  at::ScalarType dtype;
  int64_t rows;
  int64_t size;
  int64_t rows_of_part;  // RowKernels::rows_of_part
  double eps;
  const void* dy;
  int64_t dy_stride;
  const void* x;
  int64_t x_stride;
  const void* weight;
  const void* more;  // is added to dx, or nullptr
  int64_t more_stride;
  void* dx;       // contiguous
  void* dweight;  // Acc [parts, size], or nullptr
};

// Rows of `size` numbers. A range of it counts numbers, not rows: row * size + column.
struct SwigluRows {
  at::ScalarType dtype;
  int64_t size;
  const void* gate;
  int64_t gate_stride;
  const void* up;
  int64_t up_stride;
  const void* dy;  // for gradients
  int64_t dy_stride;
  void* y;  // contiguous, or for gradients:
  void* dgate;
  void* dup;
};

// Rows (token, head) of `size` numbers.
struct RotateRows {
  at::ScalarType dtype;
  bool wide_angles;  // cos and sin are Acc
  int64_t heads;
  int64_t size;
  const void* x;
  int64_t token_stride;
  int64_t head_stride;
  const void* cos;  // contiguous [tokens, size]
  const void* sin;
  bool backward;  // turns back: the gradient of the rotation
  void* y;        // contiguous
};

// One parameter of AdamW. Its elements lie in the same order in all of these memories.
struct AdamWTensor {
  at::ScalarType dtype, grad_dtype, moment_dtype;
  void* param;
  const void* grad;
  void* exp_avg;
  void* exp_avg_sq;
  void* master;       // Acc, or nullptr
  const float* step;  // from 1
  int64_t salt;       // at least 0: bfloat16 results without a master are rounded at random
  int64_t numel;
  int64_t first_part;
};

// Numbers of a parameter that one part of AdamWTensors updates.
inline constexpr int64_t kNumbersOfPart = 16384;

// A list of parameters. A range of it counts parts, over all parameters.
struct AdamWTensors {
  const AdamWTensor* tensors;
  int64_t count;
  double lr, beta1, beta2, eps, weight_decay;
  const double* lr_factor;   // or nullptr; on the parameters' device
  const double* grad_scale;  // likewise
};

// Each runs the range [begin, end): of rows, of parts (rms_norm_gradient, adamw), or of numbers
// (swiglu).
struct RowKernels {
  void (*rms_norm)(const RmsNormRows&, int64_t begin, int64_t end);
  void (*rms_norm_gradient)(const RmsNormGradientRows&, int64_t begin, int64_t end);
  int64_t (*rows_of_part)(int64_t size);  // of rms_norm_gradient
  void (*swiglu)(const SwigluRows&, int64_t begin, int64_t end);
  void (*swiglu_gradient)(const SwigluRows&, int64_t begin, int64_t end);
  void (*rotate)(const RotateRows&, int64_t begin, int64_t end);
  void (*adamw)(const AdamWTensors&, int64_t begin, int64_t end);
};

// Returns the kernels of the instruction set that ATen has chosen for itself
// (at::get_cpu_capability; the variable ATEN_CPU_CAPABILITY overrides it).
const RowKernels& ChosenRowKernels();

// Makes ChosenRowKernels return other kernels. For tests, before the first operator runs.
void ReplaceRowKernels(const RowKernels& kernels);

// Returns the kernels for NVIDIA GPUs, or nullptr where //kernels:cuda is neither linked nor
// loaded.
const RowKernels* CudaRowKernels();

}  // namespace lockstep::kernels

#endif  // LOCKSTEP_KERNELS_ROWS_H_
