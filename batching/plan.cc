#include "batching/plan.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "batching/balance/balance.h"
#include "batching/balance/bins.h"
#include "batching/balance/lower_bound.h"
#include "batching/balance/ride.h"

namespace lockstep::batching {
namespace {

// The bins of one kind become whole steps at the end of the plan.
class PlanBuilder {
 public:
  PlanBuilder(absl::Span<const Sample> samples, const PlanOptions& options)
      : samples_(samples), options_(options), load_(static_cast<size_t>(options.ranks), 0.0) {
    plan_.ranks = options.ranks;
  }

  // `members` are the samples of the kind, wherever they are.
  void Append(int kind, const std::vector<int64_t>& members, const std::vector<Bin>& bins) {
    if (bins.empty()) return;
    const size_t ranks = static_cast<size_t>(options_.ranks);
    const bool round_robin = options_.balance == Balance::kRoundRobin;
    const Bin padding = round_robin ? bins[0] : ShortestCopy(members);
    for (size_t begin = 0; begin < bins.size(); begin += ranks) {
      std::vector<const Bin*> step;
      for (size_t i = begin; i < begin + ranks; ++i)
        step.push_back(i < bins.size() ? &bins[i] : &padding);
      AppendStep(kind, step, padding);
    }
    for (const Bin& bin : bins) {
      plan_.tokens += bin.tokens;
      plan_.ideal += bin.cost / options_.ranks;
    }
  }

  Plan Finish(double lower_bound) {
    plan_.lower_bound = lower_bound;
    return std::move(plan_);
  }

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

absl::Status CheckHosts(const std::map<int, std::set<int>>& hosts) {
  for (const auto& [kind, of_kind] : hosts) {
    for (const int host : of_kind) {
      const auto above = hosts.find(host);
      if (host == kind ||
          (above != hosts.end() && !std::includes(of_kind.begin(), of_kind.end(),
                                                  above->second.begin(), above->second.end())))
        return absl::InvalidArgumentError(absl::StrCat("batching: kind ", host, " hosts kind ",
                                                       kind, ", so its own hosts must host kind ",
                                                       kind, ", too, and no kind hosts itself"));
    }
  }
  return absl::OkStatus();
}

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
  return CheckHosts(options.hosts);
}

// Kinds with few hosts come first: what they host is not settled before they are.
void RideInOrder(absl::Span<const Sample> samples, const PlanOptions& options,
                 std::map<int, std::vector<Bin>>& bins) {
  std::vector<std::pair<size_t, int>> order;  // number of hosts, kind
  for (const auto& [kind, hosts] : options.hosts) order.emplace_back(hosts.size(), kind);
  std::sort(order.begin(), order.end());
  for (const auto& [num_hosts, kind] : order) {
    const auto riders = bins.find(kind);
    if (riders == bins.end()) continue;
    std::vector<std::vector<Bin>*> hosts;
    for (const int host : options.hosts.at(kind)) {
      if (const auto found = bins.find(host); found != bins.end()) hosts.push_back(&found->second);
    }
    Ride(samples, options, riders->second, hosts);
  }
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
  std::map<int, std::vector<Bin>> bins;
  for (const auto& [kind, members] : kinds) {
    if (options.balance == Balance::kLockstep) {
      bins[kind] = BalanceForMakespan(samples, members, checked);
    } else {
      bins[kind] = PackFirstFitDecreasing(samples, members, options.seq_len);
      PriceBins(checked, bins[kind]);
    }
  }
  if (options.balance == Balance::kLockstep) RideInOrder(samples, checked, bins);
  PlanBuilder builder(samples, checked);
  for (const auto& [kind, members] : kinds) builder.Append(kind, members, bins.at(kind));
  if (no_cost.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("batching: the cost function returned ",
                                                   *no_cost,
                                                   "; a cost is a finite number from 0 on"));
  }
  return builder.Finish(options.micro_batch_cost ? 0 : LowerBoundOfKinds(samples, kinds, options));
}

}  // namespace lockstep::batching
