// Gradients of a module over its own replicas, and one norm over all modules.
//
// The failures this prevents. Each module reduces over its own dp, the loss is averaged over the
// language model's: an encoder with dp 3 beside a language model with dp 1 learns three times too
// fast or too slowly, silently (see gradient_scale.h for the factor). And clipping each module by
// the norm of its own gradients is another algorithm than clipping the model.
//
//   ReduceGradients(vision_parameters, group_of_dp_and_cp, factor);
//   at::Tensor norm = GradientNorm({{vision_parameters, divided, coordinates}}, world);
//   ClipGradients(vision_parameters, norm, 1.0);
//
// Source: Megatron-Bridge's pull requests 4066 and 5555, Megatron-LM's 4019. This is the library's
// one file over `_foreach` operators. Thread: one at a time for each group.

#ifndef LOCKSTEP_MIMO_GRADIENT_GRADIENTS_H_
#define LOCKSTEP_MIMO_GRADIENT_GRADIENTS_H_

#include <cstdint>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "mimo/topology/topology.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace lockstep::mimo {

// The dtype in which gradients of `dtype` are summed over ranks: float32 for bfloat16 and float16,
// else `dtype`. A sum in bfloat16 loses what small parts add, and one in float16 overflows.
at::ScalarType SumType(at::ScalarType dtype);

// Each gradient becomes the sum over the ranks of `group` times `factor`, in buckets of about
// `bucket_bytes`. Gradients are summed and scaled in SumType, and rounded once. A parameter that is
// listed twice is reduced once. A parameter without a gradient counts as zeros where another rank
// has one, and stays without where none has. group: nullptr for a rank alone. Collective: every
// rank of `group` calls this with the same parameters in the same order. Throws c10::ValueError for
// a sparse gradient.
void ReduceGradients(const std::vector<at::Tensor>& parameters, c10d::ProcessGroup* group,
                     double factor, int64_t bucket_bytes = int64_t{25} << 20);

// A module's parameters on this rank, and where the rank stands in it.
struct NormPart {
  std::vector<at::Tensor> parameters;
  std::vector<bool> divided_over_tp;  // of each; the others are the same on all tp ranks
  Coordinates coordinates;
};

// The 2-norm over the gradients of all modules: replicas and copies count once, shards each. A
// parameter of several parts counts once, as it does in the first of them. Returns a float64 scalar
// on `device`, the same on every rank. Collective: every rank of `world`, which holds all ranks of
// the topology; nullptr for a rank alone.
at::Tensor GradientNorm(const std::vector<NormPart>& parts, c10d::ProcessGroup* world,
                        c10::Device device);

// Scales each gradient once so that `norm` becomes at most max_norm; leaves them as they are where
// it is infinite or NaN, which every rank sees alike. Waits for no device.
void ClipGradients(const std::vector<at::Tensor>& parameters, const at::Tensor& norm,
                   double max_norm);

}  // namespace lockstep::mimo

#endif  // LOCKSTEP_MIMO_GRADIENT_GRADIENTS_H_
