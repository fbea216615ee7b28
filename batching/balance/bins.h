// Micro-batches while they are filled. Private to plan.cc, balance.cc and ride.cc. Thread-safe: no
// state.

#ifndef LOCKSTEP_BATCHING_BALANCE_BINS_H_
#define LOCKSTEP_BATCHING_BALANCE_BINS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "batching/plan.h"

namespace lockstep::batching {

struct Bin {
  std::vector<int64_t> samples;  // those of the bin's kind, then riders
  int64_t tokens = 0;
  double cost = 0;  // the sum over the samples and shares, until PriceBins
  std::vector<Share> shares = {};
  double overhead = 0;  // of the shares: a part of the cost
};

// Adds sample `i` to the bin.
void Put(absl::Span<const Sample> samples, int64_t i, Bin& bin);

inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Returns the indices in `members` by falling cost.
std::vector<int64_t> ByFallingCost(absl::Span<const Sample> samples, std::vector<int64_t> members);

// Packs the samples in `members` into few bins, longest first, each into the first bin with room.
std::vector<Bin> PackFirstFitDecreasing(absl::Span<const Sample> samples,
                                        const std::vector<int64_t>& members, int64_t seq_len);

// Adds the samples in `order`, most expensive first, each to the cheapest of `bins` with room.
// Returns nullopt if it finds no bin with room for a sample.
std::optional<std::vector<Bin>> SpreadEvenly(absl::Span<const Sample> samples,
                                             const std::vector<int64_t>& order, int64_t seq_len,
                                             std::vector<Bin> bins);

// Sets the bins' costs to what options.micro_batch_cost returns, if it is set.
void PriceBins(const PlanOptions& options, std::vector<Bin>& bins);

// Sorts by falling cost: each run of `ranks` neighbours is a micro-step.
void SortByCost(std::vector<Bin>& bins);

// Returns the makespan of bins that SortByCost has sorted.
double MakespanOf(const std::vector<Bin>& bins, int ranks);

}  // namespace lockstep::batching

#endif  // LOCKSTEP_BATCHING_BALANCE_BINS_H_
