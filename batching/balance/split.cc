#include "batching/balance/split.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <iterator>
#include <numeric>
#include <queue>
#include <utility>

// Let C be the cost of all samples, and o the overhead of those that are split. With S steps of R
// ranks, all levels would be (C + o) / (S R). A sample above that level makes its step longer, so:
//
//    1. Split the samples above the level, most expensive first. Each one more raises o and the
//       level a little; stop where the next sample is below.
//    2. Give each the smallest group whose shares are below the level. Largest groups first, put it
//       on the group's least loaded block of ranks, over all steps. Blocks are aligned, so smaller
//       ones lie within larger ones, and all ranks of a block have the same load.
//    3. Spread the rest over all bins, most expensive sample first, each into the cheapest bin. A
//       rank with a share gets fewer samples of its own.
//    4. Bins with shares stay where they are. Sort the others by cost, and fill the steps with
//       them, from the step with the highest level on.
//
// Samples below the level can also be too coarse to fill bins evenly. If no number of steps gives
// even bins, a second round also splits the samples above half of the level. A round tries at most
// kMaxTries numbers of steps, so the whole is O(n log n).
//
// Source: the mixed placement of sequences in ByteScale (arXiv 2502.21231) and FlexSP (2412.01523);
// the algorithm is our own. Tested by PlanSplit.* in plan_split_test.cc.

namespace lockstep::batching {

int MostRanksOf(const Sample& sample, const PlanOptions& options) {
  int most = 1;
  if (!sample.may_split) return most;
  // Each rank has two pieces of at least one token.
  while (2 * most <= std::min(options.max_group, options.ranks) && 4 * most <= sample.tokens)
    most *= 2;
  return most;
}

namespace {

struct LongSample {
  int64_t sample = 0;
  int group = 0;
};

struct Division {
  std::vector<LongSample> to_split;  // largest groups first
  std::vector<int64_t> rest;         // most expensive first
  double cost = 0;                   // of all samples, with the overhead of those that are split
};

// Steps 1 and 2. `order` is by falling cost. Samples above `threshold` times the level are split.
Division Divide(absl::Span<const Sample> samples, const std::vector<int64_t>& order,
                const PlanOptions& options, int64_t steps, double threshold) {
  const double bins = static_cast<double>(steps) * options.ranks;
  double cost = 0;
  for (const int64_t i : order) cost += samples[static_cast<size_t>(i)].cost;
  Division division;
  for (const int64_t i : order) {
    const Sample& sample = samples[static_cast<size_t>(i)];
    if (sample.cost > threshold * cost / bins && MostRanksOf(sample, options) > 1) {
      division.to_split.push_back({.sample = i});
      cost += sample.cost * options.split_overhead;
    } else {
      division.rest.push_back(i);
    }
  }
  division.cost = cost;
  const double level = cost / bins;
  for (LongSample& one : division.to_split) {
    const Sample& sample = samples[static_cast<size_t>(one.sample)];
    const int most = MostRanksOf(sample, options);
    one.group = 2;
    while (one.group < most && sample.cost * (1 + options.split_overhead) > level * one.group)
      one.group *= 2;
  }
  std::stable_sort(division.to_split.begin(), division.to_split.end(),
                   [](const LongSample& a, const LongSample& b) { return a.group > b.group; });
  return division;
}

// Adds a share of the sample to each of the `group` bins from `first` on.
void PutShares(const Sample& sample, const LongSample& one, const PlanOptions& options,
               size_t first, std::vector<Bin>& bins) {
  const Share share = {.sample = one.sample,
                       .first_rank = static_cast<int>(first) % options.ranks,
                       .ranks = one.group};
  for (size_t b = first; b < first + static_cast<size_t>(one.group); ++b) {
    bins[b].shares.push_back(share);
    bins[b].tokens += CeilDiv(sample.tokens, one.group);
    bins[b].cost += sample.cost * (1 + options.split_overhead) / one.group;
    bins[b].overhead += sample.cost * options.split_overhead / one.group;
  }
}

// Returns `steps` x ranks bins with the shares of the samples, or nullopt if they do not fit.
std::optional<std::vector<Bin>> PlaceShares(absl::Span<const Sample> samples,
                                            const std::vector<LongSample>& to_split,
                                            const PlanOptions& options, int64_t steps) {
  std::vector<Bin> bins(static_cast<size_t>(steps * options.ranks));
  using Entry = std::pair<double, size_t>;  // cost, first bin: the least loaded block on top
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> blocks;
  constexpr size_t kMaxLooks = 64;
  std::vector<Entry> full;
  int size = 0;  // ranks of each block
  for (const LongSample& one : to_split) {
    const Sample& sample = samples[static_cast<size_t>(one.sample)];
    if (one.group != size) {
      size = one.group;
      blocks = {};
      for (int64_t step = 0; step < steps; ++step) {
        for (int rank = 0; rank + size <= options.ranks; rank += size) {
          const size_t first = static_cast<size_t>(step * options.ranks + rank);
          blocks.push({bins[first].cost, first});
        }
      }
    }
    const int64_t tokens = CeilDiv(sample.tokens, size);
    full.clear();
    while (!blocks.empty() && full.size() < kMaxLooks &&
           bins[blocks.top().second].tokens + tokens > options.seq_len) {
      full.push_back(blocks.top());
      blocks.pop();
    }
    if (blocks.empty() || full.size() == kMaxLooks) return std::nullopt;
    const size_t first = blocks.top().second;
    blocks.pop();
    PutShares(sample, one, options, first, bins);
    blocks.push({bins[first].cost, first});
    for (const Entry& entry : full) blocks.push(entry);
  }
  return bins;
}

bool IsEmpty(const Bin& bin) { return bin.samples.empty() && bin.shares.empty(); }

// Step 4. Returns whole steps, without those in which all bins are empty.
std::vector<Bin> Arrange(std::vector<Bin> bins, int ranks) {
  const size_t steps = bins.size() / static_cast<size_t>(ranks);
  std::vector<double> level(steps, 0.0);
  std::vector<Bin> free;
  for (size_t b = 0; b < bins.size(); ++b) {
    if (bins[b].shares.empty()) {
      free.push_back(std::move(bins[b]));
    } else {
      double& highest = level[b / static_cast<size_t>(ranks)];
      highest = std::max(highest, bins[b].cost);
    }
  }
  SortByCost(free);
  std::vector<size_t> order(steps);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return level[a] > level[b]; });
  std::vector<Bin> arranged;
  size_t next = 0;
  for (const size_t step : order) {
    const size_t first = arranged.size();
    for (size_t rank = 0; rank < static_cast<size_t>(ranks); ++rank) {
      Bin& bin = bins[step * static_cast<size_t>(ranks) + rank];
      arranged.push_back(std::move(bin.shares.empty() ? free[next++] : bin));
    }
    if (std::all_of(arranged.begin() + static_cast<std::ptrdiff_t>(first), arranged.end(), IsEmpty))
      arranged.resize(first);
  }
  return arranged;
}

double MakespanOfSteps(const std::vector<Bin>& bins, int ranks) {
  double makespan = 0;
  for (size_t first = 0; first < bins.size(); first += static_cast<size_t>(ranks)) {
    double highest = 0;
    for (size_t b = first; b < first + static_cast<size_t>(ranks); ++b)
      highest = std::max(highest, bins[b].cost);
    makespan += highest;
  }
  return makespan;
}

}  // namespace

std::optional<std::vector<Bin>> SplitLongSamples(absl::Span<const Sample> samples,
                                                 const std::vector<int64_t>& members,
                                                 const PlanOptions& options,
                                                 const std::vector<Bin>& whole) {
  constexpr double kCloseToEven = 1.002;
  constexpr int64_t kMaxTries = 8;
  const std::vector<int64_t> order = ByFallingCost(samples, members);
  int64_t tokens = 0;
  bool may_split = false;
  for (const int64_t i : members) {
    const Sample& sample = samples[static_cast<size_t>(i)];
    tokens += sample.tokens;
    may_split |= MostRanksOf(sample, options) > 1;
  }
  if (!may_split) return std::nullopt;
  std::optional<std::vector<Bin>> best;
  double best_makespan = MakespanOf(whole, options.ranks);
  int64_t best_steps = CeilDiv(static_cast<int64_t>(whole.size()), options.ranks);
  const int64_t last = best_steps + 1;
  const int64_t first =
      std::max(CeilDiv(tokens, options.ranks * options.seq_len), last + 1 - kMaxTries);
  bool is_even = false;  // all bins of the best plan are about as expensive as their mean
  for (const double threshold : {1.0, 0.5}) {
    for (int64_t steps = first; steps <= last && !is_even; ++steps) {
      const Division division = Divide(samples, order, options, steps, threshold);
      if (division.to_split.empty()) continue;
      std::optional<std::vector<Bin>> bins =
          PlaceShares(samples, division.to_split, options, steps);
      if (bins.has_value())
        bins = SpreadEvenly(samples, division.rest, options.seq_len, *std::move(bins));
      if (!bins.has_value()) continue;
      std::vector<Bin> arranged = Arrange(*std::move(bins), options.ranks);
      const double makespan = MakespanOfSteps(arranged, options.ranks);
      const int64_t used = static_cast<int64_t>(arranged.size()) / options.ranks;
      const double bar =
          used > best_steps ? best_makespan * (1 - options.worth_a_step) : best_makespan;
      if (makespan >= bar) continue;
      best = std::move(arranged);
      best_makespan = makespan;
      best_steps = used;
      is_even = makespan * options.ranks <= kCloseToEven * division.cost;
    }
  }
  return best;
}

}  // namespace lockstep::batching
