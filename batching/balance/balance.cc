#include "batching/balance/balance.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <queue>
#include <utility>

// The balance of kLockstep. Let a step's level be the cost of its most expensive micro-batch; the
// makespan is the sum of levels. Without long samples, filling S x ranks bins evenly would give
// every step the level total / (S x ranks) and the ideal makespan. If a sample costs more than that
// average, its step lasts as long as the sample in any plan. Spreading the rest evenly then leaves
// the other ranks of that step idle. So:
//
//    1. While the most expensive sample left costs more than the average of the rest, fill one step
//       up to that sample's cost: each bin takes the most expensive sample that still fits, by cost
//       and by tokens. So the later steps hold less.
//    2. Spread the rest over all remaining bins, most expensive sample first, each into the
//       cheapest bin (longest processing time first, Graham 1969).
//    3. Sort bins by cost; each run of `ranks` neighbours is a step. For given bins no other
//       grouping has a smaller sum of maxima.
//    4. If the last step has fewer bins than ranks, split its most expensive bins: better than
//       padding.
//
// The number of steps S starts at the number that the tokens need. If step 2 finds no bin with room
// for the tokens, first-fit decreasing (Johnson 1973) packs instead; if that needs more bins, S
// grows. If S grows often, only the last kMaxTries values are tried, so the whole stays
// O(n log n).
//
// Tested against all plans of small cases by MakePlan.IsNearTheBestOfAllPlans in plan_test.cc.

namespace lockstep::batching {
namespace {

std::optional<std::vector<Bin>> FillSteps(absl::Span<const Sample> samples,
                                          const std::vector<int64_t>& order, int64_t seq_len,
                                          int ranks, int64_t steps) {
  Queue queue(samples, order);
  std::vector<Bin> bins;
  int64_t steps_left = steps;
  while (!queue.empty() && steps_left > 0 &&
         queue.most_expensive().cost >
             queue.cost_left() / static_cast<double>(steps_left * ranks) * (1 + 1e-9)) {
    FillLongStep(samples, seq_len, ranks, queue, bins);
    --steps_left;
  }
  const std::vector<int64_t> rest = queue.Rest();
  if (rest.empty()) return bins;
  std::optional<std::vector<Bin>> even = SpreadEvenly(
      samples, rest, seq_len, std::vector<Bin>(static_cast<size_t>(steps_left * ranks)));
  if (!even.has_value()) return std::nullopt;
  std::move(even->begin(), even->end(), std::back_inserter(bins));
  return bins;
}

// 4. Splits bins of the last step, sorted, until it is full or each holds one sample of its kind.
void FillLastStep(absl::Span<const Sample> samples, int ranks, std::vector<Bin>& bins) {
  using Entry = std::pair<double, size_t>;  // cost, bin: the most expensive on top
  std::priority_queue<Entry> most_expensive;
  if (bins.empty()) return;
  const int kind = samples[static_cast<size_t>(bins[0].samples[0])].kind;
  const auto is_of_kind = [&](int64_t i) { return samples[static_cast<size_t>(i)].kind == kind; };
  const auto push = [&](size_t b) {
    if (std::count_if(bins[b].samples.begin(), bins[b].samples.end(), is_of_kind) > 1)
      most_expensive.push({bins[b].cost, b});
  };
  for (size_t b = bins.size() / static_cast<size_t>(ranks) * static_cast<size_t>(ranks);
       b < bins.size(); ++b)
    push(b);
  while (bins.size() % static_cast<size_t>(ranks) != 0 && !most_expensive.empty()) {
    const size_t b = most_expensive.top().second;
    most_expensive.pop();
    const std::vector<int64_t> members = std::move(bins[b].samples);
    bins[b] = Bin();
    Bin other;
    Put(samples, members[0], bins[b]);
    Put(samples, members[1], other);
    for (size_t i = 2; i < members.size(); ++i)
      Put(samples, members[i], bins[b].cost <= other.cost ? bins[b] : other);
    bins.push_back(std::move(other));
    push(b);
    push(bins.size() - 1);
  }
}

}  // namespace

// Step 1.
void FillLongStep(absl::Span<const Sample> samples, int64_t seq_len, int ranks, Queue& queue,
                  std::vector<Bin>& bins) {
  // Costs are sums in some order: leave the last bits room.
  const double level = queue.most_expensive().cost * (1 + 1e-12);
  for (int r = 0; r < ranks && !queue.empty(); ++r) {
    Bin bin;
    for (int64_t i; (i = queue.Take(level - bin.cost, seq_len - bin.tokens)) >= 0;)
      Put(samples, i, bin);
    bins.push_back(std::move(bin));
  }
}

// Steps 3 and 4.
void SortIntoSteps(absl::Span<const Sample> samples, const PlanOptions& options,
                   std::vector<Bin>& bins) {
  std::erase_if(bins, [](const Bin& bin) { return bin.samples.empty(); });
  SortByCost(bins);
  FillLastStep(samples, options.ranks, bins);
  PriceBins(options, bins);
  SortByCost(bins);
}

std::vector<Bin> BalanceForMakespan(absl::Span<const Sample> samples,
                                    const std::vector<int64_t>& members,
                                    const PlanOptions& options) {
  const std::vector<int64_t> order = ByFallingCost(samples, members);
  int64_t tokens = 0;
  for (const int64_t i : members) tokens += samples[static_cast<size_t>(i)].tokens;
  const int64_t ranks = options.ranks;

  std::vector<Bin> best = PackFirstFitDecreasing(samples, members, options.seq_len);
  const int64_t enough = CeilDiv(static_cast<int64_t>(best.size()), ranks);
  SortIntoSteps(samples, options, best);
  double best_makespan = MakespanOf(best, options.ranks);
  int64_t best_steps = enough;
  // One step beyond what first-fit needs is tried too: room to spread evenly.
  constexpr int64_t kMaxTries = 8;
  const int64_t first = std::max(CeilDiv(tokens, ranks * options.seq_len), enough + 2 - kMaxTries);
  for (int64_t steps = first; steps <= enough + 1; ++steps) {
    std::optional<std::vector<Bin>> bins =
        FillSteps(samples, order, options.seq_len, options.ranks, steps);
    if (!bins.has_value()) continue;
    SortIntoSteps(samples, options, *bins);
    const double makespan = MakespanOf(*bins, options.ranks);
    const int64_t used = CeilDiv(static_cast<int64_t>(bins->size()), ranks);
    const double bar =
        used > best_steps ? best_makespan * (1 - options.worth_a_step) : best_makespan;
    if (used < best_steps ? makespan <= best_makespan * (1 + options.worth_a_step)
                          : makespan < bar) {
      best = *std::move(bins);
      best_makespan = makespan;
      best_steps = used;
    }
  }
  return best;
}

}  // namespace lockstep::batching
