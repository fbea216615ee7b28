// The factor that makes each module's gradient the one that a single rank would have.
//
// Modules reduce their gradients inside their own replicas. The loss, though, is the language
// model's: it is averaged over the replicas or the tokens of "language", never over those of an
// encoder. So each module's reduced gradient needs a factor of its own, and without it training
// goes on with encoders that learn too slowly or too fast, silently.
//
//   // vision: mean over dp 4; language: dp 2; each replica's loss is the mean over its tokens
//   GradientScale({.loss = Loss::kMeanOfMeans, .reduction = Reduction::kMean, .reduction_size = 4,
//                  .language_dp = 2});  // 2.0
//
// The rule. Let g be the sum over all ranks of the module's group of their local gradients. A
// reduction by kSum leaves g, by kMean g / reduction_size. Wanted is g / N for a loss that sums
// over tokens (N tokens with a loss in the step), and g / (language_dp * num_micro_batches) for a
// loss that each replica of "language" averages over its tokens of a micro-batch. The factor is
// what lies between.
//
// History. Megatron-Bridge first took differing gradient norms for expected (2956); 4066 found
// encoders too small by encoder_dp / llm_dp and scaled by module_dp / llm_dp; 5555 found that
// per-token losses need the factor module_dp only where the module's reduction is a mean (1.0
// where 4.0 was right, 800 where 200 was). N must be summed after "language" has all its tokens,
// over the dp and cp ranks of its last stage, once: sent any earlier it is multiplied by dp.
//
// cp > 1 of "language": a rank's loss is its part of its replica's, so the parts add up and cp does
// not appear. Where each rank divides by its own tokens instead, there are dp * cp means.

#ifndef LOCKSTEP_MIMO_GRADIENT_SCALE_H_
#define LOCKSTEP_MIMO_GRADIENT_SCALE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "mimo/topology.h"

namespace lockstep::mimo {

enum class Loss {
  kPerToken,     // a rank's loss is the sum over its tokens; divided by all tokens of the step
  kMeanOfMeans,  // a replica's loss is the mean over its tokens; averaged over replicas,
                 // micro-batches
};

enum class Reduction { kSum, kMean };

struct GradientScaleOptions {
  Loss loss = Loss::kPerToken;
  Reduction reduction = Reduction::kSum;  // what this module's gradient reduction did
  int64_t reduction_size = 1;             // over how many ranks: dp * cp of this module
  int64_t language_dp = 1;                // kMeanOfMeans: how many means there are
  int64_t num_micro_batches = 1;          // kMeanOfMeans, where losses were not divided by it
  int64_t num_tokens = 0;                 // kPerToken: with a loss, in the step, over all ranks
};

// InvalidArgument if a size is not positive; with kPerToken neither may num_tokens be less than 1:
// a step without a token with a loss has no mean, and a count of 0 beside gradients is a mistake.
absl::StatusOr<double> GradientScale(const GradientScaleOptions& options);

// Whether a rank's copy of a parameter counts in the global norm, so that each tp shard counts once
// and replicas once: dp 0, cp 0, and tp 0 unless the parameter is divided over tp.
inline bool CountsInNorm(const Coordinates& coordinates, bool divided_over_tp) {
  return coordinates.dp == 0 && coordinates.cp == 0 && (divided_over_tp || coordinates.tp == 0);
}

}  // namespace lockstep::mimo

#endif  // LOCKSTEP_MIMO_GRADIENT_SCALE_H_
