// Plans reads so that each loading rank reads only its own part of the global micro-batch.
//
// By default every rank that loads reads the whole global micro-batch, and its module keeps a part
// (see topology.h). This is simple but reads dp times more than a rank trains on. With a plan of
// this header each rank reads only what it keeps.
//
// Why not shard by each module's own dp size: the modules would read different samples. Instead the
// micro-batch is cut into one grid for all modules. The number of its groups is the least common
// multiple of all dp sizes. A replica reads the groups that it covers. All ranks use one order of
// the dataset.
//
//    // dp 3 and dp 2: a grid of 6 groups
//    absl::StatusOr<Reads> reads = PlanReads({3, 2}, {.micro_batch_size = 12, .num_samples = 54});
//    reads->num_micro_batches;                             // 4: the last 6 samples are dropped
//    PositionsOf(*reads, /*micro_batch=*/1, {.dp_rank = 2, .dp_size = 3});  // [20, 24)
//
// A position indexes the common order of the dataset, a permutation by seed and epoch. A batch that
// was read by a plan is not sliced again. Source: Megatron-Bridge's pull request 5525.

#ifndef LOCKSTEP_MIMO_BATCH_READS_H_
#define LOCKSTEP_MIMO_BATCH_READS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "mimo/batch/ownership.h"
#include "mimo/topology/topology.h"

namespace lockstep::mimo {

struct ReadOptions {
  int64_t micro_batch_size = 0;  // samples of the global micro-batch
  int64_t num_samples = 0;       // samples of the dataset
  bool drop_last = true;         // must be true: an incomplete micro-batch does not fill the grid
};

struct Reads {
  int64_t num_groups = 1;         // least common multiple of all dp sizes
  int64_t samples_per_group = 0;  // of one micro-batch
  int64_t micro_batch_size = 0;
  int64_t num_micro_batches = 0;  // num_samples / micro_batch_size, rounded down
};

// Returns the plan. Returns InvalidArgument, which names all broken rules, unless there are dp
// sizes and all are positive, drop_last is true, micro_batch_size is divisible by num_groups, and
// num_samples is at least micro_batch_size.
absl::StatusOr<Reads> PlanReads(absl::Span<const int64_t> dp_sizes, const ReadOptions& options);
// Plans for the dp sizes of all modules of a topology.
absl::StatusOr<Reads> PlanReads(const Topology& topology, const ReadOptions& options);

// Returns the groups that a replica covers. Returns InvalidArgument if dp_size does not divide
// num_groups, or if dp_rank is not in [0, dp_size).
absl::StatusOr<Range> GroupsOf(const Reads& reads, const DpInfo& replica);

// Returns the positions that a replica reads for a micro-batch. Returns OutOfRange if there is no
// such micro-batch.
absl::StatusOr<Range> PositionsOf(const Reads& reads, int64_t micro_batch, const DpInfo& replica);

}  // namespace lockstep::mimo

#endif  // LOCKSTEP_MIMO_BATCH_READS_H_
