// Computes the factor for a module's reduced gradient, so that it equals the gradient of a run on
// one rank.
//
// The problem: modules reduce gradients over their own replicas, but the loss is averaged over the
// replicas or the tokens of "language". So each module's reduced gradient needs its own factor.
// Without it encoders learn too slowly or too fast, and no error says so.
//
//    // vision: mean over dp 4; language: dp 2; each replica's loss is the mean over its tokens
//    GradientScale({.loss = Loss::kMeanOfMeans, .reduction = Reduction::kMean, .reduction_size = 4,
//                   .language_dp = 2});  // 2.0
//
// The rule. Let g be the sum of the local gradients over all ranks of the module's group. A
// reduction by kSum gives g, a reduction by kMean gives g / reduction_size. The right gradient is g
// / N for a loss that sums over tokens, where N counts the tokens with a loss in the step. It is g
// / (language_dp * num_micro_batches) for a loss that each replica of "language" averages over its
// tokens of a micro-batch. The factor is the right gradient divided by the reduced one.
//
// Sum N once, after "language" has all its tokens, over the dp and cp ranks of its last stage. A
// sum that is taken earlier is multiplied by dp.
//
// With cp > 1 of "language", a rank's loss is a part of its replica's loss. The parts add up, so cp
// does not appear. If each rank divides by its own tokens instead, there are dp * cp means.
//
// Source: Megatron-Bridge. Pull request 2956 expected gradient norms to differ. Pull request 4066
// found encoder gradients too small by encoder_dp / llm_dp and scaled by module_dp / llm_dp. Pull
// request 5555 found that losses per token need the factor module_dp only if the module's reduction
// is a mean. Before it, the factor was 1.0 instead of 4.0, or 800 instead of 200.

#ifndef LOCKSTEP_MIMO_GRADIENT_GRADIENT_SCALE_H_
#define LOCKSTEP_MIMO_GRADIENT_GRADIENT_SCALE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "mimo/topology/topology.h"

namespace lockstep::mimo {

enum class Loss {
  kPerToken,     // a rank's loss is the sum over its tokens; divided by all tokens of the step
  kMeanOfMeans,  // a replica's loss is the mean over its tokens; averaged over replicas,
                 // micro-batches
};

enum class Reduction { kSum, kMean };

struct GradientScaleOptions {
  Loss loss = Loss::kPerToken;
  Reduction reduction = Reduction::kSum;  // how the module's gradients were reduced
  int64_t reduction_size = 1;             // number of ranks in the reduction: dp * cp
  int64_t language_dp = 1;                // kMeanOfMeans: number of means
  int64_t num_micro_batches = 1;          // kMeanOfMeans: if losses were not divided by it
  int64_t num_tokens = 0;                 // kPerToken: tokens with a loss in the step, all ranks
};

// Returns the factor. Returns InvalidArgument if a size is not positive. With kPerToken, num_tokens
// must be at least 1 too: a step in which no token has a loss has no mean.
absl::StatusOr<double> GradientScale(const GradientScaleOptions& options);

// Returns whether a rank's copy of a parameter counts in the global norm. Each tp shard and each
// replica counts once: at dp 0, cp 0, and tp 0 unless the parameter is divided over tp.
inline bool CountsInNorm(const Coordinates& coordinates, bool divided_over_tp) {
  return coordinates.dp == 0 && coordinates.cp == 0 && (divided_over_tp || coordinates.tp == 0);
}

}  // namespace lockstep::mimo

#endif  // LOCKSTEP_MIMO_GRADIENT_GRADIENT_SCALE_H_
