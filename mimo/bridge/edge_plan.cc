#include "mimo/bridge/edge_plan.h"

#include <algorithm>
#include <utility>

#include "ATen/ops/empty.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/hash.h"
#include "base/torch/versions/collectives.h"

namespace lockstep::mimo {
namespace {

std::string InWords(const std::vector<int64_t>& rows) {
  constexpr size_t kShown = 32;
  if (!rows.empty() && std::all_of(rows.begin(), rows.end(), [](int64_t n) { return n == 1; }))
    return absl::StrCat(rows.size(), " samples of one row");
  std::vector<int64_t> shown(rows.begin(), rows.begin() + std::min(rows.size(), kShown));
  return absl::StrCat("rows per sample {", absl::StrJoin(shown, ", "),
                      rows.size() > kShown ? absl::StrCat(", ... ", rows.size(), " in all") : "",
                      "}");
}

// Whether every rank of `to` has on `from` all rows that it needs. The same on every rank, since
// all look at all.
bool IsLocal(const Route& route) {
  for (int64_t place = 0; place < route.to.num_places(); ++place) {
    const int64_t on_from = route.from.place_of(route.to.ranks[static_cast<size_t>(place)]);
    if (on_from < 0) return false;
    const Range needs = route.to.shard(place / route.to.lanes);
    const Range has = route.from.shard(on_from / route.from.lanes);
    if (needs.size() > 0 && (needs.begin < has.begin || needs.end > has.end)) return false;
  }
  return true;
}

// Adds the ranks of the other side's replicas that have samples of this rank's replica.
void AddOverlapping(const Route& route, int64_t rank, EdgePlan& plan) {
  for (int64_t f = 0; f < route.from.num_places(); ++f) {
    const Range has = route.from.shard(f / route.from.lanes);
    const int32_t source = route.from.ranks[static_cast<size_t>(f)];
    for (int64_t t = 0; t < route.to.num_places(); ++t) {
      const Range wants = route.to.shard(t / route.to.lanes);
      if (std::max(has.begin, wants.begin) >= std::min(has.end, wants.end)) continue;
      const int32_t destination = route.to.ranks[static_cast<size_t>(t)];
      if (destination == rank) AddPeer(plan.sources, source, rank);
      if (source == rank) AddPeer(plan.destinations, destination, rank);
    }
  }
}

// Returns the needs as text: "0-4 7-9; 5-6".
std::string TextOf(const Needs& needs) {
  std::vector<std::string> parts;
  for (const std::vector<Range>& part : needs) {
    parts.push_back(absl::StrJoin(part, " ", [](std::string* out, const Range& range) {
      absl::StrAppend(out, range.begin, "-", range.end);
    }));
  }
  return absl::StrJoin(parts, "; ");
}

// Returns "needs of {4, 2} rows".
std::string InWords(const Needs& needs) {
  std::vector<int64_t> sizes;
  for (const std::vector<Range>& part : needs) {
    sizes.push_back(0);
    for (const Range& range : part) sizes.back() += range.size();
  }
  constexpr size_t kShown = 32;
  const bool shows_all = sizes.size() <= kShown;
  if (!shows_all) sizes.resize(kShown);
  return absl::StrCat("needs of {", absl::StrJoin(sizes, ", "), shows_all ? "" : ", ...", "} rows");
}

}  // namespace

std::string Describe(const std::vector<TensorSpec>& specs, int64_t dim) {
  std::vector<std::string> parts;
  for (const TensorSpec& spec : specs) {
    std::vector<std::string> sizes;
    for (size_t d = 0; d < spec.sizes.size(); ++d) {
      sizes.push_back(static_cast<int64_t>(d) == dim ? "rows" : absl::StrCat(spec.sizes[d]));
    }
    parts.push_back(absl::StrCat(c10::toString(spec.dtype), " [", absl::StrJoin(sizes, ", "), "]"));
  }
  return absl::StrJoin(parts, " and ");
}

EdgePlan PlanEdge(const Topology& topology, int edge, int64_t rank, const Route& usual,
                  const Ownership& ownership, int64_t parts, const std::optional<Needs>& needs) {
  EdgePlan plan;
  plan.ownership = ownership;
  plan.needs = needs;
  const Route route =
      ValueOrThrow(PlanRoute(topology, edge, ownership, RowsOf::kTokens, Division::kUneven));
  const std::vector<int64_t> rows = RowsPerSample(ownership, RowsOf::kTokens);
  plan.rows = InWords(rows);
  const std::string text = absl::StrCat("rows ", absl::StrJoin(rows, " "));
  if (needs.has_value()) {
    RankRoutes routes = ValueOrThrow(RoutesOfNeeds(route, parts, *needs, rank));
    plan.forward = std::move(routes.forward);
    plan.backward = std::move(routes.backward);
    for (const Route* each : {&usual, &route}) AddOverlapping(*each, rank, plan);
    plan.fingerprint = Fingerprint(absl::StrCat(text, " needs ", TextOf(*needs)));
    plan.rows = absl::StrCat(plan.rows, " and ", InWords(*needs));
    return plan;
  }
  plan.fingerprint = Fingerprint(text);
  plan.forward = RouteOfRank(route, rank);
  plan.backward = RouteOfRank(Transpose(route), rank);
  for (const Route* each : {&usual, &route}) {
    for (const Transfer& t : each->transfers) {
      const int32_t source = each->from.ranks[static_cast<size_t>(t.from_place)];
      const int32_t destination = each->to.ranks[static_cast<size_t>(t.to_place)];
      if (destination == rank) AddPeer(plan.sources, source, rank);
      if (source == rank) AddPeer(plan.destinations, destination, rank);
    }
  }
  if (IsLocal(route)) {
    const Range needs = plan.forward.receive_shard;
    const int64_t begin = plan.forward.send_shard.begin;
    plan.local = needs.size() == 0 ? Range{} : Range{needs.begin - begin, needs.end - begin};
  }
  return plan;
}

Route UsualRoute(const Topology& topology, int edge) {
  const Module& from = topology.modules()[static_cast<size_t>(topology.from(edge))];
  const Module& to = topology.modules()[static_cast<size_t>(topology.to(edge))];
  const int64_t lanes = from.tp * from.cp * to.tp * to.cp;
  return ValueOrThrow(
      PlanRoute(topology, edge, UniformOwnership(from.dp * to.dp, lanes), RowsOf::kTokens));
}

uint64_t Fingerprint(const std::string& text) {
  if (text.empty()) return 0;
  const uint64_t hash = base::TextHash(text);
  return hash ^ hash >> 32;
}

void AddPeer(std::vector<int32_t>& peers, int32_t peer, int64_t rank) {
  if (peer != rank && std::find(peers.begin(), peers.end(), peer) == peers.end())
    peers.push_back(peer);
}

void GatherLanes(c10d::ProcessGroup& group, const std::vector<Range>& parts, at::Tensor& rows) {
  int64_t largest = 0;
  for (const Range& part : parts) largest = std::max(largest, part.size());
  if (largest == 0) return;
  const auto own = static_cast<size_t>(group.getRank());
  const bool even = std::all_of(parts.begin(), parts.end(),
                                [&](const Range& part) { return part.size() == largest; });
  std::vector<int64_t> sizes = rows.sizes().vec();
  sizes[0] = largest;
  at::Tensor input = at::empty(sizes, rows.options());
  input.narrow(0, 0, parts[own].size()).copy_(rows.narrow(0, parts[own].begin, parts[own].size()));
  sizes[0] = largest * static_cast<int64_t>(parts.size());
  at::Tensor output = even ? rows : at::empty(sizes, rows.options());
  base::AllGatherSingle(group, output, input)->wait();
  for (size_t l = 0; !even && l < parts.size(); ++l) {
    rows.narrow(0, parts[l].begin, parts[l].size())
        .copy_(output.narrow(0, static_cast<int64_t>(l) * largest, parts[l].size()));
  }
}

std::optional<int64_t> LaneThatDiffers(c10d::ProcessGroup& group, int64_t tp,
                                       const at::Tensor& rows) {
  if (rows.numel() == 0) return std::nullopt;
  at::Tensor all = at::empty({group.getSize() * rows.numel()}, rows.options());
  at::Tensor own = rows.reshape({-1});
  base::AllGatherSingle(group, all, own)->wait();
  const int64_t first = group.getRank() / tp * tp;
  const at::Tensor lanes =
      all.view({group.getSize(), -1}).narrow(0, first, tp).to(at::kDouble).nan_to_num();
  // Kernels that add in another order each time differ in the last bits. A share of a sum that was
  // not added up differs by about as much as the gradient itself.
  const double tolerance = rows.scalar_type() == at::kDouble     ? 1e-7
                           : rows.scalar_type() == at::kFloat    ? 1e-4
                           : rows.scalar_type() == at::kBFloat16 ? 1e-1
                                                                 : 3e-2;
  const double allowed = tolerance * lanes.abs().max().item<double>();
  for (int64_t lane = 1; lane < tp; ++lane) {
    if ((lanes[lane] - lanes[0]).abs().max().item<double>() > allowed) return first + lane;
  }
  return std::nullopt;
}

}  // namespace lockstep::mimo
