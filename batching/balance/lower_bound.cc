#include "batching/balance/lower_bound.h"

#include <algorithm>
#include <functional>

// Sort steps by their level, the cost of their most expensive micro-batch. Samples longer than
// seq_len / 2 never share a micro-batch, so the level of step k is at least the cost of the (k x
// ranks + 1)-th of them. And k steps hold at most A(k), the cost of the densest k x ranks x seq_len
// tokens. So the levels of the other steps sum to at least (total - A(k)) / ranks. The bound is the
// largest sum of both over k.
//
// Kinds that never share a step add up. Kinds that may, by riding, are at least as long as all
// their samples would be if any could share a micro-batch. They are at least as long, too, as the
// kinds among them that never ride, whose steps are apart.
//
// Tested against the best of all plans of small cases by MakePlan.IsNearTheBestOfAllPlans, and with
// riders by PlanRide.IsNearTheBestOfAllPlans.

namespace lockstep::batching {

double LowerBound(absl::Span<const Sample> samples, const std::vector<int64_t>& members,
                  int64_t seq_len, int ranks) {
  double total = 0;
  std::vector<double> alone;  // costs of samples that share a bin with none of their like
  std::vector<int64_t> by_density = members;
  for (const int64_t i : members) {
    const Sample& sample = samples[static_cast<size_t>(i)];
    total += sample.cost;
    if (2 * sample.tokens > seq_len) alone.push_back(sample.cost);
  }
  std::sort(alone.begin(), alone.end(), std::greater<>());
  const auto density = [&](int64_t i) {
    return samples[static_cast<size_t>(i)].cost /
           static_cast<double>(samples[static_cast<size_t>(i)].tokens);
  };
  std::sort(by_density.begin(), by_density.end(),
            [&](int64_t a, int64_t b) { return density(a) > density(b); });

  // The most expensive sample bounds the first level even where it could share.
  double levels = 0;
  for (const int64_t i : members) levels = std::max(levels, samples[static_cast<size_t>(i)].cost);
  double bound = std::max(total / ranks, levels);
  double held = 0;
  size_t next = 0;
  double taken_tokens = 0;  // of by_density[next]
  for (size_t k = 1; next < by_density.size(); ++k) {
    double room = ranks * static_cast<double>(seq_len);
    while (room > 0 && next < by_density.size()) {
      const double left =
          static_cast<double>(samples[static_cast<size_t>(by_density[next])].tokens) - taken_tokens;
      const double take = std::min(left, room);
      held += take * density(by_density[next]);
      room -= take;
      taken_tokens += take;
      if (take == left) {
        ++next;
        taken_tokens = 0;
      }
    }
    bound = std::max(bound, levels + std::max(0.0, total - held) / ranks);
    const size_t first_of_next_step = k * static_cast<size_t>(ranks);
    if (first_of_next_step >= alone.size()) break;
    levels += alone[first_of_next_step];
  }
  return std::max(bound, levels);
}

double LowerBoundOfKinds(absl::Span<const Sample> samples,
                         const std::map<int, std::vector<int64_t>>& kinds,
                         const PlanOptions& options) {
  const auto bound = [&](const std::vector<int64_t>& members) {
    return LowerBound(samples, members, options.seq_len, options.ranks);
  };
  // Joins the groups of kinds that may share a step.
  std::map<int, int> group;  // of each kind
  for (const auto& [kind, members] : kinds) group[kind] = kind;
  std::map<int, bool> rides;
  for (const auto& [kind, hosts] : options.hosts) {
    if (options.balance != Balance::kLockstep || kinds.count(kind) == 0) continue;
    for (const int host : hosts) {
      if (kinds.count(host) == 0) continue;
      rides[kind] = true;
      const int from = group.at(host), to = group.at(kind);
      for (auto& [other, its_group] : group) {
        if (its_group == from) its_group = to;
      }
    }
  }
  std::map<int, std::vector<int64_t>> members_of;
  std::map<int, double> apart;
  for (const auto& [kind, members] : kinds) {
    std::vector<int64_t>& all = members_of[group.at(kind)];
    all.insert(all.end(), members.begin(), members.end());
    if (!rides[kind]) apart[group.at(kind)] += bound(members);
  }
  double sum = 0;
  for (const auto& [its_group, members] : members_of)
    sum += std::max(bound(members), apart[its_group]);
  return sum;
}

}  // namespace lockstep::batching
