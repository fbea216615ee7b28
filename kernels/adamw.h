// AdamW (arXiv 1711.05101) as one pass over memory. It computes in float32 for parameters of any
// dtype. It also updates float32 masters, rounds stochastically, and scales clipped gradients.
//
//    AdamW({.params = params, .grads = grads, .exp_avgs = m, .exp_avg_sqs = v, .steps = steps},
//          {.lr = 1e-3});
//
// ATen's fused AdamW wants one dtype for all. A bfloat16 parameter then needs copies of its
// gradient and moments in float32, and a pass that rounds; clipping needs a pass over the
// gradients. In float32 without masters that kernel is as fast. optim.AdamW uses this one there,
// too, so that a float32 weight and a master of the same weight have the same bits.
//
// The lists are updated together, in parallel over parts of 16,384 numbers. Results have
// the same bits for any number of threads. From Lua: torch.ops.lockstep.adamw_. There are kernels
// for CPUs and, in a program with //kernels:cuda, for NVIDIA GPUs. Anything that does not fit
// throws c10::ValueError before the first write. Thread-safe for different parameters.

#ifndef LOCKSTEP_KERNELS_ADAMW_H_
#define LOCKSTEP_KERNELS_ADAMW_H_

#include <optional>

#include "ATen/core/TensorBody.h"

namespace lockstep::kernels {

// Entry i of each list belongs to parameter i. All tensors of a parameter have its shape and its
// strides, which leave no gaps, and are on one device.
struct AdamWLists {
  at::TensorList params;       // float16, bfloat16, float32 or float64
  at::TensorList grads;        // of the parameter's dtype, or float32
  at::TensorList exp_avgs;     // float32 or bfloat16; float64 if the parameter is
  at::TensorList exp_avg_sqs;  // of the same dtype
  // Empty, or one float32 tensor for each parameter; all parameters are then float16 or bfloat16.
  at::TensorList masters = {};
  at::TensorList steps;  // scalars, float32: how many steps there were; becomes one more
  // Empty, or a number of at least 0 for each parameter. bfloat16 moments, and bfloat16 parameters
  // without a master, are then rounded at random. The random numbers depend on the step, the
  // element and the salt; moments use salts[i] + 1 and + 2, so salts differ by at least 3: 3 * i,
  // say. Such parameters must be contiguous. -1 rounds that parameter to nearest, as without salts.
  at::IntArrayRef salts = {};
};

struct AdamWOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 1e-2;
  std::optional<at::Tensor> lr_factor = {};  // one number, multiplies lr
  std::optional<at::Tensor> grad_scale =
      {};  // one number, multiplies the gradients as they are read
};

// Makes one step, and counts it. Does not change `grads`.
void AdamW(const AdamWLists& lists, const AdamWOptions& options);

}  // namespace lockstep::kernels

#endif  // LOCKSTEP_KERNELS_ADAMW_H_
