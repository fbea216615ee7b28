// Which sample trains on which rank in which micro-step.
//
// The failure this prevents. Under sharded training a forward pass is a chain of collectives: each
// layer's weights are gathered by all ranks at once. A rank whose micro-batch holds images runs the
// vision encoder's collectives, its neighbour with text does not, and nothing moves again. So all
// ranks must hold the same kind of micro-batch at every micro-step, and equally many of them.
//
// In lockstep a micro-step lasts as long as its dearest rank. The plan therefore makes the
// micro-batches of one step alike in cost: it minimises the makespan, the sum over micro-steps of
// the dearest rank's cost.
//
//   std::vector<Sample> samples = {{.tokens = 100, .cost = 100}, {.tokens = 90, .cost = 90},
//                                  {.tokens = 80, .cost = 80},   {.tokens = 70, .cost = 70}};
//   absl::StatusOr<Plan> plan = MakePlan(samples, {.seq_len = 100, .ranks = 2});
//   // step 0: rank 0 holds sample 0, rank 1 sample 1; step 1: rank 0 sample 3, rank 1 sample 2.
//
// Use it where ranks run the same model on different data. Where ranks hold different modules, see
// mimo. Source: prime-rl pull requests 1918 and 1959 (kinds); the balance is our own (plan.cc).
//
// A plan depends on its arguments alone: ranks that plan from the same samples agree without
// communication. Thread-safe: no state.

#ifndef LOCKSTEP_BATCHING_PLAN_H_
#define LOCKSTEP_BATCHING_PLAN_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace lockstep::batching {

struct Sample {
  int64_t tokens = 0;  // at least 1, at most seq_len
  double cost = 0;     // what it adds to its micro-batch, in any unit; at least 0
  int kind = 0;        // index of its kind; steps come in order of kind
  // The same for the shortest copy that still runs every module of its kind: what a padding
  // micro-batch holds.
  int64_t least_tokens = 1;
  double least_cost = 0;
};

enum class Balance {
  // Packing and distribution chosen together: least makespan, then fewest micro-steps, then least
  // padding. Padding is the cheapest shortened sample of the kind.
  kLockstep,
  // First-fit-decreasing packing; in order of kind, micro-batch i of a kind goes to rank i % ranks;
  // padding copies the first micro-batch of the kind. What prime-rl's pull request 1918 does.
  kRoundRobin,
};

constexpr int64_t kMaxSeqLen = 2147483647;  // running sums of lengths are int32 for attention
constexpr int64_t kMaxRanks = 1 << 20;

struct PlanOptions {
  int64_t seq_len = 0;  // most tokens of a micro-batch, from 1 to kMaxSeqLen
  int ranks = 1;        // from 1 to kMaxRanks
  Balance balance = Balance::kLockstep;
  // kLockstep may spread samples over more micro-steps than packing needs where that lowers the
  // makespan by more than this share. 0 spreads for any gain; 1 never: fewest micro-steps first.
  double worth_a_step = 0.005;
  // What a micro-batch of these samples costs, where that is not the sum of their costs. Bins are
  // still filled by that sum; steps are then formed, and reported, by this. Plan::lower_bound is
  // then 0. It returns a finite number from 0 on.
  std::function<double(absl::Span<const int64_t> samples)> micro_batch_cost = nullptr;
};

// The samples of one rank in one micro-step. A padding micro-batch keeps the ranks aligned: its
// samples are copies, to be trained with no loss.
struct MicroBatch {
  int kind = 0;
  bool padding = false;
  double cost = 0;
  int64_t begin = 0;  // into Plan::samples
  int64_t end = 0;
};

struct Plan {
  int ranks = 0;
  int64_t micro_steps = 0;
  std::vector<MicroBatch> micro_batches;  // at micro_step * ranks + rank
  std::vector<int64_t> samples;           // indices of samples, micro-batch after micro-batch

  int64_t tokens = 0;  // of the samples, without copies
  int64_t padding_micro_batches = 0;
  double makespan = 0;  // sum over micro-steps of the dearest rank's cost
  double ideal = 0;     // cost of the samples / ranks: every rank busy all the time, with no copies
  double lower_bound = 0;  // no plan has a makespan below this: long samples may forbid the ideal

  const MicroBatch& at(int rank, int64_t micro_step) const {
    return micro_batches[static_cast<size_t>(micro_step * ranks + rank)];
  }
  absl::Span<const int64_t> samples_of(const MicroBatch& micro_batch) const {
    return absl::MakeConstSpan(samples).subspan(
        static_cast<size_t>(micro_batch.begin),
        static_cast<size_t>(micro_batch.end - micro_batch.begin));
  }
};

// Every sample is in exactly one micro-batch that is no padding; every rank has `micro_steps` of
// them; at one micro-step all ranks have one kind; no micro-batch exceeds seq_len tokens. No
// samples give a plan of no steps. InvalidArgument names the sample, or the option, that is out of
// range, or the cost that micro_batch_cost returned.
//
// Cost: O(n log n) for n samples.
absl::StatusOr<Plan> MakePlan(absl::Span<const Sample> samples, const PlanOptions& options);

}  // namespace lockstep::batching

#endif  // LOCKSTEP_BATCHING_PLAN_H_
