// Each loading rank reads only its part of the global micro-batch.
//
// By default every rank that loads reads the whole global micro-batch and its module keeps a part
// (topology.h): simple, and dp times more reading than training. Here each reads only what it
// keeps. What it must not do is shard by its own data-parallel size through a sampler whose order
// depends on it: the modules would read different sets. So the micro-batch is cut into one
// canonical grid for all modules, of as many groups as the least common multiple of all dp sizes,
// and a replica reads the groups that it covers, in their order. All ranks share one order of the
// dataset.
//
//   // dp 3 and dp 2: a grid of 6 groups
//   absl::StatusOr<Reads> reads = PlanReads({3, 2}, {.micro_batch_size = 12, .num_samples = 54});
//   reads->num_micro_batches;                             // 4: the last 6 samples are dropped
//   PositionsOf(*reads, /*micro_batch=*/1, {.dp_rank = 2, .dp_size = 3});  // [20, 24)
//
// A position is into the common order of the dataset (a permutation by seed and epoch, the same on
// every rank); what is read is not sliced again. Source: Megatron-Bridge's pull request 5525.

#ifndef LOCKSTEP_MIMO_READS_H_
#define LOCKSTEP_MIMO_READS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "mimo/ownership.h"
#include "mimo/topology.h"

namespace lockstep::mimo {

struct ReadOptions {
  int64_t micro_batch_size = 0;  // samples of the global micro-batch
  int64_t num_samples = 0;       // of the dataset
  bool drop_last = true;         // must be true: an incomplete micro-batch has no grid
};

struct Reads {
  int64_t num_groups = 1;         // least common multiple of all dp sizes
  int64_t samples_per_group = 0;  // of one micro-batch
  int64_t micro_batch_size = 0;
  int64_t num_micro_batches = 0;  // num_samples / micro_batch_size, rounded down
};

// InvalidArgument names every broken rule at once: dp sizes are positive and there are some;
// drop_last; micro_batch_size is divisible by num_groups (it gives the nearest that are);
// num_samples is at least micro_batch_size.
absl::StatusOr<Reads> PlanReads(absl::Span<const int64_t> dp_sizes, const ReadOptions& options);
// The dp sizes of all modules.
absl::StatusOr<Reads> PlanReads(const Topology& topology, const ReadOptions& options);

// The groups of a replica. InvalidArgument if dp_size does not divide num_groups or dp_rank is not
// in [0, dp_size).
absl::StatusOr<Range> GroupsOf(const Reads& reads, const DpInfo& replica);

// The positions that a replica reads for a micro-batch. OutOfRange if there is no such micro-batch.
absl::StatusOr<Range> PositionsOf(const Reads& reads, int64_t micro_batch, const DpInfo& replica);

}  // namespace lockstep::mimo

#endif  // LOCKSTEP_MIMO_READS_H_
