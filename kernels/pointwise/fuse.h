// Pointwise functions of tensors, run as one kernel. A chain of ATen's operators moves all numbers
// once for each operator, and keeps what lies between for backward. A fused function reads its
// inputs once, writes its results once, and keeps only inputs.
//
//    FusedFunction swiglu([](const std::vector<at::Tensor>& in) {
//      return std::vector<at::Tensor>{at::silu(in[0]) * in[1]};
//    });
//    const at::Tensor y = swiglu({gate, up})[0];
//
// The first call with a new combination of argument dtypes records the function. It runs twice on
// proxies (small CPU tensors), and the operators that it calls become a program (program.h). The
// program's gradient is derived symbolically, so backward is one pass too. An interpreter executes
// the program on blocks of 512 elements, whose intermediate values stay in the L1 cache
// (interpreter.h).
//
// A function may also reduce the last dimension by sum, mean, amax and amin: softmax and norms can
// be written out. A row is computed in phases that end at reductions, and stays in the L1 cache if
// it fits (row_code.h). The values of a row are float64: results of reductions, and numbers
// computed from these alone. A reduction that keeps the dimension may be used further. One that
// drops it may be combined with numbers and with others that dropped it.
//
// The function must be pointwise otherwise: recording.cc has the list of operators. A number that
// is not an argument is recorded as a constant. A tensor that is not an argument is an error.
// Arguments are tensors of float16, bfloat16, float32, float64 or bool, which are broadcast
// together, and numbers. A number has no gradient, and promotes as ATen's Scalar does.
//
// Results have the dtypes and shapes of ATen's chain, and are contiguous. Elements are computed in
// float32, or in float64 where the chain has a float64 tensor, and rounded when they are stored.
// Numbers of float64 become float16 or bfloat16 by way of float32, as in ATen. Errors in float16
// and bfloat16 are at most those of ATen's chain. Bits do not depend on the number of threads.
// Autocast does not change a fused function. Gradients of gradients run ATen's operators.
//
// CPUs run an interpreter. On NVIDIA GPUs a function is compiled by NVRTC when it first runs
// (cuda/source.h, which has not run on a GPU yet). Meta tensors get shapes.
// Elsewhere, and on GPUs that load no such kernel, the function itself is called, unfused.
//
// Throws c10::ValueError for a function that uses other operators. Not thread-safe; but different
// fused functions may run in different threads.

#ifndef LOCKSTEP_KERNELS_POINTWISE_FUSE_H_
#define LOCKSTEP_KERNELS_POINTWISE_FUSE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "ATen/core/TensorBody.h"

namespace lockstep::kernels {

using PointwiseArgument = std::variant<at::Tensor, double>;

// A number comes as a tensor of no dimension, which ATen treats as a number.
using PointwiseFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

// The recordings of one function, by the dtypes of its arguments.
class PointwiseRecordings {
 public:
  PointwiseRecordings();
  ~PointwiseRecordings();
  PointwiseRecordings(PointwiseRecordings&&) noexcept;
  PointwiseRecordings& operator=(PointwiseRecordings&&) noexcept;

  // Returns the function's results, by a recording if there is one for these arguments; otherwise
  // makes one. `function` must be the same one for all calls. `where` tells messages which line of
  // the function runs ("script.lua:3").
  std::vector<at::Tensor> Call(const PointwiseFunction& function,
                               const std::vector<PointwiseArgument>& arguments,
                               const std::function<std::string()>& where = nullptr);

  // Returns the number of recordings.
  int64_t size() const;

 private:
  struct Recording;
  std::map<std::string, Recording> recordings_;
};

// Returns whether this thread calls a function to record it.
bool IsRecordingPointwise();

class FusedFunction {
 public:
  explicit FusedFunction(PointwiseFunction function) : function_(std::move(function)) {}

  std::vector<at::Tensor> operator()(const std::vector<PointwiseArgument>& arguments) {
    return recordings_.Call(function_, arguments);
  }

  int64_t num_recordings() const { return recordings_.size(); }

 private:
  PointwiseFunction function_;
  PointwiseRecordings recordings_;
};

}  // namespace lockstep::kernels

#endif  // LOCKSTEP_KERNELS_POINTWISE_FUSE_H_
