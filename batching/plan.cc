#include "batching/plan.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <queue>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "batching/first_fit.h"
#include "batching/lower_bound.h"

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
// Tested against all plans of small cases by PlanTest.IsNearTheBestOfAllPlans.

namespace lockstep::batching {
namespace {

struct Bin {
  std::vector<int64_t> samples;
  int64_t tokens = 0;
  double cost = 0;
};

void Put(absl::Span<const Sample> samples, int64_t i, Bin& bin) {
  bin.samples.push_back(i);
  bin.tokens += samples[static_cast<size_t>(i)].tokens;
  bin.cost += samples[static_cast<size_t>(i)].cost;
}

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

std::vector<Bin> PackFirstFitDecreasing(absl::Span<const Sample> samples,
                                        const std::vector<int64_t>& members, int64_t seq_len) {
  std::vector<int64_t> order = members;
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return samples[static_cast<size_t>(a)].tokens > samples[static_cast<size_t>(b)].tokens;
  });
  FirstFit first_fit(seq_len);
  std::vector<Bin> bins;
  for (const int64_t i : order) {
    const size_t bin = first_fit.Place(samples[static_cast<size_t>(i)].tokens);
    if (bin == bins.size()) bins.emplace_back();
    Put(samples, i, bins[bin]);
  }
  return bins;
}

// --- Lockstep ------------------------------------------------------------------------------------

// Samples in order of falling cost, taken out one by one. A tree holds the fewest tokens of any
// sample below each node, so finding the most expensive sample that fits takes O(log n).
class Queue {
 public:
  Queue(absl::Span<const Sample> samples, const std::vector<int64_t>& order)
      : samples_(samples), order_(order) {
    while (capacity_ < order.size()) capacity_ *= 2;
    fewest_.assign(2 * capacity_, kTaken);
    for (size_t position = 0; position < order.size(); ++position) {
      fewest_[capacity_ + position] = at(order[position]).tokens;
      cost_left_ += at(order[position]).cost;
    }
    for (size_t node = capacity_ - 1; node >= 1; --node)
      fewest_[node] = std::min(fewest_[2 * node], fewest_[2 * node + 1]);
  }

  bool empty() const { return fewest_[1] == kTaken; }
  double cost_left() const { return cost_left_; }
  const Sample& most_expensive() const { return at(order_[First(0, kTaken - 1)]); }

  // Takes the most expensive sample of at most this cost and so many tokens; returns -1 if there is
  // no such sample.
  int64_t Take(double most_cost, int64_t most_tokens) {
    const auto begin = std::partition_point(order_.begin(), order_.end(),
                                            [&](int64_t i) { return at(i).cost > most_cost; });
    const size_t position = First(static_cast<size_t>(begin - order_.begin()), most_tokens);
    if (position == order_.size()) return -1;
    size_t node = capacity_ + position;
    fewest_[node] = kTaken;
    for (node /= 2; node >= 1; node /= 2)
      fewest_[node] = std::min(fewest_[2 * node], fewest_[2 * node + 1]);
    cost_left_ -= at(order_[position]).cost;
    return order_[position];
  }

  // Returns the remaining samples, most expensive first.
  std::vector<int64_t> Rest() const {
    std::vector<int64_t> rest;
    for (size_t position = 0; position < order_.size(); ++position) {
      if (fewest_[capacity_ + position] != kTaken) rest.push_back(order_[position]);
    }
    return rest;
  }

 private:
  static constexpr int64_t kTaken = std::numeric_limits<int64_t>::max();

  const Sample& at(int64_t i) const { return samples_[static_cast<size_t>(i)]; }

  // The first position from `from` on of a sample of at most `most_tokens`; order_.size() where
  // none is.
  size_t First(size_t from, int64_t most_tokens) const {
    size_t node = capacity_ + from;
    if (from >= order_.size()) return order_.size();
    // Up until a subtree to the right holds one, then down to its leftmost.
    while (fewest_[node] > most_tokens) {
      while (node % 2 == 1) node /= 2;
      if (node == 0) return order_.size();
      ++node;
    }
    while (node < capacity_) node = fewest_[2 * node] <= most_tokens ? 2 * node : 2 * node + 1;
    return node - capacity_;
  }

  absl::Span<const Sample> samples_;
  const std::vector<int64_t>& order_;
  size_t capacity_ = 1;
  std::vector<int64_t> fewest_;  // heap order; leaves from capacity_ on
  double cost_left_ = 0;
};

// Step 1: fills the bins of a step up to the cost of the most expensive sample left.
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

// Step 2: spreads `order`, most expensive first, over `count` bins. Returns nullopt if the tokens
// of a sample fit nowhere.
std::optional<std::vector<Bin>> SpreadEvenly(absl::Span<const Sample> samples,
                                             const std::vector<int64_t>& order, int64_t seq_len,
                                             int64_t count) {
  std::vector<Bin> bins(static_cast<size_t>(count));
  using Entry = std::pair<double, int64_t>;  // cost, bin: the cheapest on top
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> cheapest;
  for (int64_t b = 0; b < count; ++b) cheapest.push({0, b});
  constexpr size_t kMaxLooks = 64;
  std::vector<Entry> full;
  for (const int64_t i : order) {
    const int64_t tokens = samples[static_cast<size_t>(i)].tokens;
    full.clear();
    while (!cheapest.empty() && full.size() < kMaxLooks &&
           bins[static_cast<size_t>(cheapest.top().second)].tokens + tokens > seq_len) {
      full.push_back(cheapest.top());
      cheapest.pop();
    }
    if (cheapest.empty() || full.size() == kMaxLooks) return std::nullopt;
    const int64_t b = cheapest.top().second;
    cheapest.pop();
    Put(samples, i, bins[static_cast<size_t>(b)]);
    cheapest.push({bins[static_cast<size_t>(b)].cost, b});
    for (const Entry& entry : full) cheapest.push(entry);
  }
  return bins;
}

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
  std::optional<std::vector<Bin>> even = SpreadEvenly(samples, rest, seq_len, steps_left * ranks);
  if (!even.has_value()) return std::nullopt;
  std::move(even->begin(), even->end(), std::back_inserter(bins));
  return bins;
}

void PriceBins(const PlanOptions& options, std::vector<Bin>& bins) {
  if (!options.micro_batch_cost) return;
  for (Bin& bin : bins) bin.cost = options.micro_batch_cost(bin.samples);
}

void SortByCost(std::vector<Bin>& bins) {
  std::stable_sort(bins.begin(), bins.end(),
                   [](const Bin& a, const Bin& b) { return a.cost > b.cost; });
}

// 4. Splits bins of the last step, sorted, until it is full or each holds one sample.
void FillLastStep(absl::Span<const Sample> samples, int ranks, std::vector<Bin>& bins) {
  using Entry = std::pair<double, size_t>;  // cost, bin: the most expensive on top
  std::priority_queue<Entry> most_expensive;
  const auto push = [&](size_t b) {
    if (bins[b].samples.size() > 1) most_expensive.push({bins[b].cost, b});
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

// 3. Sorts by falling cost, without empty bins; returns the makespan.
double SortIntoSteps(absl::Span<const Sample> samples, const PlanOptions& options,
                     std::vector<Bin>& bins) {
  std::erase_if(bins, [](const Bin& bin) { return bin.samples.empty(); });
  SortByCost(bins);
  FillLastStep(samples, options.ranks, bins);
  PriceBins(options, bins);
  SortByCost(bins);
  double makespan = 0;
  for (size_t i = 0; i < bins.size(); i += static_cast<size_t>(options.ranks))
    makespan += bins[i].cost;
  return makespan;
}

std::vector<Bin> BalanceInLockstep(absl::Span<const Sample> samples,
                                   const std::vector<int64_t>& members,
                                   const PlanOptions& options) {
  std::vector<int64_t> order = members;
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return samples[static_cast<size_t>(a)].cost > samples[static_cast<size_t>(b)].cost;
  });
  int64_t tokens = 0;
  for (const int64_t i : members) tokens += samples[static_cast<size_t>(i)].tokens;
  const int64_t ranks = options.ranks;

  std::vector<Bin> best = PackFirstFitDecreasing(samples, members, options.seq_len);
  const int64_t enough = CeilDiv(static_cast<int64_t>(best.size()), ranks);
  double best_makespan = SortIntoSteps(samples, options, best);
  int64_t best_steps = enough;
  // One step beyond what first-fit needs is tried too: room to spread evenly.
  constexpr int64_t kMaxTries = 8;
  const int64_t first = std::max(CeilDiv(tokens, ranks * options.seq_len), enough + 2 - kMaxTries);
  for (int64_t steps = first; steps <= enough + 1; ++steps) {
    std::optional<std::vector<Bin>> bins =
        FillSteps(samples, order, options.seq_len, options.ranks, steps);
    if (!bins.has_value()) continue;
    const double makespan = SortIntoSteps(samples, options, *bins);
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

// --- The plan ------------------------------------------------------------------------------------

// The bins of one kind become whole steps at the end of the plan.
class PlanBuilder {
 public:
  PlanBuilder(absl::Span<const Sample> samples, const PlanOptions& options)
      : samples_(samples), options_(options), load_(static_cast<size_t>(options.ranks), 0.0) {
    plan_.ranks = options.ranks;
  }

  void Append(int kind, const std::vector<int64_t>& members, std::vector<Bin> bins) {
    const size_t ranks = static_cast<size_t>(options_.ranks);
    const bool round_robin = options_.balance == Balance::kRoundRobin;
    const Bin padding = round_robin ? bins[0] : ShortestCopy(members);
    for (size_t begin = 0; begin < bins.size(); begin += ranks) {
      std::vector<const Bin*> step;
      for (size_t i = begin; i < begin + ranks; ++i)
        step.push_back(i < bins.size() ? &bins[i] : &padding);
      AppendStep(kind, step, padding);
    }
    if (!options_.micro_batch_cost)
      plan_.lower_bound += LowerBound(samples_, members, options_.seq_len, options_.ranks);
    for (const Bin& bin : bins) {
      plan_.tokens += bin.tokens;
      plan_.ideal += bin.cost / options_.ranks;
    }
  }

  Plan Finish() { return std::move(plan_); }

 private:
  Bin ShortestCopy(const std::vector<int64_t>& members) const {
    int64_t shortest = members[0];
    for (const int64_t i : members) {
      const Sample& a = samples_[static_cast<size_t>(i)];
      const Sample& b = samples_[static_cast<size_t>(shortest)];
      if (std::make_pair(a.least_cost, a.least_tokens) <
          std::make_pair(b.least_cost, b.least_tokens))
        shortest = i;
    }
    Bin bin;
    bin.samples = {shortest};
    bin.tokens = samples_[static_cast<size_t>(shortest)].least_tokens;
    bin.cost = samples_[static_cast<size_t>(shortest)].least_cost;
    return bin;
  }

  // The assignment of a step's bins to ranks does not change the makespan. The most expensive bin
  // goes to the rank with the least cost so far, so that totals even out too. Round robin keeps the
  // order.
  void AppendStep(int kind, const std::vector<const Bin*>& step, const Bin& padding) {
    std::vector<size_t> rank_of(step.size());
    std::iota(rank_of.begin(), rank_of.end(), size_t{0});
    if (options_.balance == Balance::kLockstep) {
      std::stable_sort(rank_of.begin(), rank_of.end(),
                       [&](size_t a, size_t b) { return load_[a] < load_[b]; });
    }
    const size_t first = plan_.micro_batches.size();
    plan_.micro_batches.resize(first + step.size());
    double most_expensive = 0;
    for (size_t i = 0; i < step.size(); ++i) {
      const Bin& bin = *step[i];
      MicroBatch& micro_batch = plan_.micro_batches[first + rank_of[i]];
      micro_batch.kind = kind;
      micro_batch.padding = step[i] == &padding;
      micro_batch.cost = bin.cost;
      micro_batch.begin = static_cast<int64_t>(plan_.samples.size());
      plan_.samples.insert(plan_.samples.end(), bin.samples.begin(), bin.samples.end());
      micro_batch.end = static_cast<int64_t>(plan_.samples.size());
      plan_.padding_micro_batches += micro_batch.padding ? 1 : 0;
      load_[rank_of[i]] += bin.cost;
      most_expensive = std::max(most_expensive, bin.cost);
    }
    plan_.makespan += most_expensive;
    ++plan_.micro_steps;
  }

  absl::Span<const Sample> samples_;
  const PlanOptions& options_;
  std::vector<double> load_;  // cost of each rank so far
  Plan plan_;
};

bool IsCost(double cost) { return cost >= 0 && !std::isinf(cost); }

absl::Status Check(absl::Span<const Sample> samples, const PlanOptions& options) {
  if (options.ranks < 1 || options.ranks > kMaxRanks)
    return absl::InvalidArgumentError(
        absl::StrCat("batching: ranks must be from 1 to ", kMaxRanks, ", not ", options.ranks));
  if (options.seq_len < 1 || options.seq_len > kMaxSeqLen)
    return absl::InvalidArgumentError(absl::StrCat("batching: seq_len must be from 1 to ",
                                                   kMaxSeqLen, ", not ", options.seq_len));
  if (!(options.worth_a_step >= 0 && options.worth_a_step <= 1))
    return absl::InvalidArgumentError(absl::StrCat(
        "batching: worth_a_step must be a share from 0 to 1, not ", options.worth_a_step));
  for (size_t i = 0; i < samples.size(); ++i) {
    const Sample& s = samples[i];
    if (s.tokens < 1 || s.tokens > options.seq_len) {
      return absl::InvalidArgumentError(
          absl::StrCat("batching: sample ", i, " has ", s.tokens,
                       " tokens; a sample has from 1 to seq_len = ", options.seq_len));
    }
    for (const double cost : {s.cost, s.least_cost}) {
      if (!IsCost(cost))
        return absl::InvalidArgumentError(absl::StrCat("batching: sample ", i, " costs ", cost,
                                                       "; a cost is a finite number from 0 on"));
    }
    if (s.least_tokens < 1 || s.least_tokens > s.tokens) {
      return absl::InvalidArgumentError(
          absl::StrCat("batching: the shortest copy of sample ", i, " has ", s.least_tokens,
                       " tokens; it has from 1 to the sample's ", s.tokens));
    }
    if (s.kind < 0)
      return absl::InvalidArgumentError(
          absl::StrCat("batching: sample ", i, " is of kind ", s.kind, "; kinds count from 0"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Plan> MakePlan(absl::Span<const Sample> samples, const PlanOptions& options) {
  absl::Status status = Check(samples, options);
  if (!status.ok()) return status;
  // Treats an invalid cost (NaN, infinite or negative) as 0, and reports it at the end.
  std::optional<double> no_cost;
  PlanOptions checked = options;
  if (options.micro_batch_cost) {
    checked.micro_batch_cost = [&](absl::Span<const int64_t> members) {
      const double cost = options.micro_batch_cost(members);
      if (IsCost(cost)) return cost;
      no_cost = cost;
      return 0.0;
    };
  }
  std::map<int, std::vector<int64_t>> kinds;
  for (size_t i = 0; i < samples.size(); ++i)
    kinds[samples[i].kind].push_back(static_cast<int64_t>(i));
  PlanBuilder builder(samples, checked);
  for (const auto& [kind, members] : kinds) {
    std::vector<Bin> bins;
    if (options.balance == Balance::kLockstep) {
      bins = BalanceInLockstep(samples, members, checked);
    } else {
      bins = PackFirstFitDecreasing(samples, members, options.seq_len);
      PriceBins(checked, bins);
    }
    builder.Append(kind, members, std::move(bins));
  }
  if (no_cost.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("batching: the cost function returned ",
                                                   *no_cost,
                                                   "; a cost is a finite number from 0 on"));
  }
  return builder.Finish();
}

}  // namespace lockstep::batching
