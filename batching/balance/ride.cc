#include "batching/balance/ride.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>

#include "batching/balance/balance.h"
#include "batching/balance/queue.h"

// Each kind is balanced alone first (balance.cc). This plan is kept unless one with riders is
// better, so riders never make a plan worse. Two ways to seat the riders are tried:
//
//    1. Fill the steps of the hosts up to the cost of each step's most expensive bin: time in which
//       the other ranks would wait. Balance the riders that are left alone.
//    2. As balance.cc does, but with the hosts' bins: for some number of steps without hosts, steps
//       whose level is above the average are filled up to their level, and the remaining riders are
//       spread evenly over the other bins: over all, if the others have no room. A host's last step
//       may have fewer bins than ranks: a rider that raises its level costs the ranks that pad,
//       too. So such steps are tried both as steps like others, and as steps that are only filled.
//
// Only bins that hold a sample of their own kind take riders: padding copies do not.
//
// Tested against the best of all plans, and against plans without riders, in plan_ride_test.cc.

namespace lockstep::batching {
namespace {

// The bins of one step of hosts[host]. Their costs are sums over samples, also if options price.
struct HostStep {
  size_t host = 0;
  std::vector<Bin> bins;
  double cost = 0;   // of all bins
  double level = 0;  // of the most expensive bin
};

// A way to seat the riders. All bins are sorted into steps and priced.
struct Seating {
  std::vector<std::vector<Bin>> hosts;
  std::vector<Bin> riders;
  double makespan = 0;
  int64_t steps = 0;
  int64_t padding = 0;  // micro-batches
};

void Count(const std::vector<Bin>& bins, int ranks, Seating& seating) {
  const int64_t size = static_cast<int64_t>(bins.size());
  const int64_t steps = CeilDiv(size, ranks);
  seating.makespan += MakespanOf(bins, ranks);
  seating.steps += steps;
  seating.padding += steps * ranks - size;
}

class Seats {
 public:
  Seats(absl::Span<const Sample> samples, const PlanOptions& options,
        const std::vector<Bin>& riders, const std::vector<std::vector<Bin>*>& hosts)
      : samples_(samples), options_(options), num_hosts_(hosts.size()) {
    std::vector<int64_t> members;
    for (const Bin& bin : riders)
      members.insert(members.end(), bin.samples.begin(), bin.samples.end());
    std::sort(members.begin(), members.end());
    order_ = ByFallingCost(samples, std::move(members));
    for (size_t host = 0; host < hosts.size(); ++host) AddSteps(host, *hosts[host]);
    std::stable_sort(steps_.begin(), steps_.end(),
                     [](const HostStep& a, const HostStep& b) { return a.level > b.level; });
  }

  bool has_padding() const {
    return std::any_of(steps_.begin(), steps_.end(), [&](const HostStep& s) { return Pads(s); });
  }

  // Returns the number of steps without hosts that the riders' tokens need at least.
  int64_t FewestSteps() const {
    int64_t tokens = 0;
    for (const int64_t i : order_) tokens += samples_[static_cast<size_t>(i)].tokens;
    for (const HostStep& step : steps_) {
      for (const Bin& bin : step.bins) tokens -= options_.seq_len - bin.tokens;
    }
    return CeilDiv(std::max<int64_t>(tokens, 0), options_.ranks * options_.seq_len);
  }

  // 1.
  Seating FillOnly() const {
    std::vector<HostStep> steps = steps_;
    Queue queue(samples_, order_);
    for (HostStep& step : steps) Fill(step, queue);
    std::vector<int64_t> rest = queue.Rest();
    std::sort(rest.begin(), rest.end());
    Seating seating;
    if (!rest.empty()) seating.riders = BalanceForMakespan(samples_, rest, options_);
    Finish(std::move(steps), seating);
    return seating;
  }

  // 2. Nullopt if the riders find no room.
  std::optional<Seating> Spread(int64_t steps_without_hosts, bool raise_padded_steps) const {
    std::vector<HostStep> steps = steps_;
    Queue queue(samples_, order_);
    int64_t num_bins = steps_without_hosts * options_.ranks;
    double cost = 0;  // of the hosts' bins that are still open
    std::vector<HostStep*> open;
    for (HostStep& step : steps) {
      if (Pads(step) && !raise_padded_steps) {
        Fill(step, queue);
        continue;
      }
      open.push_back(&step);
      cost += step.cost;
      num_bins += static_cast<int64_t>(step.bins.size());
    }
    Seating seating;
    size_t next = 0;  // the first open step
    while (!queue.empty() && num_bins > 0) {
      const double average = (cost + queue.cost_left()) / static_cast<double>(num_bins);
      const double host = next < open.size() ? open[next]->level : 0;
      const double rider = steps_without_hosts > 0 ? queue.most_expensive().cost : 0;
      if (std::max(host, rider) <= average * (1 + 1e-9)) break;
      if (host >= rider) {
        Fill(*open[next], queue);
        cost -= open[next]->cost;
        num_bins -= static_cast<int64_t>(open[next]->bins.size());
        ++next;
      } else {
        FillLongStep(samples_, options_.seq_len, options_.ranks, queue, seating.riders);
        num_bins -= options_.ranks;
        --steps_without_hosts;
      }
    }
    const std::vector<int64_t> rest = queue.Rest();
    // Where the other steps have no room, the filled ones are raised, too.
    const std::vector<HostStep*> unfilled(open.begin() + static_cast<int64_t>(next), open.end());
    if (!rest.empty() && !SpreadRest(rest, steps_without_hosts, unfilled, seating.riders) &&
        !SpreadRest(rest, steps_without_hosts, open, seating.riders))
      return std::nullopt;
    SortIntoSteps(samples_, options_, seating.riders);
    Finish(std::move(steps), seating);
    return seating;
  }

 private:
  void AddSteps(size_t host, const std::vector<Bin>& bins) {
    for (size_t b = 0; b < bins.size(); ++b) {
      if (b % static_cast<size_t>(options_.ranks) == 0)
        steps_.push_back({.host = host, .bins = {}});
      Bin bin;
      for (const int64_t i : bins[b].samples) Put(samples_, i, bin);
      steps_.back().cost += bin.cost;
      steps_.back().level = std::max(steps_.back().level, bin.cost);
      steps_.back().bins.push_back(std::move(bin));
    }
  }

  bool Pads(const HostStep& step) const {
    return step.bins.size() < static_cast<size_t>(options_.ranks);
  }

  void Fill(HostStep& step, Queue& queue) const {
    // Costs are sums in some order: leave the last bits room.
    const double level = step.level * (1 + 1e-12);
    for (Bin& bin : step.bins) {
      for (int64_t i; (i = queue.Take(level - bin.cost, options_.seq_len - bin.tokens)) >= 0;)
        Put(samples_, i, bin);
    }
  }

  // Spreads over the bins of the open steps, and over further steps, which it appends to `riders`.
  bool SpreadRest(const std::vector<int64_t>& rest, int64_t steps_without_hosts,
                  const std::vector<HostStep*>& open, std::vector<Bin>& riders) const {
    std::vector<Bin> bins;
    for (const HostStep* step : open) bins.insert(bins.end(), step->bins.begin(), step->bins.end());
    const size_t num_hosts = bins.size();
    bins.resize(num_hosts + static_cast<size_t>(steps_without_hosts * options_.ranks));
    std::optional<std::vector<Bin>> spread =
        SpreadEvenly(samples_, rest, options_.seq_len, std::move(bins));
    if (!spread.has_value()) return false;
    auto from = spread->begin();
    for (HostStep* step : open) {
      for (Bin& bin : step->bins) bin = std::move(*from++);
    }
    std::move(from, spread->end(), std::back_inserter(riders));
    return true;
  }

  void Finish(std::vector<HostStep> steps, Seating& seating) const {
    seating.hosts.resize(num_hosts_);
    for (HostStep& step : steps) {
      std::vector<Bin>& bins = seating.hosts[step.host];
      std::move(step.bins.begin(), step.bins.end(), std::back_inserter(bins));
    }
    for (std::vector<Bin>& bins : seating.hosts) {
      SortIntoSteps(samples_, options_, bins);
      Count(bins, options_.ranks, seating);
    }
    Count(seating.riders, options_.ranks, seating);
  }

  absl::Span<const Sample> samples_;
  const PlanOptions& options_;
  size_t num_hosts_;
  std::vector<int64_t> order_;   // the riders, most expensive first
  std::vector<HostStep> steps_;  // of all hosts, by falling level
};

bool IsBetter(const Seating& a, const Seating& b, double worth_a_step) {
  if (a.steps > b.steps) return a.makespan < b.makespan * (1 - worth_a_step);
  if (a.steps < b.steps) return a.makespan <= b.makespan * (1 + worth_a_step);
  const double tolerance = 1e-12 * b.makespan;  // costs are sums in some order
  if (a.makespan < b.makespan - tolerance) return true;
  return a.makespan <= b.makespan + tolerance && a.padding < b.padding;
}

}  // namespace

void Ride(absl::Span<const Sample> samples, const PlanOptions& options, std::vector<Bin>& riders,
          const std::vector<std::vector<Bin>*>& hosts) {
  Seating alone;
  for (const std::vector<Bin>* bins : hosts) Count(*bins, options.ranks, alone);
  if (riders.empty() || alone.steps == 0) return;
  const int64_t steps_of_riders = CeilDiv(static_cast<int64_t>(riders.size()), options.ranks);
  Count(riders, options.ranks, alone);

  Seating best;
  best.makespan = alone.makespan;
  best.steps = alone.steps;
  best.padding = alone.padding;
  bool rides = false;
  const auto consider = [&](std::optional<Seating> seating) {
    if (!seating.has_value() || seating->steps > alone.steps ||
        seating->makespan > alone.makespan * (1 + 1e-12) ||
        !IsBetter(*seating, best, options.worth_a_step))
      return;
    best = *std::move(seating);
    rides = true;
  };
  const Seats seats(samples, options, riders, hosts);
  consider(seats.FillOnly());
  constexpr int64_t kMaxTries = 4;  // numbers of steps: few are as good as many, if they suffice
  const int64_t fewest = seats.FewestSteps();
  for (int64_t steps = fewest; steps <= std::min(steps_of_riders, fewest + kMaxTries - 1);
       ++steps) {
    consider(seats.Spread(steps, /*raise_padded_steps=*/true));
    if (seats.has_padding()) consider(seats.Spread(steps, /*raise_padded_steps=*/false));
  }
  if (!rides) return;
  riders = std::move(best.riders);
  for (size_t host = 0; host < hosts.size(); ++host) *hosts[host] = std::move(best.hosts[host]);
}

}  // namespace lockstep::batching
