#include "mimo/topology/topology.h"

#include <cstdint>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "mimo/topology/check_topology.h"
#include "mimo/topology/problems.h"

namespace lockstep::mimo {

absl::StatusOr<Topology> Topology::Make(int64_t world_size, std::vector<Module> modules) {
  return MakeOf({.world_size = world_size, .modules = std::move(modules)});
}

absl::StatusOr<Topology> Topology::Make(int64_t world_size, std::vector<Module> modules,
                                        std::vector<Edge> edges) {
  return MakeOf({.world_size = world_size,
                 .modules = std::move(modules),
                 .has_edges = true,
                 .edges = std::move(edges)});
}

absl::StatusOr<Topology> Topology::MakeOf(TopologyParts parts) {
  const std::vector<std::string> problems = CheckTopology(&parts);
  if (!problems.empty()) {
    return StatusOf(absl::StrCat("topology of world_size ", parts.world_size), problems);
  }

  Topology topology;
  topology.world_size_ = parts.world_size;
  topology.modules_ = std::move(parts.modules);
  topology.edges_ = std::move(parts.edges);
  topology.forward_order_ = std::move(parts.forward_order);
  for (const auto& [from, to] : parts.edge_ends) topology.edge_ends_.push_back({from, to});
  topology.PlaceRanks();
  return topology;
}

void Topology::PlaceRanks() {
  for (const Module& module : modules_) {
    Strides strides = {};
    int64_t stride = 1;
    for (absl::string_view axis : absl::StrSplit(module.order, '-')) {
      if (axis == "dp") {
        strides.dp = stride;
        stride *= module.dp;
      } else if (axis == "tp") {
        strides.tp = stride;
        stride *= module.tp;
      } else if (axis == "cp") {
        strides.cp = stride;
        stride *= module.cp;
      } else {
        strides.pp = stride;
        stride *= module.pp;
      }
    }
    strides_.push_back(strides);
  }

  rank_offsets_.assign(static_cast<size_t>(world_size_) + 1, 0);
  for (const Module& module : modules_) {
    for (int32_t rank : module.ranks) ++rank_offsets_[static_cast<size_t>(rank) + 1];
  }
  std::partial_sum(rank_offsets_.begin(), rank_offsets_.end(), rank_offsets_.begin());
  std::vector<int32_t> next(rank_offsets_.begin(), rank_offsets_.end() - 1);
  rank_modules_.resize(static_cast<size_t>(rank_offsets_.back()));
  rank_places_.resize(rank_modules_.size());
  for (size_t m = 0; m < modules_.size(); ++m) {
    for (size_t place = 0; place < modules_[m].ranks.size(); ++place) {
      const size_t at = static_cast<size_t>(next[static_cast<size_t>(modules_[m].ranks[place])]++);
      rank_modules_[at] = static_cast<int32_t>(m);
      rank_places_[at] = static_cast<int32_t>(place);
    }
  }
}

int Topology::index(absl::string_view name) const { return IndexOfModule(modules_, name); }

absl::Span<const int32_t> Topology::modules_of(int64_t rank) const {
  if (rank < 0 || rank >= world_size_) return {};
  const auto begin = static_cast<size_t>(rank_offsets_[static_cast<size_t>(rank)]);
  const auto end = static_cast<size_t>(rank_offsets_[static_cast<size_t>(rank) + 1]);
  return absl::MakeConstSpan(rank_modules_).subspan(begin, end - begin);
}

const Module* Topology::module(int64_t rank) const {
  const absl::Span<const int32_t> mine = modules_of(rank);
  return mine.empty() ? nullptr : &modules_[static_cast<size_t>(mine[0])];
}

int64_t Topology::FindPlace(int64_t rank, int module) const {
  const absl::Span<const int32_t> mine = modules_of(rank);
  for (size_t i = 0; i < mine.size(); ++i) {
    if (mine[i] != module) continue;
    return rank_places_[static_cast<size_t>(rank_offsets_[static_cast<size_t>(rank)]) + i];
  }
  return -1;
}

Coordinates Topology::CoordinatesOf(int module, int64_t place) const {
  const Module& grid = modules_[static_cast<size_t>(module)];
  const Strides& strides = strides_[static_cast<size_t>(module)];
  return {.dp = static_cast<int32_t>(place / strides.dp % grid.dp),
          .tp = static_cast<int32_t>(place / strides.tp % grid.tp),
          .cp = static_cast<int32_t>(place / strides.cp % grid.cp),
          .pp = static_cast<int32_t>(place / strides.pp % grid.pp)};
}

absl::StatusOr<Coordinates> Topology::coordinates(int64_t rank, int module) const {
  if (module < 0 || module >= static_cast<int>(modules_.size())) {
    return absl::NotFoundError(
        absl::StrCat("mimo: there is no module ", module, " of ", modules_.size()));
  }
  const int64_t place = FindPlace(rank, module);
  if (place >= 0) return CoordinatesOf(module, place);
  return absl::NotFoundError(absl::StrCat("mimo: rank ", rank, " of world_size ", world_size_,
                                          " is not of ",
                                          Quoted(modules_[static_cast<size_t>(module)].name)));
}

absl::StatusOr<Coordinates> Topology::coordinates(int64_t rank) const {
  const absl::Span<const int32_t> mine = modules_of(rank);
  if (!mine.empty()) return coordinates(rank, mine[0]);
  return absl::NotFoundError(
      absl::StrCat("mimo: rank ", rank, " has no module; ranks are 0 to ", world_size_ - 1));
}

int32_t Topology::rank(int module, const Coordinates& at) const {
  const Strides& strides = strides_[static_cast<size_t>(module)];
  const int64_t place =
      at.dp * strides.dp + at.tp * strides.tp + at.cp * strides.cp + at.pp * strides.pp;
  return modules_[static_cast<size_t>(module)].ranks[static_cast<size_t>(place)];
}

DpInfo Topology::dp_info(int64_t rank) const {
  const absl::Span<const int32_t> mine = modules_of(rank);
  if (mine.size() != 1) return {};
  return {.dp_rank = CoordinatesOf(mine[0], FindPlace(rank, mine[0])).dp,
          .dp_size = modules_[static_cast<size_t>(mine[0])].dp};
}

absl::StatusOr<DpInfo> Topology::dp_info(int64_t rank, absl::string_view name) const {
  const int module = index(name);
  if (module < 0) {
    return absl::NotFoundError(absl::StrCat("mimo: no module is called ", Quoted(name),
                                            "; there are ", NamesOf(modules_)));
  }
  absl::StatusOr<Coordinates> at = coordinates(rank, module);
  if (!at.ok()) return at.status();
  return DpInfo{.dp_rank = at->dp, .dp_size = modules_[static_cast<size_t>(module)].dp};
}

bool Topology::NeedsData(int module, int64_t pp_rank) const {
  return pp_rank == 0 || modules_[static_cast<size_t>(module)].name == kLanguage;
}

SamplingInfo Topology::sampling_info(int64_t rank, bool scalable_reads) const {
  SamplingInfo info;
  std::set<std::pair<int64_t, int64_t>> replicas;
  for (int32_t module : modules_of(rank)) {
    const Coordinates at = CoordinatesOf(module, FindPlace(rank, module));
    info.needs_data = info.needs_data || NeedsData(module, at.pp);
    replicas.insert({at.dp, modules_[static_cast<size_t>(module)].dp});
  }
  if (!scalable_reads || replicas.size() != 1) return info;
  info.dp_rank = replicas.begin()->first;
  info.dp_size = replicas.begin()->second;
  return info;
}

}  // namespace lockstep::mimo
