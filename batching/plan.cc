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
#include "batching/balance/split.h"

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
    AddIdeal(bins);
  }

  // `bins` are whole steps in the order of the ranks; empty ones become padding.
  void AppendSteps(int kind, const std::vector<int64_t>& members, const std::vector<Bin>& bins) {
    const Bin padding = ShortestCopy(members);
    for (size_t begin = 0; begin < bins.size(); begin += static_cast<size_t>(options_.ranks)) {
      std::vector<const Bin*> step;
      for (size_t i = begin; i < begin + static_cast<size_t>(options_.ranks); ++i) {
        const bool is_empty = bins[i].samples.empty() && bins[i].shares.empty();
        step.push_back(is_empty ? &padding : &bins[i]);
      }
      AppendStep(kind, step, padding, /*keeps_ranks=*/true);
    }
    AddIdeal(bins);
  }

  Plan Finish() {
    for (const Sample& sample : samples_) plan_.tokens += sample.tokens;
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
  void AppendStep(int kind, const std::vector<const Bin*>& step, const Bin& padding,
                  bool keeps_ranks = false) {
    std::vector<size_t> rank_of(step.size());
    std::iota(rank_of.begin(), rank_of.end(), size_t{0});
    if (options_.balance == Balance::kLockstep && !keeps_ranks) {
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
      micro_batch.shares_begin = static_cast<int64_t>(plan_.shares.size());
      plan_.shares.insert(plan_.shares.end(), bin.shares.begin(), bin.shares.end());
      micro_batch.shares_end = static_cast<int64_t>(plan_.shares.size());
      micro_batch.overhead = bin.overhead;
      for (const Share& share : bin.shares)
        plan_.split_samples += static_cast<size_t>(share.first_rank) == rank_of[i] ? 1 : 0;
      plan_.padding_micro_batches += micro_batch.padding ? 1 : 0;
      load_[rank_of[i]] += bin.cost;
      most_expensive = std::max(most_expensive, bin.cost);
    }
    plan_.makespan += most_expensive;
    ++plan_.micro_steps;
  }

  void AddIdeal(const std::vector<Bin>& bins) {
    for (const Bin& bin : bins) plan_.ideal += (bin.cost - bin.overhead) / options_.ranks;
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

absl::Status CheckSplit(const PlanOptions& options) {
  const int most = options.max_group;
  if (most < 1 || most > kMaxRanks || (most & (most - 1)) != 0)
    return absl::InvalidArgumentError(absl::StrCat(
        "batching: max_group must be a power of two from 1 to ", kMaxRanks, ", not ", most));
  if (!(options.split_overhead >= 0 && !std::isinf(options.split_overhead)))
    return absl::InvalidArgumentError(
        absl::StrCat("batching: the overhead of a split sample must be a finite number from 0 on, "
                     "not ",
                     options.split_overhead));
  if (most == 1) return absl::OkStatus();
  if (options.micro_batch_cost)
    return absl::InvalidArgumentError(
        "batching: a sample cannot be split if the cost is a function of a micro-batch; give costs "
        "that add up over samples");
  if (options.balance != Balance::kMakespan)
    return absl::InvalidArgumentError(
        "batching: samples are split to lower the makespan, which round_robin does not weigh");
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
  if (absl::Status split = CheckSplit(options); !split.ok()) return split;
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

using Kinds = std::map<int, std::vector<int64_t>>;

// Returns the plan in which long samples are split, and no sample rides; nullopt if no kind gets
// better by splitting.
std::optional<Plan> MakeSplitPlan(absl::Span<const Sample> samples, const Kinds& kinds,
                                  const std::map<int, std::vector<Bin>>& whole,
                                  const PlanOptions& options) {
  bool is_split = false;
  PlanBuilder builder(samples, options);
  for (const auto& [kind, members] : kinds) {
    const std::optional<std::vector<Bin>> bins =
        SplitLongSamples(samples, members, options, whole.at(kind));
    if (bins.has_value()) {
      builder.AppendSteps(kind, members, *bins);
      is_split = true;
    } else {
      builder.Append(kind, members, whole.at(kind));
    }
  }
  if (!is_split) return std::nullopt;
  return builder.Finish();
}

// Returns whether the makespan of the split plan pays for its micro-steps.
bool IsBetter(const Plan& split, const Plan& whole, double worth_a_step) {
  const double bar = split.micro_steps > whole.micro_steps ? 1 - worth_a_step : 1;
  return split.makespan < whole.makespan * bar;
}

}  // namespace

std::vector<Piece> PiecesOf(int64_t tokens, int ranks, int place) {
  // The first pieces lie in the order of the ranks, the second ones mirror them. Tokens that are
  // left go to the ranks in turn: the first one to the second piece, another one to the first.
  const int64_t base = tokens / (2 * ranks), left = tokens % (2 * ranks);
  const auto firsts = [&](int64_t rank) {
    return rank * base + std::min(std::max<int64_t>(left - ranks, 0), rank);
  };
  const auto seconds = [&](int64_t rank) { return rank * base + std::min(left, rank); };
  return {{firsts(place), firsts(place + 1)},
          {tokens - seconds(place + 1), tokens - seconds(place)}};
}

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
  Kinds kinds;
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
  std::optional<Plan> split;
  if (options.max_group > 1) split = MakeSplitPlan(samples, kinds, bins, checked);
  if (options.balance == Balance::kLockstep) RideInOrder(samples, checked, bins);
  PlanBuilder builder(samples, checked);
  for (const auto& [kind, members] : kinds) builder.Append(kind, members, bins.at(kind));
  if (no_cost.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("batching: the cost function returned ",
                                                   *no_cost,
                                                   "; a cost is a finite number from 0 on"));
  }
  Plan plan = builder.Finish();
  if (split.has_value() && IsBetter(*split, plan, options.worth_a_step)) plan = *std::move(split);
  const bool may_split = std::any_of(samples.begin(), samples.end(), [&](const Sample& sample) {
    return MostRanksOf(sample, options) > 1;
  });
  if (!options.micro_batch_cost)
    plan.lower_bound = may_split ? plan.ideal : LowerBoundOfKinds(samples, kinds, options);
  return plan;
}

}  // namespace lockstep::batching
