// Reduces a module's gradients over its own replicas, and computes one norm over all modules.
//
// The failures this prevents. Each module reduces over its own dp, but the loss is averaged over
// the language model's. An encoder with dp 3 next to a language model with dp 1 then learns three
// times too fast or too slowly, with no error (see gradient_scale.h for the factor). And clipping
// each module by its own norm is a different algorithm from clipping the model.
//
//    // after backward, on a rank of vision; divided[i]: whether parameter i is divided over tp
//    ReduceGradients(vision_parameters, group_of_dp_and_cp, factor);
//    at::Tensor norm = GradientNorm({{vision_parameters, divided, coordinates}}, world, device);
//    ClipGradients(vision_parameters, norm, 1.0);
//
// Source: Megatron-Bridge's pull requests 4066 and 5555, Megatron-LM's 4019. Only this file of the
// library uses `_foreach` operators. Thread: one at a time for each group.

#ifndef LOCKSTEP_MIMO_GRADIENT_GRADIENTS_H_
#define LOCKSTEP_MIMO_GRADIENT_GRADIENTS_H_

#include <cstdint>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "c10/core/TensorImpl.h"
#include "c10/util/intrusive_ptr.h"
#include "mimo/topology/topology.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace lockstep::mimo {

// Returns the dtype in which gradients of `dtype` are summed over ranks: float32 for bfloat16 and
// float16, else `dtype`. A sum in bfloat16 loses small terms, and a sum in float16 overflows.
at::ScalarType SumType(at::ScalarType dtype);

// Replaces each gradient by its sum over the ranks of `group` times `factor`, in buckets of about
// `bucket_bytes`. Sums and scales in SumType, and rounds once. Reduces a parameter that is listed
// twice once. A parameter without a gradient counts as zeros if another rank has one, and stays
// without if no rank has. group: nullptr for one rank alone.
//
// Collective: every rank of `group` calls this with the same parameters in the same order. Throws
// c10::ValueError for a sparse gradient.
void ReduceGradients(const std::vector<at::Tensor>& parameters, c10d::ProcessGroup* group,
                     double factor, int64_t bucket_bytes = int64_t{25} << 20);

// A module's parameters on this rank, and which copy of them these are.
struct NormPart {
  std::vector<at::Tensor> parameters;
  std::vector<bool> divided_over_tp;  // for each; the others are equal on all tp ranks
  // The rank's position in the module. For shards of a model that is divided over its replicas, dp
  // counts the copies of the whole model instead, and cp is 0: the shards of the first copy count.
  Coordinates coordinates;
};

// Returns the 2-norm over the gradients of all modules, a float64 scalar on `device`, the same on
// every rank. Replicas and copies count once, and each shard counts. A parameter in several parts
// counts once, by its first part. Collective over `world`, which holds all ranks of the topology;
// nullptr for one rank alone.
at::Tensor GradientNorm(const std::vector<NormPart>& parts, c10d::ProcessGroup* world,
                        c10::Device device);

// A norm, and the limit that each rank has for it.
struct NormAndLimits {
  at::Tensor norm;    // float64 []
  at::Tensor limits;  // float64 [ranks of the world]
};

// Returns what GradientNorm does, and every rank's `limit`, in the same collective. Ranks that clip
// to different limits train different models.
NormAndLimits GradientNormAndLimits(const std::vector<NormPart>& parts, c10d::ProcessGroup* world,
                                    c10::Device device, double limit);

// Notices that gradients are reduced again before a backward pass has changed them. The second
// reduction would scale them twice.
class ReducedGradients {
 public:
  // Remembers the parameters' gradients, after they were reduced or clipped.
  void Remember(const std::vector<at::Tensor>& parameters);

  // Returns whether there are gradients and all of them are as they were remembered: the same
  // tensors, not modified since. A gradient that was freed and made again is another tensor.
  bool AreUnchanged(const std::vector<at::Tensor>& parameters) const;

 private:
  struct Gradient {
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
    int64_t version;
  };
  std::vector<Gradient> gradients_;
};

// Scales each gradient once so that `norm` becomes at most max_norm. Leaves gradients unchanged if
// the norm is infinite or NaN, which is the same on every rank. Does not wait for a device.
void ClipGradients(const std::vector<at::Tensor>& parameters, const at::Tensor& norm,
                   double max_norm);

}  // namespace lockstep::mimo

#endif  // LOCKSTEP_MIMO_GRADIENT_GRADIENTS_H_
