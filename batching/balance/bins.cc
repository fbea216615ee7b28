#include "batching/balance/bins.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

#include "batching/balance/first_fit.h"

namespace lockstep::batching {

void Put(absl::Span<const Sample> samples, int64_t i, Bin& bin) {
  bin.samples.push_back(i);
  bin.tokens += samples[static_cast<size_t>(i)].tokens;
  bin.cost += samples[static_cast<size_t>(i)].cost;
}

std::vector<int64_t> ByFallingCost(absl::Span<const Sample> samples, std::vector<int64_t> members) {
  std::stable_sort(members.begin(), members.end(), [&](int64_t a, int64_t b) {
    return samples[static_cast<size_t>(a)].cost > samples[static_cast<size_t>(b)].cost;
  });
  return members;
}

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

std::optional<std::vector<Bin>> SpreadEvenly(absl::Span<const Sample> samples,
                                             const std::vector<int64_t>& order, int64_t seq_len,
                                             std::vector<Bin> bins) {
  int64_t fewest = seq_len;
  for (const int64_t i : order) fewest = std::min(fewest, samples[static_cast<size_t>(i)].tokens);
  using Entry = std::pair<double, size_t>;  // cost, bin: the cheapest on top
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> cheapest;
  const auto push = [&](size_t b) {
    if (bins[b].tokens + fewest <= seq_len) cheapest.push({bins[b].cost, b});
  };
  for (size_t b = 0; b < bins.size(); ++b) push(b);
  constexpr size_t kMaxLooks = 64;
  std::vector<Entry> full;
  for (const int64_t i : order) {
    const int64_t tokens = samples[static_cast<size_t>(i)].tokens;
    full.clear();
    while (!cheapest.empty() && full.size() < kMaxLooks &&
           bins[cheapest.top().second].tokens + tokens > seq_len) {
      full.push_back(cheapest.top());
      cheapest.pop();
    }
    if (cheapest.empty() || full.size() == kMaxLooks) return std::nullopt;
    const size_t b = cheapest.top().second;
    cheapest.pop();
    Put(samples, i, bins[b]);
    push(b);
    for (const Entry& entry : full) cheapest.push(entry);
  }
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

double MakespanOf(const std::vector<Bin>& bins, int ranks) {
  double makespan = 0;
  for (size_t i = 0; i < bins.size(); i += static_cast<size_t>(ranks)) makespan += bins[i].cost;
  return makespan;
}

}  // namespace lockstep::batching
