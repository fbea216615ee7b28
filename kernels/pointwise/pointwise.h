// The operator lockstep::pointwise(int program, Tensor[] inputs, float[] numbers, int[] dtypes,
// int[] shape): runs a program over tensors that are broadcast together, and to `shape`. It is the
// operator that autograd, profiles and recorded steps see. Private: callers use fuse.h.

#ifndef LOCKSTEP_KERNELS_POINTWISE_POINTWISE_H_
#define LOCKSTEP_KERNELS_POINTWISE_POINTWISE_H_

#include <cstdint>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "kernels/pointwise/program.h"

namespace lockstep::kernels::pointwise {

// A program has at most so many tensors; its results' gradients are inputs of its gradient.
inline constexpr int64_t kMostInputs = 48, kMostResults = 16;

// Returns the program's number. The same program has the same number, until the process ends.
// Thread-safe.
int64_t Register(const Program& program);

// Returns the results. Each has the shape that the inputs are broadcast to, a result of rows with a
// last dimension of size 1, and is contiguous.
std::vector<at::Tensor> Run(int64_t program, at::TensorList inputs, at::ArrayRef<double> numbers);

// Returns the results by operators of ATen, which autograd follows. Computes as the interpreter
// does: in float32, or in float64 if the program is wide; rounds at the end. The inputs are
// broadcast to `shape`.
std::vector<at::Tensor> Compose(const Program& program, at::TensorList inputs,
                                at::ArrayRef<double> numbers, at::IntArrayRef shape);

}  // namespace lockstep::kernels::pointwise

#endif  // LOCKSTEP_KERNELS_POINTWISE_POINTWISE_H_
