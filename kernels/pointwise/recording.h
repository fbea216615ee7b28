// Records a function of tensors as a program: calls it with proxies, which are small tensors on the
// CPU, and notes the operators of ATen that it calls. Private: callers use fuse.h.

#ifndef LOCKSTEP_KERNELS_POINTWISE_RECORDING_H_
#define LOCKSTEP_KERNELS_POINTWISE_RECORDING_H_

#include <functional>
#include <string>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "kernels/pointwise/program.h"

namespace lockstep::kernels::pointwise {

using TensorFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

// An argument that the proxy stands for.
struct ArgumentKind {
  bool is_number = false;
  at::ScalarType dtype = at::kFloat;  // of a tensor
  bool has_dims = true;               // false: a tensor of no dimension, which promotes less

  bool operator==(const ArgumentKind&) const = default;
};

// Where the function is, for messages: "script.lua:3", or "" if that is not known.
using Whereabouts = std::function<std::string()>;

// Returns whether this thread records a function. Fused functions that it calls become a part of
// the recorded one.
bool IsRecording();

struct Recorded {
  Program program;
  // Whether a result lacks the last dimension, because a reduction did not keep it.
  std::vector<bool> lacks_dimension;
};

// Calls the function twice, with proxies of different shapes and values. Throws c10::ValueError
// unless both calls are one and the same pointwise program. The program's inputs are the arguments
// that are tensors, and its numbers those that are numbers, each in their order. Gradients,
// autocast and the recording of a graph are off meanwhile.
Recorded Record(const TensorFunction& function, const std::vector<ArgumentKind>& arguments,
                const Whereabouts& where);

}  // namespace lockstep::kernels::pointwise

#endif  // LOCKSTEP_KERNELS_POINTWISE_RECORDING_H_
