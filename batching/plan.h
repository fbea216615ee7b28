// Plans on which rank, and in which micro-step, each sample trains.
//
// The failure this prevents. Under sharded training a forward pass is a chain of collectives: all
// ranks gather each layer's weights at once. A rank with images runs the vision encoder's
// collectives. A rank with text does not, and both wait forever. So all ranks must hold the same
// kind of micro-batch at every micro-step, and the same number of them.
//
// A micro-step lasts as long as its most expensive rank. The plan therefore gives the micro-batches
// of one step similar costs. It minimises the makespan: the sum over micro-steps of the most
// expensive rank's cost.
//
//    std::vector<Sample> samples = {{.tokens = 100, .cost = 100}, {.tokens = 90, .cost = 90},
//                                   {.tokens = 80, .cost = 80},   {.tokens = 70, .cost = 70}};
//    absl::StatusOr<Plan> plan = MakePlan(samples, {.seq_len = 100, .ranks = 2});
//    // step 0: rank 0 holds sample 0, rank 1 sample 1; step 1: rank 0 sample 3, rank 1 sample 2.
//
// Use it for ranks that run the same model on different data. For ranks with different modules, see
// mimo. Source: prime-rl pull requests 1918 and 1959 (kinds); the balance is our own (plan.cc).
//
// A plan depends only on its arguments, so ranks that plan from the same samples agree without
// communication. Thread-safe: no state.

#ifndef LOCKSTEP_BATCHING_PLAN_H_
#define LOCKSTEP_BATCHING_PLAN_H_

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace lockstep::batching {

struct Sample {
  int64_t tokens = 0;  // at least 1, at most seq_len
  double cost = 0;     // added to its micro-batch's cost, in any unit; at least 0
  int kind = 0;        // index of its kind; steps come in order of kind
  // Tokens and cost of the shortest copy that still runs every module of the kind. Padding
  // micro-batches hold such copies.
  int64_t least_tokens = 1;
  double least_cost = 0;
  bool may_split = false;  // over the ranks of a group: see PlanOptions::max_group
};

enum class Balance {
  // Chooses packing and distribution together: least makespan, then fewest micro-steps, then least
  // padding. Padding is the cheapest shortened sample of the kind.
  kMakespan,
  kLockstep = kMakespan,  // its old name
  // Packs first-fit-decreasing. In order of kind, micro-batch i of a kind goes to rank i % ranks.
  // Padding copies the first micro-batch of the kind. Source: prime-rl's pull request 1918.
  kRoundRobin,
};

constexpr int64_t kMaxSeqLen = 2147483647;  // running sums of lengths are int32 for attention
constexpr int64_t kMaxRanks = 1 << 20;

struct PlanOptions {
  int64_t seq_len = 0;  // maximum tokens of a micro-batch, from 1 to kMaxSeqLen
  int ranks = 1;        // from 1 to kMaxRanks
  Balance balance = Balance::kMakespan;
  // kMakespan spreads samples over more micro-steps than packing needs if that lowers the makespan
  // by more than this share. 0 spreads for any gain. 1 never does: fewest micro-steps first.
  double worth_a_step = 0.005;
  // Returns the cost of a micro-batch of these samples, if it is not the sum of their costs: a
  // finite number, at least 0. The sum still decides how micro-batches are filled. This cost
  // decides how steps are formed, and the plan reports it. Plan::lower_bound is then 0.
  std::function<double(absl::Span<const int64_t> samples)> micro_batch_cost = nullptr;
  // hosts[a] are the kinds whose micro-batches may also hold samples of kind a. For example, text
  // may ride in a micro-batch with images. kMakespan uses this if the plan gets better: makespan
  // and micro-steps never grow. If b hosts a, every host of b must host a. No kind hosts itself.
  std::map<int, std::set<int>> hosts = {};
  // Above 1, kMakespan may split long samples: a group of 2, 4, ... up to max_group consecutive
  // ranks holds one for a micro-step, each rank a share of its tokens. The ranks hold samples of
  // their own, too, and ranks outside the group only those. A power of two. Samples are split if
  // the plan gets better: the makespan never grows. Costs must be sums.
  int max_group = 1;
  // A sample of cost c that is split over g ranks costs each of them c * (1 + split_overhead) / g.
  double split_overhead = 0.05;
};

// A rank's part of a sample that a group of ranks holds.
struct Share {
  int64_t sample = 0;
  int first_rank = 0;  // of the group: a multiple of `ranks`
  int ranks = 0;       // of the group: a power of two, from 2 on
};

// The samples of one rank in one micro-step. A padding micro-batch only keeps the ranks aligned:
// its samples are copies, and must train without loss.
struct MicroBatch {
  int kind = 0;  // of at least one of its samples; the others ride (PlanOptions::hosts)
  bool padding = false;
  double cost = 0;
  int64_t begin = 0;  // into Plan::samples
  int64_t end = 0;
  int64_t shares_begin = 0;  // into Plan::shares
  int64_t shares_end = 0;
  double overhead = 0;  // the part of `cost` that comes from splitting samples
};

struct Plan {
  int ranks = 0;
  int64_t micro_steps = 0;
  std::vector<MicroBatch> micro_batches;  // at micro_step * ranks + rank
  std::vector<int64_t> samples;           // indices of samples, in the order of micro-batches
  // In the order of micro-batches. Each rank of a group has a share. Ranks that are in two groups
  // of a step list them in the same order.
  std::vector<Share> shares;

  int64_t tokens = 0;  // of the samples, without copies
  int64_t padding_micro_batches = 0;
  int64_t split_samples = 0;
  double makespan = 0;     // sum over micro-steps of the most expensive rank's cost
  double ideal = 0;        // cost of the samples / ranks: every rank always busy, without copies
  double lower_bound = 0;  // no plan has a smaller makespan; long samples can put it above `ideal`

  const MicroBatch& at(int rank, int64_t micro_step) const {
    return micro_batches[static_cast<size_t>(micro_step * ranks + rank)];
  }
  absl::Span<const int64_t> samples_of(const MicroBatch& micro_batch) const {
    return absl::MakeConstSpan(samples).subspan(
        static_cast<size_t>(micro_batch.begin),
        static_cast<size_t>(micro_batch.end - micro_batch.begin));
  }
  absl::Span<const Share> shares_of(const MicroBatch& micro_batch) const {
    return absl::MakeConstSpan(shares).subspan(
        static_cast<size_t>(micro_batch.shares_begin),
        static_cast<size_t>(micro_batch.shares_end - micro_batch.shares_begin));
  }
};

// A range of the tokens of a sample, without `end`.
struct Piece {
  int64_t begin = 0;
  int64_t end = 0;
};

// Returns the tokens that rank `place` of a group of `ranks` holds of a sample of `tokens` tokens:
// one range of its first half, and the mirrored one of its second half. So ranks have equal work in
// causal attention, and numbers of tokens that differ by at most 1. A range may be empty. Source:
// the zigzag of Megatron-LM; the same as nn/context/table.lua.
std::vector<Piece> PiecesOf(int64_t tokens, int ranks, int place);

// Returns a plan in which every sample is in exactly one micro-batch that is not padding, or in the
// shares of one group of ranks in one micro-step. Every rank has `micro_steps` micro-batches. In
// one micro-step all ranks have the same kind. Each micro-batch holds a sample of its kind. No
// micro-batch exceeds seq_len tokens. Without samples the plan has no steps.
//
// Returns InvalidArgument with the sample or the option that is out of range, or with an invalid
// cost from micro_batch_cost.
//
// Cost: O(n log n) for n samples.
absl::StatusOr<Plan> MakePlan(absl::Span<const Sample> samples, const PlanOptions& options);

}  // namespace lockstep::batching

#endif  // LOCKSTEP_BATCHING_PLAN_H_
